"""The memory of large frames: bounded, and used again.

A few large buffers are kept and used again once no handler refers to them: touching fresh memory costs several times
what receiving into it does. That counts references, and compiled code holds fewer of them: setup.py leaves this out.
"""

from __future__ import annotations

from sys import getrefcount
from typing import Protocol

SPARE_BYTES = 16 * 1024 * 1024
"""All buffers that are kept for use again, together."""

SPARE_SMALLEST, SPARE_LARGEST = 65536, 2 * 1024 * 1024
_UNUSED = 3
"""References to a spare that nobody uses: the list's, the loop variable's and `getrefcount`'s own."""


class Waiter(Protocol):
    """A connection that waits for frame memory."""

    def memory_granted(self) -> None: ...


class FrameMemory:
    """The memory of frames being read and of large requests being handled: queued.max.request.bytes.

    At the limit a frame may not grow; its connection waits. So that many half-read frames never wait for each other,
    one of them at a time may grow past the limit: the bound is the limit and one frame of the largest size.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._favoured: Waiter | None = None
        self._waiting: dict[Waiter, None] = {}
        self._spares: list[bytearray] = []
        self._spare_bytes = 0

    def spare(self, size: int) -> bytearray | None:
        """A buffer of at least `size` bytes that no memoryview refers to any more."""
        if SPARE_SMALLEST <= size <= SPARE_LARGEST:
            for buffer in self._spares:
                if len(buffer) >= size and getrefcount(buffer) == _UNUSED:
                    return buffer
        return None

    def keep(self, buffer: bytearray) -> None:
        """Use this buffer again when its handler has let go of it; the oldest ones make room."""
        if SPARE_SMALLEST <= len(buffer) <= SPARE_LARGEST:
            self._spares.append(buffer)
            self._spare_bytes += len(buffer)
            while self._spare_bytes > SPARE_BYTES:
                self._spare_bytes -= len(self._spares.pop(0))

    @property
    def short(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    @property
    def full(self) -> bool:
        return self.used >= self.limit

    def grow(self, owner: Waiter, size: int) -> bool:
        """Take `size` more for `owner`'s frame, or (False) have it called when there is room again."""
        if self.used + size > self.limit:
            if self._favoured is None:
                self._favoured = owner
            if self._favoured is not owner:
                self._waiting[owner] = None
                return False
        self.used += size
        return True

    def add(self, size: int) -> None:
        """Account for bytes that are there already."""
        self.used += size

    def give_back(self, size: int) -> None:
        """Return what a frame took."""
        self.used -= size
        if self.used < self.limit:
            for _ in range(len(self._waiting)):
                self._wake()

    def forget(self, owner: Waiter) -> None:
        """`owner`'s frame is complete, or its connection gone."""
        self._waiting.pop(owner, None)
        if self._favoured is owner:
            self._favoured = None
            if self._waiting:
                self._wake()

    def _wake(self) -> None:
        owner = next(iter(self._waiting))
        del self._waiting[owner]
        if self.used >= self.limit and self._favoured is None:
            self._favoured = owner
        owner.memory_granted()


class _Nobody:
    def memory_granted(self) -> None: ...


NOBODY = _Nobody()
