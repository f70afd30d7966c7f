"""The offset index of a segment: from an offset to a place in the log file at or before it.

File `<base offset>.index`: 8-byte entries, big-endian, (int32 offset minus the base offset, int32 position). Kafka's
meaning: the offset is the **last** offset of the batch that starts at that position. Entries grow in both columns, so
the file is searched by bisection, by offset or by position. It is sparse (about one entry every
`index.interval.bytes`), a reader walks the log's batch headers from there.

A sealed segment's index is a memory map, made at the first lookup and let go by `Files` when too many are open. The
active segment's is a buffer in memory, written out when the segment is sealed and when the log is closed: an unclean
stop rebuilds the active segment's indexes from the log anyway, so writing each entry would be a system call an interval
that nobody reads.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from headrace.storage.files import File, Mapped


class IndexCorrupt(ValueError):
    """An index file that cannot be right; rebuild it from the log."""


class SparseIndex:
    """Entries of a fixed size in a file, either growing in memory or sealed and mapped. See the module's docstring."""

    __slots__ = ("_saved", "base_offset", "entry_size", "file", "full_at", "tail")

    def __init__(self, file: File, base_offset: int, max_bytes: int, entry: struct.Struct, *, fresh: bool) -> None:
        self.file = file
        self.base_offset = base_offset
        self.entry_size = entry.size
        self.full_at = (max_bytes // entry.size - 1) * entry.size
        """The size at which there is no room for one more entry; the last is kept for the seal, as Kafka does."""
        self.tail: bytearray | None = bytearray() if fresh else None
        """The entries while the index grows."""
        self._saved = 0

    def buffer(self) -> Mapped | bytearray:
        return self.file.map() if self.tail is None else self.tail

    def grow(self) -> bytearray:
        """The entries as a buffer that can be appended to: the index of an active segment."""
        if self.tail is None:
            self.tail = bytearray(self.file.map())
            self._saved = len(self.tail)
            self.file.close()
        return self.tail

    def __len__(self) -> int:
        return len(self.buffer()) // self.entry_size

    def cut(self, entries: int) -> None:
        """Keep the first `entries` only."""
        tail = self.grow()
        del tail[entries * self.entry_size :]
        if len(tail) < self._saved:
            self._saved = 0

    def save(self) -> None:
        """Write what is not in the file yet."""
        if self.tail is None:
            return
        if self._saved == 0:
            self.file.truncate(0)
        if len(self.tail) > self._saved:
            with memoryview(self.tail) as entries:
                self.file.append(entries[self._saved :])
            self._saved = len(self.tail)

    def seal(self) -> None:
        """Write it out and let go of the memory: from here on it is read through a map."""
        self.save()
        self.tail = None
        self._saved = 0
        self.file.close()

    def reset(self) -> None:
        """Forget every entry, to rebuild them."""
        self.tail = bytearray()
        self._saved = 0

    def floor(self, count: int, above: Callable[[int], bool]) -> int:
        """The number of leading entries for which `above` is false."""
        low, high = 0, count
        while low < high:
            middle = (low + high) >> 1
            if above(middle):
                high = middle
            else:
                low = middle + 1
        return low


_ENTRY = struct.Struct(">ii")
_OFFSET = struct.Struct(">i")
_pack = _ENTRY.pack


class OffsetIndex(SparseIndex):
    """See the module's docstring."""

    __slots__ = ()

    def __init__(self, file: File, base_offset: int, max_bytes: int, *, fresh: bool) -> None:
        super().__init__(file, base_offset, max_bytes, _ENTRY, fresh=fresh)

    def append(self, offset: int, position: int) -> bool:
        """Add an entry; True if there is no room for another."""
        tail = self.grow() if self.tail is None else self.tail
        tail += _pack(offset - self.base_offset, position)
        return len(tail) >= self.full_at

    def entry(self, number: int) -> tuple[int, int]:
        """(offset, position) of entry `number`; negative counts from the end."""
        buffer = self.buffer()
        if number < 0:
            number += len(buffer) // 8
        relative, position = _ENTRY.unpack_from(buffer, number * 8)
        return self.base_offset + relative, position

    def last(self) -> tuple[int, int]:
        """The last entry, or the segment's beginning."""
        return self.entry(-1) if len(self) else (self.base_offset, 0)

    def lookup_range(self, offset: int, end: int) -> tuple[int, int, int]:
        """The last entry whose offset is not above `offset` (or the segment's beginning), and the next entry's
        position (or `end`): the batch that holds `offset` begins between the two positions, both included."""
        buffer = self.buffer()
        relative = offset - self.base_offset
        count = len(buffer) // 8
        unpack = _OFFSET.unpack_from
        found = self.floor(count, lambda i: bool(unpack(buffer, i * 8)[0] > relative))
        entry_offset, position = self.entry(found - 1) if found else (self.base_offset, 0)
        return entry_offset, position, self.entry(found)[1] if found < count else end

    def lookup(self, offset: int) -> tuple[int, int]:
        """The last entry whose offset is not above `offset`, or the segment's beginning."""
        return self.lookup_range(offset, 0)[:2]

    def lookup_position(self, position: int) -> tuple[int, int]:
        """The last entry whose position is not above `position`, or the segment's beginning."""
        buffer = self.buffer()
        unpack = _OFFSET.unpack_from
        found = self.floor(len(buffer) // 8, lambda i: bool(unpack(buffer, i * 8 + 4)[0] > position))
        return self.entry(found - 1) if found else (self.base_offset, 0)

    def truncate_to(self, offset: int) -> None:
        """Forget entries at or after `offset`."""
        buffer = self.grow()
        relative = offset - self.base_offset
        self.cut(self.floor(len(buffer) // 8, lambda i: bool(_OFFSET.unpack_from(buffer, i * 8)[0] >= relative)))

    def check(self, log_size: int) -> None:
        """Raise `IndexCorrupt` unless the size is whole and the last entry is inside the log; reads one entry."""
        size = len(self.buffer())
        if size % 8:
            raise IndexCorrupt(f"{self.file.path}: {size} bytes are not a whole number of 8-byte entries")
        if size:
            offset, position = self.entry(-1)
            if offset < self.base_offset or not 0 <= position < log_size or (offset == self.base_offset and size > 8):
                raise IndexCorrupt(f"{self.file.path}: last entry ({offset}, {position}) is outside of its segment")
