"""The time index of a segment: from a timestamp to an offset.

File `<base offset>.timeindex`: 12-byte entries, big-endian, (int64 timestamp, int32 offset minus the base offset).
Kafka's meaning: the timestamp is the largest seen in the segment so far, the offset the last one of the batch it came
in. An entry is made together with the offset index's, only when the timestamp grew; the last entry of a sealed segment
is the segment's largest timestamp, which is what retention by time reads.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from headrace.storage.files import File
from headrace.storage.index import IndexCorrupt, SparseIndex

_ENTRY = struct.Struct(">qi")
_TIMESTAMP = struct.Struct(">q")
_OFFSET = struct.Struct(">i")
_pack = _ENTRY.pack
_unpack_timestamp = _TIMESTAMP.unpack_from


class TimestampOffset(NamedTuple):
    """A timestamp and the offset it belongs to; (-1, base offset) when there is none."""

    timestamp: int
    offset: int


class TimeIndex(SparseIndex):
    """See the module's docstring."""

    __slots__ = ()

    def __init__(self, file: File, base_offset: int, max_bytes: int, *, fresh: bool) -> None:
        super().__init__(file, base_offset, max_bytes, _ENTRY, fresh=fresh)

    def maybe_append(self, timestamp: int, offset: int) -> bool:
        """Add an entry if `timestamp` is above the last one's; True if there is no room for another."""
        tail = self.grow() if self.tail is None else self.tail
        if timestamp > (_unpack_timestamp(tail, len(tail) - 12)[0] if tail else -1):
            tail += _pack(timestamp, offset - self.base_offset)
        return len(tail) >= self.full_at

    def entry(self, number: int) -> TimestampOffset:
        """Entry `number`; negative counts from the end."""
        buffer = self.buffer()
        if number < 0:
            number += len(buffer) // 12
        timestamp, relative = _ENTRY.unpack_from(buffer, number * 12)
        return TimestampOffset(timestamp, self.base_offset + relative)

    def last(self) -> TimestampOffset:
        return self.entry(-1) if len(self) else TimestampOffset(-1, self.base_offset)

    def lookup(self, timestamp: int) -> TimestampOffset:
        """The last entry whose timestamp is **below** `timestamp`: every batch up to it is older than asked for.

        Kafka takes the last entry not above; the difference is only where equal timestamps begin.
        """
        buffer = self.buffer()
        unpack = _TIMESTAMP.unpack_from
        found = self.floor(len(buffer) // 12, lambda i: bool(unpack(buffer, i * 12)[0] >= timestamp))
        return self.entry(found - 1) if found else TimestampOffset(-1, self.base_offset)

    def truncate_to(self, offset: int) -> None:
        """Forget entries at or after `offset`."""
        buffer = self.grow()
        relative = offset - self.base_offset
        unpack = _OFFSET.unpack_from
        self.cut(self.floor(len(buffer) // 12, lambda i: bool(unpack(buffer, i * 12 + 8)[0] >= relative)))

    def check(self) -> None:
        """Raise `IndexCorrupt` unless the size is whole and the last entry not before the first; reads two entries."""
        size = len(self.buffer())
        if size % 12:
            raise IndexCorrupt(f"{self.file.path}: {size} bytes are not a whole number of 12-byte entries")
        if size and (self.entry(-1).offset < self.base_offset or self.entry(-1).timestamp < self.entry(0).timestamp):
            raise IndexCorrupt(f"{self.file.path}: last entry {self.entry(-1)} is out of order")
