"""Which coordinator shall own which partition of the offsets topic: the same answer in every process, without talking.

Rendezvous hashing: each partition goes to the live coordinator whose hash with it is the largest. When one comes, it
takes its share and nothing else moves; when one goes, only its share moves, and to all others evenly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache


@lru_cache(maxsize=65536)
def _weight(coordinator: int, partition: int) -> bytes:
    return hashlib.blake2b(b"%d/%d" % (coordinator, partition), digest_size=8).digest()


def owner_of(partition: int, coordinators: Iterable[int]) -> int | None:
    """The coordinator that shall own `partition`; None when there is none alive."""
    return max(coordinators, key=lambda each: (_weight(each, partition), each), default=None)


def share_of(coordinator: int, coordinators: Iterable[int], partitions: int) -> set[int]:
    """The partitions of one coordinator while `coordinators` are alive.

    >>> len(share_of(0, [0], 50)), share_of(0, [0, 1], 50) | share_of(1, [0, 1], 50) == set(range(50))
    (50, True)
    """
    live = tuple(coordinators)
    return {index for index in range(partitions) if owner_of(index, live) == coordinator}
