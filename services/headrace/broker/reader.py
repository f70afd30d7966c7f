"""What one reader wants of this broker's partitions, and which of them are worth a look.

A reader of ten thousand partitions asks again and again while a handful of them move. So it is not the reader who walks
over its partitions: a partition that moves stirs the readers that watch it, and a fetch looks only at what was stirred
or named since. A partition in which there is nothing more to see is settled: watched, and not looked at.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from headrace.broker.partition import Partition

CONSUMER = -1
"""The replica id of a reader that is not a replica."""
MAX_OFFSET = 0x7FFFFFFFFFFFFFFF

Key = tuple[str | uuid.UUID, int]
"""Topic (by name, or by id from Fetch version 13 on) and partition."""


class Wanted(NamedTuple):
    """Where a reader wants to go on in one partition."""

    offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    high_watermark: int = MAX_OFFSET
    """What a follower knows of it; a consumer does not say."""


class Waiting(Protocol):
    """A fetch that waits for something to read."""

    def hurry(self) -> None:
        """Answer now, with what there is."""


class Place:
    """One partition as one reader knows it. It is compared by identity: hashing a topic's id costs a call."""

    __slots__ = ("key", "partition", "reader", "sent", "want")

    def __init__(self, reader: Reader, key: Key, want: Wanted) -> None:
        self.reader = reader
        self.key = key
        self.want = want
        self.partition: Partition | None = None
        """What it watches."""
        self.sent: tuple[int, int] | None = None
        """High watermark and log start that the reader was told last."""

    def watch(self, partition: Partition) -> None:
        if self.partition is not partition:
            self.unwatch()
            self.partition = partition
            partition.readers[self] = None

    def unwatch(self) -> None:
        if self.partition is not None:
            self.partition.readers.pop(self, None)
            self.partition = None


class Reader:
    """One reader's wishes. What is not in `stirred` is settled, and then it is watched."""

    __slots__ = ("broker_epoch", "fetched_at", "full", "places", "replica_id", "stirred", "waiting")

    def __init__(self, wanted: Iterable[tuple[Key, Wanted]] = (), *, full: bool = True) -> None:
        self.places: dict[Key, Place] = {key: Place(self, key, want) for key, want in wanted}
        self.stirred: dict[Place, None] = dict.fromkeys(self.places.values())
        """What the next fetch looks at, in this order; who has just given data goes to the end of it."""
        self.waiting: Waiting | None = None
        self.full = full
        """Whether the next answer has to name everything that is wanted."""
        self.replica_id = CONSUMER
        self.broker_epoch = -1
        self.fetched_at = float("-inf")

    @property
    def wanted(self) -> dict[Key, Wanted]:
        return {key: place.want for key, place in self.places.items()}

    def want(self, key: Key, wanted: Wanted) -> None:
        place = self.places.get(key)
        if place is None:
            place = self.places[key] = Place(self, key, wanted)
        else:
            place.want = wanted
        self.stirred[place] = None

    def forget(self, key: Key) -> None:
        place = self.places.pop(key, None)
        if place is not None:
            self.stirred.pop(place, None)
            place.unwatch()

    def stir_all(self) -> None:
        self.stirred = dict.fromkeys(self.places.values())

    def knows(self, place: Place, high_watermark: int, log_start_offset: int) -> bool:
        """Whether it has been told these marks, or need not be: then there may be nothing more to see."""
        return True

    def settle(self, place: Place, partition: Partition) -> None:
        """There is nothing more to see in this partition until it moves."""
        del self.stirred[place]
        place.watch(partition)

    def fetches(self, replica_id: int, broker_epoch: int, now: float) -> None:
        """A request has come. Under a new registration all of it is looked at: leaders note which one it is."""
        if broker_epoch != self.broker_epoch:
            self.stir_all()
        self.replica_id, self.broker_epoch, self.fetched_at = replica_id, broker_epoch, now

    def hurry(self) -> None:
        """Whoever waits for this reader's last request is answered now."""
        if self.waiting is not None:
            self.waiting.hurry()

    def close(self) -> None:
        """It will not ask again: no partition has to know of it."""
        self.hurry()
        for place in self.places.values():
            place.unwatch()
