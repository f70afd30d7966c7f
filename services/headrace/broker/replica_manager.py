"""Every replica on this broker: what producers append, what readers get, and who has to wait.

The two ways in, `produce` and `fetch`, belong to the hot path: they answer at once whenever they can, by calling
`reply` before they return, and only otherwise put an operation into a purgatory. Wake-ups are gathered during one turn
of the loop: however many batches arrive in it, each partition's waiters are looked at once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence

from headrace.broker import throttle
from headrace.broker.delayed import DelayedFetch, DelayedProduce
from headrace.broker.owners import check_owner
from headrace.broker.partition import Partition
from headrace.broker.reader import Place, Reader, Wanted
from headrace.broker.requests import Fetched, FetchLimits, FetchReply, Produced, ProduceReply
from headrace.broker.stats import Stats
from headrace.broker.throttle import Throttle
from headrace.cluster.image import Image
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Clock
from headrace.timing.purgatory import Purgatory, PurgatoryFull

ANNOUNCE_SECONDS = 0.005
"""How long, and at most twice as long, a new high watermark waits for a batch to go to the followers with, before it
goes alone. One that moves again meanwhile waits anew: the batches that move it go to the followers as well."""

_NONE: dict[int, Partition] = {}
_new_tuple = tuple.__new__


class ReplicaManager:
    """The partitions of this broker by name and by id, and the requests that wait on them."""

    def __init__(
        self,
        broker_id: int,
        clock: Clock,
        stats: Stats,
        produces: Purgatory,
        fetches: Purgatory,
        call_soon: Callable[[Callable[[], None]], object],
        image: Callable[[], Image],
        call_later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.stats = stats
        self.produces = produces
        self.fetches = fetches
        self._clock = clock
        self._call_soon = call_soon
        self._image = image
        self._topics: dict[str | uuid.UUID, dict[int, Partition]] = {}
        """By name and by id, then by number: a UUID is hashed in Python, so the hot path does it once for a topic."""
        self._moved: dict[Partition, None] = {}
        self._call_later = call_later or (lambda _, callback: call_soon(callback))
        self._unannounced: dict[Partition, None] = {}
        self._moved_before: dict[Partition, None] = {}
        """What `_unannounced` was the last time it was looked at."""
        self.throttle = Throttle()
        """What this broker's leaders may send to replicas that catch up."""
        self.rack_aware = False
        """Whether consumers are sent to a replica in their rack, and followers serve them (KIP-392)."""
        self.on_removed: Callable[[Partition], None] | None = None
        """Told before a partition leaves this broker."""
        self.on_trimmed: Callable[[Partition], None] | None = None
        """Told when a log has come to start later."""
        self.on_caught_up: Callable[[Partition, int], None] | None = None
        """Told when a follower outside the in-sync set has come far enough to join it."""

    # --- which partitions there are

    def add(self, partition: Partition) -> None:
        for topic in (partition.topic, partition.topic_id):
            self._topics.setdefault(topic, {})[partition.index] = partition
        partition.traffic = self.stats.topic(partition.topic)
        self.update_throttled(partition, self._image())

    def update_throttled(self, partition: Partition, image: Image) -> None:
        """Takes from the topic's settings whether this replica is throttled."""
        values, index = image.topic_config(partition.topic), partition.index
        partition.leader_throttled = throttle.names(values, throttle.LEADER, index, self.broker_id)
        partition.follower_throttled = throttle.names(values, throttle.FOLLOWER, index, self.broker_id)

    def remove(self, partition: Partition) -> None:
        """Forgets a partition; whoever waits on it is told that this is no longer its leader."""
        if self.on_removed is not None:
            self.on_removed(partition)
        for topic in (partition.topic, partition.topic_id):
            held = self._topics.get(topic, _NONE)
            held.pop(partition.index, None)
            if not held:
                self._topics.pop(topic, None)
        partition.progress = None
        self.wake(partition)

    def stop_leading(self) -> None:
        """Takes no more requests for any partition; whoever waits is told to look for another leader."""
        for partition in self.partitions():
            partition.progress = None
            self.wake(partition)

    def find(self, topic: str | uuid.UUID, index: int) -> Partition | None:
        return self._topics.get(topic, _NONE).get(index)

    def get(self, topic: str | uuid.UUID, index: int) -> Partition:
        """The partition, or the error that sends a client to where it is."""
        partition = self._topics.get(topic, _NONE).get(index)
        if partition is None:
            raise self._unknown(topic, index)
        return partition

    def partitions(self) -> list[Partition]:
        return [p for topic, held in self._topics.items() if type(topic) is str for p in held.values()]

    def _unknown(self, topic: str | uuid.UUID, index: int) -> KafkaError:
        image = self._image()
        if isinstance(topic, uuid.UUID):
            found = image.topic_by_id(topic)
            if found is None:
                return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic}")
        else:
            found = image.topics.get(topic)
        if found is None or not 0 <= index < len(found.partitions):
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{index}")
        return KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"{found.name}-{index} is not on broker {self.broker_id}: broker {found.partitions[index].leader} leads it",
        )

    # --- producing

    def produce(
        self,
        batches: Iterable[tuple[str | uuid.UUID, int, memoryview | None]],
        acks: int,
        timeout_ms: int,
        reply: ProduceReply,
        owner_epochs: Sequence[int] = (),
    ) -> None:
        """Appends batches; `reply` is called with one result each, in order, once `acks` is satisfied.

        `owner_epochs` has one for each batch when a coordinator may be writing to its own topic.
        """
        results: list[Produced] = []
        missing: dict[int, tuple[Partition, int]] = {}
        now_ms = self._clock.time_ms()
        last_topic, held = None, _NONE
        for topic, index, records in batches:
            if topic is not last_topic:
                last_topic, held = topic, self._topics.get(topic, _NONE)
            partition = held.get(index)
            try:
                if partition is None:
                    raise self._unknown(topic, index)
                if records is None:
                    raise KafkaError(ErrorCode.INVALID_RECORD, f"no records were sent for {partition!r}")
                if partition.internal:
                    epoch = owner_epochs[len(results)] if owner_epochs else 0
                    check_owner(partition, records, epoch, self._image())
                info = partition.append(records, acks, now_ms)
            except KafkaError as error:
                results.append(Produced(topic, index, error.bare()))
                if partition is not None:
                    partition.traffic.failed_produce += 1
                continue
            first, last, append_time, log_start, duplicate, records_in, size = info
            if acks == -1 and partition.high_watermark <= last:
                missing[len(results)] = (partition, last + 1)
            # One call instead of the two of Produced(...): this is the hot path.
            results.append(_new_tuple(Produced, (topic, index, None, first, append_time, log_start)))
            if not duplicate:
                traffic = partition.traffic
                traffic.bytes_in += size
                traffic.messages_in += records_in
                if partition.readers or (self.produces.size and self.produces.watches(partition)):
                    self.wake(partition)
        if not missing:
            reply(results)
            return
        delayed = DelayedProduce(results, missing, reply)
        try:
            self.produces.add(delayed, [partition for partition, _ in missing.values()], timeout_ms)
        except PurgatoryFull as error:
            delayed.on_cancel(error)

    # --- fetching

    def fetch(self, limits: FetchLimits, reader: Reader, reply: FetchReply) -> None:
        """Reads; `reply` is called with what is there once it is enough, fails, or the wait is over."""
        reader.fetches(limits.replica_id, limits.broker_epoch, self._clock.monotonic())
        results, settled = self.read(limits, reader, fresh=True)
        if settled or limits.max_wait_ms <= 0 or not reader.places:
            reply(results)
            return
        delayed = DelayedFetch(self, limits, reader, reply)
        try:
            self.fetches.add(delayed, (reader,), limits.max_wait_ms)
        except PurgatoryFull:
            reply(results)
            return
        reader.waiting = delayed
        for place in reader.stirred:
            place.watch(self.get(*place.key))

    def read(self, limits: FetchLimits, reader: Reader, *, fresh: bool = False) -> tuple[list[Fetched], bool]:
        """Reads once, within the limits, what was stirred; the second value says that there is no reason to wait.

        With `fresh` it is a request that has just come: what a follower asks for then says how far it is. Only such a
        look settles a partition for a follower, because after any move it may have become fit for the in-sync set.
        """
        results: list[Fetched] = []
        replica = limits.replica_id >= 0
        left, some, settled = limits.max_bytes, False, False
        last_topic, held = None, _NONE
        for place in list(reader.stirred):
            topic, index = place.key
            if topic is not last_topic:
                last_topic, held = topic, self._topics.get(topic, _NONE)
            want, partition = place.want, held.get(index)
            found = self._read_one(partition, place, limits, left, not some, fresh)
            results.append(found)
            if found.error is not None or found.diverging is not None or found.preferred_replica >= 0:
                settled = True
            elif found.size:
                some = True
                left = max(0, left - found.size)
                # Who gave something goes behind those who had to wait for their share of the answer.
                del reader.stirred[place]
                reader.stirred[place] = None
            elif partition is not None:
                if replica and self._mark_is_news(partition, want):
                    settled = True
                elif (
                    (fresh or not replica)
                    and self._at_end(partition, want, replica)
                    and reader.knows(place, found.high_watermark, found.log_start_offset)
                ):
                    reader.settle(place, partition)
        return results, settled or (some and limits.max_bytes - left >= limits.min_bytes) or limits.min_bytes <= 0

    def _at_end(self, partition: Partition, want: Wanted, replica: bool) -> bool:
        return want.offset >= (partition.log.log_end_offset if replica else partition.high_watermark)

    def _mark_is_news(self, partition: Partition, want: Wanted) -> bool:
        """Whether a follower should hear of a new high watermark now."""
        return min(partition.announced, want.offset) > want.high_watermark

    def enough(self, limits: FetchLimits, reader: Reader) -> bool:
        """Whether a reader that waits would get what it waits for, or an error."""
        total, replica = 0, limits.replica_id >= 0
        by_followers = self.rack_aware and not replica
        for place in list(reader.stirred):
            want, partition = place.want, self.find(*place.key)
            if partition is None or (partition.progress is None and not by_followers):
                return True
            if want.current_leader_epoch not in (-1, partition.leader_epoch):
                return True
            log = partition.log
            if want.offset > log.log_end_offset or log.failure is not None:
                return True
            if replica and self._mark_is_news(partition, want):
                return True
            if self._at_end(partition, want, replica):
                if not replica and reader.knows(place, partition.high_watermark, log.log_start_offset):
                    reader.settle(place, partition)
                continue
            if replica and self._throttled(partition, limits.replica_id):
                continue
            if limits.min_bytes <= 1:
                return True
            try:
                total += partition.read(want.offset, want.max_bytes, replica=replica).size
            except KafkaError:
                return True
            if total >= limits.min_bytes:
                return True
        return False

    def _read_one(
        self,
        partition: Partition | None,
        place: Place,
        limits: FetchLimits,
        left: int,
        first: bool,
        fresh: bool,
    ) -> Fetched:
        is_replica, want = limits.replica_id >= 0, place.want
        try:
            if partition is None:
                raise self._unknown(*place.key)
            partition.check_epoch(want.current_leader_epoch, leader_only=is_replica or not self.rack_aware)
            diverging = partition.diverging(want.last_fetched_epoch, want.offset)
            if diverging is not None:
                return Fetched(place, None, [], 0, partition.high_watermark, partition.log.log_start_offset, diverging)
            if is_replica:
                if fresh:
                    self._follower_fetched(partition, limits, want)
                if self._throttled(partition, limits.replica_id):
                    left = 0
                    first = False
            elif limits.rack and self.rack_aware and (nearest := self._nearest(partition, want, limits)) is not None:
                log_start = partition.log.log_start_offset
                return Fetched(place, None, [], 0, partition.high_watermark, log_start, None, nearest)
            info = partition.read(want.offset, min(want.max_bytes, left), replica=is_replica, min_one_batch=first)
        except KafkaError as error:
            error.bare()
            if partition is not None:
                partition.traffic.failed_fetch += 1
                return Fetched(place, error, [], 0, partition.high_watermark, partition.log.log_start_offset)
            return Fetched(place, error, [])
        if is_replica and info.size and partition.leader_throttled and limits.replica_id not in partition.isr:
            self.throttle.spend(info.size, self._clock.monotonic())
        return Fetched(place, None, info.ranges, info.size, partition.high_watermark, partition.log.log_start_offset)

    def _follower_fetched(self, partition: Partition, limits: FetchLimits, want: Wanted) -> None:
        replica = limits.replica_id
        now = self._clock.monotonic()
        if partition.follower_fetched(replica, want.offset, limits.broker_epoch, now, want.log_start_offset):
            self._mark_moved(partition)
        if partition.may_join(replica) and self.on_caught_up is not None:
            self.on_caught_up(partition, replica)

    def _throttled(self, partition: Partition, replica: int) -> bool:
        return (
            partition.leader_throttled
            and replica not in partition.isr
            and self.throttle.exceeded(self._clock.monotonic())
        )

    def _nearest(self, partition: Partition, want: Wanted, limits: FetchLimits) -> int | None:
        brokers = self._image().brokers

        def rack_of(broker: int) -> str | None:
            node = brokers.get(broker)
            return node.rack if node is not None else None

        return partition.nearest(want.offset, rack_of, limits.rack)

    # --- waking those who wait

    def advance(self, partition: Partition) -> None:
        """Looks whether the high watermark may move, for example because min.insync.replicas was lowered."""
        if partition.advance():
            self._mark_moved(partition)

    def _mark_moved(self, partition: Partition) -> None:
        self.wake(partition)
        self._announce(partition)

    def _announce(self, partition: Partition) -> None:
        """Followers hear of a new high watermark with the next batch, or a moment later without one."""
        if not self._unannounced and not self._moved_before:
            self._call_later(ANNOUNCE_SECONDS, self._announce_the_quiet)
        self._unannounced[partition] = None

    def _announce_the_quiet(self) -> None:
        quiet, busy = self._moved_before, self._unannounced
        self._moved_before, self._unannounced = busy, {}
        waiting: dict[Reader, None] = {}
        for partition in quiet:
            if partition not in busy:
                partition.announced = partition.high_watermark
                self._stir(partition, waiting)
        for reader in waiting:
            self.fetches.check(reader)
        if busy:
            self._call_later(ANNOUNCE_SECONDS, self._announce_the_quiet)

    def trimmed(self, partition: Partition) -> None:
        """A log starts later than before: its readers and its leader hear of it."""
        self.wake(partition)
        if self.on_trimmed is not None:
            self.on_trimmed(partition)

    def wake(self, partition: Partition) -> None:
        """Something moved in this partition: look at its waiters when this turn of the loop is done."""
        if not self._moved:
            self._call_soon(self._wake_all)
        self._moved[partition] = None

    def is_moving(self, partition: Partition) -> bool:
        """Whether its readers have still to hear of the last move, and their followers' idle time to be noted."""
        return partition in self._moved

    def _wake_all(self) -> None:
        moved, self._moved = self._moved, {}
        waiting: dict[Reader, None] = {}
        for partition in moved:
            self.produces.check(partition)
            if partition.readers:
                self._stir(partition, waiting)
        for reader in waiting:
            self.fetches.check(reader)

    def _stir(self, partition: Partition, waiting: dict[Reader, None]) -> None:
        """Tells the readers of a partition to look at it. One that asks for nothing now need not be told again."""
        for place in list(partition.readers):
            reader = place.reader
            if place not in reader.stirred:
                reader.stirred[place] = None
                if reader.replica_id >= 0:
                    partition.follower_was_idle(place)
            if reader.waiting is None:
                place.unwatch()
            else:
                waiting[reader] = None
