"""Which partition a record goes to: by its key exactly as Java's client does it, or spread when it has none."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from itertools import accumulate

from headrace.ports import Random

Partitioner = Callable[[str, bytes | None, bytes | None, int], int]
"""Called with topic, key bytes, value bytes and the number of partitions; returns an index."""

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2, unsigned.

    >>> murmur2(b"21")
    3321034988
    """
    length = len(data)
    h = 0x9747B28C ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ (k >> 24)) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if length & 3:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ (h >> 13)) * _M & _MASK
    return h ^ (h >> 15)


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition of a key, the same one that Java's client chooses.

    >>> partition_for_key(b"21", 10)
    0
    """
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class RoundRobin:
    """A partitioner: one record to each partition in turn, whatever its key.

    >>> turn = RoundRobin(); [turn("orders", None, b"", 3) for _ in range(4)]
    [0, 1, 2, 0]
    """

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        turn = self._next.get(topic, 0)
        self._next[topic] = turn + 1
        return turn % partitions


class StickyPartitions:
    """Records without a key stay with one partition until it got `batch.size` bytes, then move to another.

    The next one is drawn by chance among those that have a leader; with `adaptive`, one that has much waiting is drawn
    less often, so that a slow broker gets less (KIP-794).
    """

    def __init__(self, batch_size: int, chance: Random, adaptive: bool = True) -> None:
        self._batch_size = max(1, batch_size)
        self._chance = chance
        self._adaptive = adaptive
        self._current: dict[str, list[int]] = {}
        """Partition and bytes it got, by topic."""

    def choose(self, topic: str, size: int, partitions: int, waiting: Callable[[], Mapping[int, int]]) -> int:
        """The partition for a record of `size` bytes; `waiting` says how many batches wait, for each that can lead."""
        current = self._current.get(topic)
        if current is None or current[1] >= self._batch_size or current[0] >= partitions:
            current = self._current[topic] = [self._draw(partitions, waiting()), 0]
        current[1] += size
        return current[0]

    def _draw(self, partitions: int, waiting: Mapping[int, int]) -> int:
        if not waiting:
            return self._chance.randrange(partitions)
        indexes = list(waiting)
        if not self._adaptive:
            return self._chance.choice(indexes)
        most = max(waiting.values())
        shares = list(accumulate(most + 1 - waiting[index] for index in indexes))
        return indexes[bisect_right(shares, self._chance.randrange(shares[-1]))]
