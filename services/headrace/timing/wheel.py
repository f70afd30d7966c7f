"""A hierarchical timing wheel: adding and cancelling cost the same however many timers are pending.

Level 0 has 20 buckets of one tick; each further level has 20 buckets as wide as the whole level below. A timer goes
into the lowest level that reaches its due time. When a bucket of a higher level comes due, its timers move down.

Nothing ticks: a heap holds the start of every bucket in use (a few dozen at most), so the driver can sleep until
exactly the next one. Timers are linked into their bucket through their own fields, which costs two references each.
"""

from __future__ import annotations

from heapq import heappop, heappush

TICK_MS = 1
BUCKETS = 20


class TimerEntry:
    """What can be put into a wheel. It is in one wheel at a time at most."""

    __slots__ = ("_next", "_prev", "due_ms")

    def __init__(self) -> None:
        self.due_ms = 0
        self._prev: TimerEntry | None = None
        self._next: TimerEntry | None = None

    @property
    def pending(self) -> bool:
        return self._next is not None

    def on_due(self) -> None:
        """Called by the driver once the entry is due."""


class _Bucket(TimerEntry):
    """A ring of entries with itself as its head. `start` is -1 while it is not in the heap."""

    __slots__ = ("start",)

    def __init__(self) -> None:
        super().__init__()
        self._prev = self._next = self
        self.start = -1


class _Level:
    __slots__ = ("buckets", "span", "tick")

    def __init__(self, tick: int) -> None:
        self.tick = tick
        self.span = tick * BUCKETS
        self.buckets = [_Bucket() for _ in range(BUCKETS)]


class TimingWheel:
    """Times are whole milliseconds on any clock that only grows; `advance` is what makes it pass here."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now = now_ms
        self._levels = [_Level(TICK_MS)]
        # (start, number of the push, bucket): the number keeps the order exact and buckets out of comparisons.
        self._heap: list[tuple[int, int, _Bucket]] = []
        self._pushes = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, entry: TimerEntry, due_ms: int) -> None:
        """Puts the entry in, to come out of the first `advance` to `due_ms` or later."""
        if entry._next is not None:
            raise ValueError("the entry is in a wheel already: cancel it first")
        entry.due_ms = due_ms
        self._insert(entry)
        self._size += 1

    def cancel(self, entry: TimerEntry) -> bool:
        """Takes the entry out; False when it is not in (it was due, or cancelled before)."""
        after = entry._next
        if after is None:
            return False
        before = entry._prev
        assert before is not None
        before._next = after
        after._prev = before
        entry._prev = entry._next = None
        self._size -= 1
        return True

    def next_due_ms(self) -> int | None:
        """When to call `advance` next; None while nothing is pending."""
        heap = self._heap
        while heap:
            start, _, bucket = heap[0]
            if bucket._next is not bucket:
                return start
            bucket.start = -1
            heappop(heap)
        return None

    def advance(self, now_ms: int) -> list[TimerEntry]:
        """Moves time on and gives back what is due, earliest first, entries of one tick in the order they came."""
        expired: list[TimerEntry] = []
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            start, _, bucket = heappop(heap)
            bucket.start = -1
            self._now = max(self._now, start)
            entry = bucket._next
            bucket._prev = bucket._next = bucket
            while entry is not bucket:
                assert entry is not None
                after = entry._next
                if entry.due_ms <= self._now:
                    entry._prev = entry._next = None
                    expired.append(entry)
                else:
                    self._insert(entry)
                entry = after
        self._now = max(self._now, now_ms)
        self._size -= len(expired)
        return expired

    def _insert(self, entry: TimerEntry) -> None:
        now = self._now
        # What is due already waits in the bucket of the present tick for the next `advance`.
        due = entry.due_ms if entry.due_ms > now else now
        depth = 0
        levels = self._levels
        level = levels[0]
        while due >= now - now % level.tick + level.span:
            depth += 1
            if depth == len(levels):
                levels.append(_Level(level.span))
            level = levels[depth]
        slot = due // level.tick
        bucket = level.buckets[slot % BUCKETS]
        last = bucket._prev
        assert last is not None
        entry._prev = last
        entry._next = bucket
        last._next = bucket._prev = entry
        if bucket.start < 0:
            bucket.start = slot * level.tick
            self._pushes += 1
            heappush(self._heap, (bucket.start, self._pushes, bucket))
