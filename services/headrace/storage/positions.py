"""Where batches lie in the segments of a log: what turns offsets into file ranges."""

from __future__ import annotations

from headrace.storage.files import FileRange
from headrace.storage.results import ReadInfo
from headrace.storage.segment import Segment
from headrace.storage.segments import Segments

_REMEMBERED = 64
MOST_RECENT = 2 * _REMEMBERED
"""From so many on, an append trims what is remembered."""


class Positions:
    """Looks offsets up in the indexes, but for the batches that were appended last."""

    __slots__ = ("_segments", "recent")

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self.recent: dict[int, tuple[Segment, int]] = {}
        """Where batches that were appended lately begin: consumers and followers at the end ask for just these."""

    def trim(self) -> None:
        """Keep the newest."""
        for old in list(self.recent)[:-_REMEMBERED]:
            del self.recent[old]

    def forget(self) -> None:
        """Segments were cut, replaced or removed."""
        self.recent.clear()

    def read(self, offset: int, max_bytes: int, upto: int, log_end: int, *, at_least_one: bool) -> ReadInfo:
        """Whole batches from the one that holds `offset` on and below `upto`; the log ends at `log_end`."""
        segments = self._segments
        recent = self.recent.get(offset)
        if recent is not None:
            segment, position = recent
        else:
            segment = segments.floor(offset)
            position = segment.locate(offset)
        ranges: list[FileRange] = []
        size = 0
        while True:
            after = None if segment is segments.active else segments.after(segment)
            last = upto <= (log_end if after is None else after.base_offset)
            limit = self._end_of(segment, upto, log_end) if last else segment.size
            end = segment.end_of(position, max_bytes - size, limit, at_least_one=at_least_one and not size)
            if end > position:
                ranges.append(segment.range(position, end))
                size += end - position
            if last or end < limit or after is None:
                return ReadInfo(ranges, size)
            segment, position = after, 0

    def _end_of(self, segment: Segment, offset: int, log_end: int) -> int:
        """Where the batches below `offset` end in the segment it belongs to."""
        if offset == log_end:
            return segment.size
        recent = self.recent.get(offset)
        if recent is not None and recent[0] is segment:
            return recent[1]
        return segment.locate(offset)
