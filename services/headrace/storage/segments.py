"""The segments of a log in order, found by offset."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator

from headrace.storage.segment import Segment


class Segments:
    """Never empty while the log is open; the last one is active, all others are sealed."""

    __slots__ = ("_bases", "_by_base", "active")

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._by_base = {segment.base_offset: segment for segment in segments}
        self._bases = sorted(self._by_base)
        self.active = self._by_base[self._bases[-1]]

    def __iter__(self) -> Iterator[Segment]:
        return iter([self._by_base[base] for base in self._bases])

    def __len__(self) -> int:
        return len(self._bases)

    @property
    def first(self) -> Segment:
        return self._by_base[self._bases[0]]

    def floor(self, offset: int) -> Segment:
        """The segment `offset` belongs to: the last whose base offset is not above it, or the first."""
        return self._by_base[self._bases[max(bisect_right(self._bases, offset) - 1, 0)]]

    def after(self, segment: Segment) -> Segment | None:
        """The next segment."""
        at = bisect_right(self._bases, segment.base_offset)
        return self._by_base[self._bases[at]] if at < len(self._bases) else None

    def end_of(self, segment: Segment, log_end_offset: int) -> int:
        """The first offset that belongs to a later segment."""
        after = self.after(segment)
        return log_end_offset if after is None else after.base_offset

    def holds(self, segment: Segment) -> bool:
        return self._by_base.get(segment.base_offset) is segment

    def add(self, segment: Segment) -> None:
        if segment.base_offset not in self._by_base:
            insort(self._bases, segment.base_offset)
        self._by_base[segment.base_offset] = segment
        self.active = self._by_base[self._bases[-1]]

    def discard(self, segment: Segment) -> None:
        """Forget a segment; the caller adds another before it goes on if it was the last."""
        if self.holds(segment):
            del self._by_base[segment.base_offset]
            self._bases.remove(segment.base_offset)
            if self._bases:
                self.active = self._by_base[self._bases[-1]]
