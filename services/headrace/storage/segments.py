"""The segments of a log in order, found by offset."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from headrace.storage.segment import Segment


class Segments:
    """Never empty while the log is open; the last one is active, all others are sealed."""

    __slots__ = ("_bases", "_segments", "active")

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._segments = sorted(segments, key=lambda segment: segment.base_offset)
        self._bases = [segment.base_offset for segment in self._segments]
        self.active = self._segments[-1]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments.copy())

    def __len__(self) -> int:
        return len(self._bases)

    @property
    def first(self) -> Segment:
        return self._segments[0]

    def floor(self, offset: int) -> Segment:
        """The segment `offset` belongs to: the last whose base offset is not above it, or the first."""
        return self._segments[max(bisect_right(self._bases, offset) - 1, 0)]

    def after(self, segment: Segment) -> Segment | None:
        """The next segment."""
        at = bisect_right(self._bases, segment.base_offset)
        return self._segments[at] if at < len(self._bases) else None

    def end_of(self, segment: Segment, log_end_offset: int) -> int:
        """The first offset that belongs to a later segment."""
        after = self.after(segment)
        return log_end_offset if after is None else after.base_offset

    def holds(self, segment: Segment) -> bool:
        at = bisect_left(self._bases, segment.base_offset)
        return at < len(self._bases) and self._segments[at] is segment

    def add(self, segment: Segment) -> None:
        """Add a segment, in the place of one with the same base offset if there is one."""
        at = bisect_left(self._bases, segment.base_offset)
        same = at < len(self._bases) and self._bases[at] == segment.base_offset
        self._bases[at : at + same] = [segment.base_offset]
        self._segments[at : at + same] = [segment]
        self.active = self._segments[-1]

    def discard(self, segment: Segment) -> None:
        """Forget a segment; the caller adds another before it goes on if it was the last."""
        if self.holds(segment):
            at = bisect_left(self._bases, segment.base_offset)
            del self._bases[at], self._segments[at]
            if self._segments:
                self.active = self._segments[-1]
