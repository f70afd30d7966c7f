"""Frames from a socket: an int32 size, then that many bytes.

Small frames come many at a time through one scratch buffer that all connections of a loop share, and are handed out as
they lie in it: whoever keeps one copies it. A frame that does not fit, or has not come whole, gets a bytearray of its
own, which the rest is received into directly. A handler may stamp the memory it gets and write it to disk. The buffer
grows with the bytes that arrive, never with the size that was announced, and all such buffers together are bounded by a
`FrameMemory`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from headrace.wire.errors import MalformedRequest
from headrace.wire.frame_memory import NOBODY, SPARE_SMALLEST, FrameMemory, Waiter

SCRATCH_BYTES = 262144
FIRST_READ = 4096
"""How much is asked for at first where large frames are the rule: little enough that its copy costs nothing."""

LARGE_FRAME = 65536
FIRST_ALLOCATION = 262144
HEADROOM = 64
"""How many times the bytes that have come a frame's buffer may be, at first."""

_SIZE = struct.Struct(">i")


class FrameReader:
    """The reading half of a connection: `receive` once for each readiness, then `next` until it gives None."""

    __slots__ = (
        "_end",
        "_filled",
        "_frame",
        "_kept",
        "_last_size",
        "_max_size",
        "_memory",
        "_owner",
        "_position",
        "_recv_into",
        "_scratch",
        "_size",
        "_taken",
        "_view",
        "bytes_in",
        "drained",
        "more",
        "starved",
    )

    def __init__(
        self,
        recv_into: Callable[[memoryview], int],
        scratch: memoryview,
        max_size: int,
        memory: FrameMemory,
        owner: Waiter,
    ) -> None:
        self._recv_into = recv_into
        self._scratch = scratch
        self._max_size = max_size
        self._memory = memory
        self._owner = owner
        self._view = scratch
        self._position = self._end = 0
        self._frame: bytearray | None = None
        self._kept = False
        self._filled = self._size = self._taken = self._last_size = 0
        self.bytes_in = 0
        self.more = False
        """Whether the last receive got all it asked for, so that there is likely more."""
        self.starved = False
        """Whether the frame being read waits for memory: receive nothing until it is granted."""
        self.drained = True
        """Whether everything received so far was handed out: there is no next frame, and nothing to park."""

    @property
    def mid_frame(self) -> bool:
        """Whether a frame has begun and is not complete."""
        return self._frame is not None or self._end > self._position

    def receive(self) -> bool:
        """Take what the socket has; False at the end of the stream."""
        if self._frame is not None:
            return self._receive_frame()
        target = scratch = self._scratch
        kept = self._end - self._position
        if kept:
            scratch[:kept] = self._view[self._position : self._end]
            target = scratch[kept:]
        self._view = scratch
        self._position, self._end = 0, kept
        if self._last_size > LARGE_FRAME:
            target = scratch[kept:FIRST_READ]
        try:
            count = self._recv_into(target)
        except (BlockingIOError, InterruptedError):
            self.more = False
            return True
        self._end = kept + count
        self.bytes_in += count
        self.more = count == len(target)
        self.drained = False
        return count > 0

    def next(self) -> tuple[memoryview, int] | None:
        """The next complete frame, and the bytes of `FrameMemory` that are now the caller's to give back.

        With 0 of them the frame lies in the scratch buffer, and is good until the next `receive` of anybody.
        """
        if self._frame is not None:
            if self._filled < self._size:
                return None
            if not self._kept:
                self._memory.keep(self._frame)
            frame, taken = memoryview(self._frame)[: self._size], self._taken
            self._frame = None
            self._memory.forget(self._owner)
            self.drained = True
            return frame, taken
        position = self._position
        have = self._end - position - 4
        if have < 0:
            return None
        size: int = _SIZE.unpack_from(self._view, position)[0]
        if not 4 <= size <= self._max_size:
            raise MalformedRequest(
                f"a frame of {size} bytes: between 4 and socket.request.max.bytes={self._max_size} are allowed"
            )
        position += 4
        self._last_size = size
        if have >= size:
            self._position = position + size
            self.drained = have == size
            return self._view[position : position + size], 0
        self._begin(size, position, have)
        return None

    def park(self) -> None:
        """Keep what is not parsed yet: the scratch buffer is everybody's."""
        if self._view is self._scratch and self._end > self._position:
            self._view = memoryview(bytearray(self._scratch[self._position : self._end]))
            self._position, self._end = 0, len(self._view)

    def close(self) -> None:
        """Give back the memory of a frame that will not be completed; let go of the connection, see `Output.close`."""
        self._memory.forget(self._owner)
        self._owner = NOBODY
        self._view, self._position, self._end = self._scratch, 0, 0
        if self._frame is not None:
            self._frame = None
            self._memory.give_back(self._taken)

    def _begin(self, size: int, position: int, have: int) -> None:
        frame = self._memory.spare(size)
        self._kept = frame is not None
        if frame is None:
            frame = bytearray(self._first_room(size, have))
        room = len(frame)
        self._memory.add(room)
        frame[:have] = self._view[position : self._end]
        self._frame, self._filled, self._size, self._taken = frame, have, size, room
        self._position = self._end = 0

    def _first_room(self, size: int, have: int) -> int:
        if self._memory.full:
            return have
        room = max(have, min(size, HEADROOM * (have + 4), FIRST_ALLOCATION))
        # Rounded up, so that the next frame of about this size fits when the buffer is used again.
        return -(-size // SPARE_SMALLEST) * SPARE_SMALLEST if room == size >= SPARE_SMALLEST else room

    def _receive_frame(self) -> bool:
        frame = self._frame
        assert frame is not None
        while True:
            if self._filled == len(frame) and not self._grow(frame):
                self.more = False
                return True
            target = memoryview(frame)[self._filled : self._size]
            try:
                count = self._recv_into(target)
            except (BlockingIOError, InterruptedError):
                self.more = False
                return True
            finally:
                room = len(target)
                target.release()
            self._filled += count
            self.bytes_in += count
            self.more = count == room
            if not self.more or self._filled == self._size:
                return count > 0

    def _grow(self, frame: bytearray) -> bool:
        room = min(self._size, max(4 * len(frame), FIRST_READ)) - len(frame)
        if not self._memory.grow(self._owner, room):
            self.starved = True
            return False
        self._taken += room
        frame += bytes(room)
        return True
