"""What of a file is in the page cache, and bringing it there."""

from __future__ import annotations

import errno
import os

PROBE_EVERY = 131072
_PROBE = [bytearray(1)]
_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
_NULL = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
"""Held open: who reads old data must not fail because sockets have taken all descriptors."""
_CANNOT_TELL = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


def is_cached(descriptor: int, position: int, length: int) -> bool:
    """Whether a sample of the range is in the page cache; True where the filesystem cannot tell."""
    end = position + length
    try:
        for offset in range(position, end, PROBE_EVERY):
            os.preadv(descriptor, _PROBE, offset, _NOWAIT)
        os.preadv(descriptor, _PROBE, end - 1, _NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _CANNOT_TELL:
            return True
        raise
    return True


def read(descriptor: int, position: int, length: int) -> bytearray | None:
    """The bytes of a range that is in the page cache as a whole; None where the filesystem cannot tell."""
    buffer = bytearray(length)
    try:
        count = os.preadv(descriptor, [buffer], position, _NOWAIT)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno in _CANNOT_TELL:
            return None
        raise
    return buffer if count == len(buffer) else None


def read_ahead(descriptor: int, position: int, length: int) -> None:
    """Bring a range into the page cache; runs in a worker thread.

    The kernel reads ahead of a sendfile in large pages, and /dev/null copies nothing: together a tenth of the processor
    time of asking for the range (POSIX_FADV_WILLNEED) and reading it.
    """
    end = position + length
    while position < end and (count := os.sendfile(_NULL, descriptor, position, end - position)):
        position += count
