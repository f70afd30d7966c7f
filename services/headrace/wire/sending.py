"""What a connection still has to send: bytes from memory and ranges of files, in order.

Memory goes out gathered (`sendmsg`), large file ranges with `os.sendfile`: their bytes never pass through Python. Small
ones are read and gathered with the rest: two calls instead of five, and one packet. Data that is not in the page cache
would block the loop, so a sample of a range is probed first, and a worker thread reads ahead what is cold while
everybody else goes on.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol, TypeAlias

from headrace.wire import page_cache
from headrace.wire.errors import FileEndedEarly

GATHER = 64
"""Parts in one `sendmsg`."""

SMALL = 65536
"""File ranges of this size or less are read; copying larger ones costs more than the calls it saves."""

READ_BYTES = 262144
"""What is read for one `sendmsg`: more may have to be read again when the socket does not take it."""

TURN_BYTES = 4 * 1024 * 1024
"""How much one connection sends before the others have their turn."""

CHUNK = 1024 * 1024
"""How far ahead of the send a range is known to be in the page cache."""


class FileRange(Protocol):
    """Bytes of an open file; `release` is called once, when they are sent or will not be."""

    @property
    def position(self) -> int: ...

    @property
    def length(self) -> int: ...

    def fileno(self) -> int: ...

    def release(self) -> None: ...


Part: TypeAlias = bytes | bytearray | memoryview | FileRange
MEMORY = (bytes, bytearray, memoryview)


def release_all(parts: bytes | bytearray | list[Part] | None) -> None:
    """Let go of the files of a response nobody will get."""
    if type(parts) is list:
        for part in parts:
            if not isinstance(part, MEMORY):
                part.release()


def _nobody(*_: object) -> None:
    """Who is told once a connection is closed."""


class Output:
    """The sending half of a connection. `put` queues, `flush` sends; what the socket does not take yet is sent when
    it does. `on_drained` is called when nothing is left after such a wait, `on_lost` when the connection broke.
    """

    __slots__ = (
        "_ahead",
        "_descriptor",
        "_executor",
        "_left",
        "_loop",
        "_on_drained",
        "_on_lost",
        "_position",
        "_queue",
        "_registered",
        "_send",
        "_sendmsg",
        "_warm",
        "_writing",
        "bytes_out",
        "closed",
        "pending",
    )

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        executor: Executor | None,
        on_drained: Callable[[], None],
        on_lost: Callable[[Exception], None],
    ) -> None:
        self._descriptor = sock.fileno()
        self._send = sock.send
        self._sendmsg = sock.sendmsg
        self._loop = loop
        self._executor = executor
        self._on_drained = on_drained
        self._on_lost = on_lost
        self._queue: deque[Part] = deque()
        self._writing = self._registered = False
        self._ahead = False
        self._position = -1
        self._left = self._warm = 0
        self.pending = 0
        """Bytes queued and not sent, those of files included."""
        self.bytes_out = 0
        self.closed = False

    def put(self, part: Part, size: int) -> None:
        """Queue one part of `size` bytes."""
        self._queue.append(part)
        self.pending += size

    def flush(self) -> bool:
        """Send what the socket takes; True when nothing is left. Raises OSError when the connection is broken."""
        if self._writing or self._ahead:
            return False
        queue = self._queue
        if len(queue) == 1 and type(queue[0]) is bytes:
            # As below, for one small answer, which is what there usually is and is usually sent as a whole.
            try:
                sent = self._send(queue[0])
            except (BlockingIOError, InterruptedError):
                self._wait_writable()
                return False
            self.pending -= sent
            self.bytes_out += sent
            if not self.pending:
                queue.clear()
                return True
            queue[0] = memoryview(queue[0])[sent:]
        turn = TURN_BYTES
        while queue:
            try:
                sent = self._send_gathered()
                if sent < 0:
                    sent = self._send_file(queue[0])  # type: ignore[arg-type]
                    if sent < 0:
                        return False
            except (BlockingIOError, InterruptedError):
                self._wait_writable()
                return False
            self.pending -= sent
            self.bytes_out += sent
            turn -= sent
            if turn <= 0 and queue:
                self._wait_writable()
                return False
        return True

    def close(self) -> None:
        """Drop what is left and let go of its files, and of the connection: no circle is left to the collector."""
        self.closed = True
        self._on_drained = self._on_lost = _nobody
        self._stop_writing()
        # A worker thread may still read from the file at the head; that one is released when it has finished.
        kept = [self._queue.popleft()] if self._ahead else []
        release_all(list(self._queue))
        self._queue = deque(kept)

    def _send_gathered(self) -> int:
        """Send what is at the head up to the next large range; -1 when one is at the head itself.

        What was read of a file and not sent is read again: a connection that does not take its answers holds none.
        """
        queue = self._queue
        first = queue[0]
        if isinstance(first, MEMORY):
            if len(queue) == 1:
                sent = self._send(first)
                if sent == len(first):
                    queue.clear()
                    return sent
                self._cut(first, sent)
                return sent
        elif self._position >= 0 or first.length > SMALL:
            return -1
        parts: list[bytes | bytearray | memoryview] = []
        flags, left = 0, READ_BYTES
        for part in queue:
            if isinstance(part, MEMORY):
                parts.append(part)
            else:
                size = part.length
                data = page_cache.read(part.fileno(), part.position, size) if size <= SMALL and size <= left else None
                if data is None:
                    flags = socket.MSG_MORE
                    break
                parts.append(data)
                left -= size
            if len(parts) == GATHER:
                break
        if not parts:
            return -1
        sent = left = self._sendmsg(parts, (), flags)
        for each in parts:
            part, size = queue[0], len(each)
            if left < size:
                if left:
                    self._cut(part, left)
                break
            left -= size
            if part is each:
                queue.popleft()
            else:
                self._file_done(part)  # type: ignore[arg-type]
        return sent

    def _cut(self, part: Part, sent: int) -> None:
        """Only the first bytes of the part at the head were sent."""
        if isinstance(part, MEMORY):
            self._queue[0] = memoryview(part)[sent:]
        else:
            self._position, self._left, self._warm = part.position + sent, part.length - sent, part.position

    def _send_file(self, part: FileRange) -> int:
        """Send some of the range at the head; -1 when its bytes must be read from disk first."""
        if self._position < 0:
            self._position, self._left = part.position, part.length
            self._warm = part.position
        if not self._left:
            self._file_done(part)
            return 0
        descriptor = part.fileno()
        if self._position >= self._warm:
            size = min(self._left, CHUNK)
            if self._executor is not None and not page_cache.is_cached(descriptor, self._position, size):
                self._read_ahead(descriptor, size)
                return -1
            self._warm = self._position + size
        sent = os.sendfile(self._descriptor, descriptor, self._position, self._warm - self._position)
        if not sent:
            raise FileEndedEarly(errno.EIO, f"file ends {self._left} bytes before the end of a range to send")
        self._position += sent
        self._left -= sent
        if not self._left:
            self._file_done(part)
        return sent

    def _file_done(self, part: FileRange) -> None:
        self._queue.popleft()
        self._position = -1
        part.release()

    def _read_ahead(self, descriptor: int, size: int) -> None:
        assert self._executor is not None
        self._ahead = True
        self._warm = self._position + size
        job = self._loop.run_in_executor(self._executor, page_cache.read_ahead, descriptor, self._position, size)
        job.add_done_callback(self._read_ahead_done)

    def _read_ahead_done(self, job: asyncio.Future[None]) -> None:
        self._ahead = False
        if self.closed:
            job.cancelled() or job.exception()
            release_all(list(self._queue))
            self._queue.clear()
        elif job.cancelled() or (error := job.exception()) is None:
            self._continue()
        else:
            self._on_lost(error if isinstance(error, Exception) else OSError(str(error)))

    def _wait_writable(self) -> None:
        self._writing = True
        if not self._registered:
            self._registered = True
            self._loop.add_writer(self._descriptor, self._on_writable)

    def _stop_writing(self) -> None:
        self._writing = False
        if self._registered:
            self._registered = False
            self._loop.remove_writer(self._descriptor)

    def _on_writable(self) -> None:
        self._writing = False
        self._continue()
        if not self._writing:
            self._stop_writing()

    def _continue(self) -> None:
        try:
            drained = self.flush()
        except OSError as error:
            self._on_lost(error)
            return
        if drained:
            self._on_drained()
