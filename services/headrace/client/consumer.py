"""The consumer: what it reads, from where, and how it hands records out."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from headrace.client.admin import EARLIEST, LATEST, list_offsets
from headrace.client.cluster import Cluster, Outside
from headrace.client.config import consumer_config
from headrace.client.fetcher import Fetcher
from headrace.client.group import ImageCoordinator, Membership, RebalanceListener
from headrace.client.positions import PartitionPosition, Positions
from headrace.client.types import ConsumerRecord, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from headrace.cluster.image import Image
from headrace.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)

Deserializer = Callable[[bytes | None], Any]
Offsets = Mapping[TopicPartition, OffsetAndMetadata]

_RESETS = {"earliest": EARLIEST, "latest": LATEST}


class ConsumerInterceptor(Protocol):
    """Sees records before the application does, and what was committed.

    >>> class Count:  # doctest: +SKIP
    ...     def on_consume(self, records): return records
    ...     def on_commit(self, offsets): ...
    """

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """May change or leave out records."""
        ...

    def on_commit(self, offsets: Offsets) -> None:
        """These offsets are stored."""
        ...


class Consumer:
    """Reads records, alone (`assign`) or as a member of a group (`subscribe`). Settings are Kafka's, with underscores.

    At least once is the default: what was handed out is committed by a later poll, so after a crash the last records
    come again. For at most once set `enable_auto_commit=False` and commit before handling what a poll returned.

    >>> async with Consumer(bootstrap_servers="127.0.0.1:9094", group_id="billing") as consumer:  # doctest: +SKIP
    ...     await consumer.subscribe(["orders"])
    ...     async for record in consumer:
    ...         print(record.value)
    """

    def __init__(
        self,
        *,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        interceptors: Sequence[ConsumerInterceptor] = (),
        outside: Outside | None = None,
        **config: Any,
    ) -> None:
        self._config = conf = consumer_config(config)
        self._cluster = Cluster(conf, outside)
        self._interceptors = list(interceptors)
        self._membership: Membership | None = None
        """For commits and, once `subscribed`, for the share of the group's partitions."""
        self._subscribed = False
        self._pattern: re.Pattern[str] | None = None
        self._committed: dict[TopicPartition, int] = {}
        self._commit_due = 0.0
        self._committing: set[asyncio.Task[None]] = set()
        self._positions = Positions(conf["fetch.max.bytes"], conf["check.crcs"])
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._timeout = conf.seconds("default.api.timeout.ms")
        self._max_poll_records: int = conf["max.poll.records"]
        self._fetcher: Fetcher | None = None
        self._errors: list[KafkaError] = []
        self._resetting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Consumer:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connects; `ClusterUnreachable` when no metadata server answers.

        >>> await consumer.start()  # doctest: +SKIP
        """
        await self._cluster.start()
        self._fetcher = Fetcher(self._cluster, self._positions, self._config)
        self._fetcher.lost = self._lost
        self._commit_due = self._cluster.clock.monotonic() + self._config.seconds("auto.commit.interval.ms")
        if self._config["group.id"]:
            self._membership = Membership(
                self._config,
                ImageCoordinator(self._cluster, self._config["group.id"]),
                self._cluster.clock,
                assignors=self._config["partition.assignment.strategy"],
                counts=self._counts,
                owned=self.assignment,
                assign=self._take_share,
                before_revoke=self._commit_quietly,
                wake=self._fetcher.arrived.set,
                chance=self._cluster.chance,
            )
            self._cluster.follower.listen(self._on_image)

    async def close(self) -> None:
        """Commits (with auto commit), leaves the group and lets go of everything.

        >>> await consumer.close()  # doctest: +SKIP
        """
        if self._fetcher is not None and self._membership is not None:
            await self._commit_quietly()
            if self._subscribed:
                await self._membership.close()
        for task in self._committing:
            task.cancel()
        if self._resetting is not None:
            self._resetting.cancel()
        if self._fetcher is not None:
            await self._fetcher.close()
            self._fetcher = None
            await self._cluster.stop()

    # --- what to read

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic.

        >>> await consumer.partitions_for("orders")  # doctest: +SKIP
        [TopicPartition(topic='orders', partition=0)]
        """
        found = await self._cluster.topic(topic)
        return [TopicPartition(topic, index) for index in range(len(found.partitions))]

    async def subscribe(
        self, topics: Iterable[str] | str | re.Pattern[str], listener: RebalanceListener | None = None
    ) -> None:
        """Reads these topics (or those a pattern matches, also later) together with the group; `listener` hears of it.

        >>> await consumer.subscribe(["orders", "returns"])  # doctest: +SKIP
        >>> await consumer.subscribe(re.compile(r"shop-.*"))  # doctest: +SKIP
        """
        membership = self._group("subscribe")
        membership.listener = listener
        self._pattern = topics if isinstance(topics, re.Pattern) else None
        if not self._subscribed:
            self._positions.assign(())
        self._subscribed = True
        if isinstance(topics, re.Pattern):
            membership.topics_changed(self._matching(self._cluster.image))
        else:
            membership.topics_changed([topics] if isinstance(topics, str) else topics)

    async def unsubscribe(self) -> None:
        """Leaves the group and reads nothing.

        >>> await consumer.unsubscribe()  # doctest: +SKIP
        """
        if self._subscribed and self._membership is not None:
            await self._commit_quietly()
            await self._membership.close()
            self._membership.rejoin = True
            self._membership.topics = ()
        self._subscribed, self._pattern = False, None
        self._positions.assign(())
        self._changed()

    def subscription(self) -> set[str]:
        """The topics subscribed to.

        >>> consumer.subscription()  # doctest: +SKIP
        {'orders'}
        """
        return set(self._membership.topics) if self._subscribed and self._membership is not None else set()

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads exactly these partitions from now on; those that stay keep their position.

        >>> await consumer.assign([TopicPartition("orders", 0)])  # doctest: +SKIP
        """
        if self._subscribed:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "subscribed consumers get their share: unsubscribe first")
        wanted = [TopicPartition(*partition) for partition in partitions]
        for topic in {partition.topic for partition in wanted}:
            await self._cluster.topic(topic)
        for partition in wanted:
            if self._cluster.image.partition(*partition) is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {partition}")
        self._positions.assign(wanted)
        self._changed()

    def assignment(self) -> set[TopicPartition]:
        """The partitions being read.

        >>> consumer.assignment()  # doctest: +SKIP
        {TopicPartition(topic='orders', partition=0)}
        """
        return self._positions.partitions

    def pause(self, *partitions: TopicPartition) -> None:
        """Hands out nothing of these partitions until `resume`; the position stays.

        >>> consumer.pause(TopicPartition("orders", 0))  # doctest: +SKIP
        """
        for partition in partitions:
            self._state(partition).paused = True
        self._changed()

    def resume(self, *partitions: TopicPartition) -> None:
        """Goes on with partitions that were paused.

        >>> consumer.resume(TopicPartition("orders", 0))  # doctest: +SKIP
        """
        for partition in partitions:
            self._state(partition).paused = False
        self._changed()

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused.

        >>> consumer.paused()  # doctest: +SKIP
        set()
        """
        return {state.partition for state in self._positions if state.paused}

    # --- where to read

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """The next record handed out of `partition` is the one at `offset`, or the first after it.

        >>> consumer.seek(TopicPartition("orders", 0), 42)  # doctest: +SKIP
        """
        if offset < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is negative: see seek_to_end")
        self._state(partition)
        self._positions.jump(partition, offset)
        self._changed()

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Goes to the first record that is kept, in these or in all partitions.

        >>> await consumer.seek_to_beginning()  # doctest: +SKIP
        """
        await self._seek_to(dict.fromkeys(partitions or self._positions.partitions, EARLIEST))

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Goes after the last record, in these or in all partitions.

        >>> await consumer.seek_to_end()  # doctest: +SKIP
        """
        await self._seek_to(dict.fromkeys(partitions or self._positions.partitions, LATEST))

    async def seek_to_timestamp(self, timestamp: int, *partitions: TopicPartition) -> None:
        """Goes to the first record that is not older than `timestamp` (ms since 1970), or to the end.

        >>> await consumer.seek_to_timestamp(1_700_000_000_000)  # doctest: +SKIP
        """
        await self._seek_to(dict.fromkeys(partitions or self._positions.partitions, timestamp))

    async def _seek_to(self, times: Mapping[TopicPartition, int]) -> None:
        for partition in times:
            self._state(partition)
        found = await self._list_offsets(times)
        past = [partition for partition, at in found.items() if at.offset < 0]
        found.update(await self._list_offsets(dict.fromkeys(past, LATEST)))
        for partition, at in found.items():
            if partition in self._positions:
                self._positions.jump(partition, at.offset)
        self._changed()

    async def position(self, partition: TopicPartition) -> int:
        """The offset of the next record that will be handed out.

        >>> await consumer.position(TopicPartition("orders", 0))  # doctest: +SKIP
        42
        """
        state = self._state(partition)
        if state.position is None:
            await self._find_positions([state])
        assert state.position is not None
        return state.position

    async def beginning_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """The first offset kept in each partition.

        >>> await consumer.beginning_offsets(TopicPartition("orders", 0))  # doctest: +SKIP
        """
        return {p: at.offset for p, at in (await self._list_offsets(dict.fromkeys(partitions, EARLIEST))).items()}

    async def end_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """The offset after the last readable record of each partition.

        >>> await consumer.end_offsets(TopicPartition("orders", 0))  # doctest: +SKIP
        """
        return {p: at.offset for p, at in (await self._list_offsets(dict.fromkeys(partitions, LATEST))).items()}

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time in each partition; None where there is none.

        >>> await consumer.offsets_for_times({TopicPartition("orders", 0): 1_700_000_000_000})  # doctest: +SKIP
        """
        found = await self._list_offsets(times)
        return {partition: at if at.offset >= 0 else None for partition, at in found.items()}

    async def lag(self, partition: TopicPartition) -> int:
        """How many records are after the position.

        >>> await consumer.lag(TopicPartition("orders", 0))  # doctest: +SKIP
        0
        """
        end = (await self.end_offsets(partition))[partition]
        return max(0, end - await self.position(partition))

    # --- commits

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Stores how far the group has come: everything that was handed out, or the given offsets. Waits for it.

        >>> await consumer.commit()  # doctest: +SKIP
        """
        membership = self._group("commit")
        wanted = self._uncommitted() if offsets is None else dict(offsets)
        if not wanted:
            return
        await self._cluster.until_done(lambda left: membership.commit(wanted), self._timeout)
        for partition, at in wanted.items():
            self._committed[partition] = at.offset
        for interceptor in self._interceptors:
            interceptor.on_commit(wanted)

    def commit_nowait(
        self,
        offsets: Offsets | None = None,
        callback: Callable[[Offsets, BaseException | None], None] | None = None,
    ) -> None:
        """The same without waiting; `callback` is told the offsets and what went wrong, or None.

        >>> consumer.commit_nowait(callback=lambda offsets, error: print(offsets, error))  # doctest: +SKIP
        """
        self._group("commit")
        wanted = self._uncommitted() if offsets is None else dict(offsets)

        async def work() -> None:
            error: BaseException | None = None
            try:
                await self.commit(wanted)
            except KafkaError as failed:
                error = failed
                log.warning("a commit of group %s failed: %s", self._config["group.id"], failed)
            if callback is not None:
                callback(wanted, error)

        task = asyncio.create_task(work(), name="commit")
        self._committing.add(task)
        task.add_done_callback(self._committing.discard)

    async def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed in these partitions; those without are left out.

        >>> await consumer.committed(TopicPartition("orders", 0))  # doctest: +SKIP
        """
        membership = self._group("committed")
        return await self._cluster.until_done(lambda left: membership.committed(partitions), self._timeout)

    def _uncommitted(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            state.partition: OffsetAndMetadata(state.position, "", state.leader_epoch)
            for state in self._positions
            if state.position is not None and self._committed.get(state.partition) != state.position
        }

    async def _commit_quietly(self) -> None:
        """Auto commit before partitions go: a failure means that some records come again, no more."""
        if not self._config["enable.auto.commit"] or self._membership is None:
            return
        offsets = self._uncommitted()
        try:
            if offsets:
                await self._membership.commit(offsets)
                self._committed.update({partition: at.offset for partition, at in offsets.items()})
        except KafkaError as error:
            log.warning("the last commit of group %s failed: %s", self._config["group.id"], error)

    def _commit_when_due(self) -> None:
        now = self._cluster.clock.monotonic()
        if self._membership is None or not self._config["enable.auto.commit"] or now < self._commit_due:
            return
        self._commit_due = now + self._config.seconds("auto.commit.interval.ms")
        if self._uncommitted():
            self.commit_nowait()

    # --- reading

    async def poll(self, timeout: float = 1.0, max_records: int | None = None) -> list[ConsumerRecord]:
        """Records that were fetched, at most `max.poll.records`; an empty list when none came within `timeout` s.

        >>> for record in await consumer.poll(): print(record.offset)  # doctest: +SKIP
        """
        found: list[ConsumerRecord] = []
        for state, records in await self._take(timeout, max_records or self._max_poll_records):
            state.position = records[-1].offset + 1
            state.leader_epoch = records[-1].leader_epoch
            found += records
        return found

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Record after record, for ever. A record counts as read when the next one is asked for.

        >>> async for record in consumer: print(record.value)  # doctest: +SKIP
        """
        while self._fetcher is not None:
            for state, records in await self._take(1.0, self._max_poll_records):
                version = state.version
                for record in records:
                    if state.version != version or state.paused:
                        break
                    yield record
                    if state.version == version:
                        state.position = record.offset + 1
                        state.leader_epoch = record.leader_epoch
                if state.version == version and state.position != records[-1].offset + 1:
                    # Paused half way: what was not handed out is fetched again.
                    self._positions.jump(state.partition, state.position)

    async def _take(self, timeout: float, most: int) -> list[tuple[PartitionPosition, list[ConsumerRecord]]]:
        fetcher = self._fetcher
        if fetcher is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the consumer is not started, or already closed")
        deadline = self._cluster.clock.monotonic() + timeout
        self._commit_when_due()
        while True:
            self._raise_errors()
            fetcher.arrived.clear()
            if self._subscribed and self._membership is not None:
                left = deadline - self._cluster.clock.monotonic()
                if not await self._membership.ensure_active(left):
                    return []
            found = self._positions.take(most)
            if found:
                fetcher.taken()
                return self._dressed(found) if self._dressing else found
            self._look_for_positions()
            left = deadline - self._cluster.clock.monotonic()
            if left <= 0:
                return []
            try:
                async with asyncio.timeout(left):
                    await fetcher.arrived.wait()
            except TimeoutError:
                self._raise_errors()
                return []

    @property
    def _dressing(self) -> bool:
        return bool(self._key_deserializer or self._value_deserializer or self._interceptors)

    def _dressed(
        self, found: list[tuple[PartitionPosition, list[ConsumerRecord]]]
    ) -> list[tuple[PartitionPosition, list[ConsumerRecord]]]:
        """What deserializers and interceptors make of what was fetched."""
        dressed = []
        for state, records in found:
            last = records[-1].offset
            if self._key_deserializer:
                records = [r._replace(key=self._key_deserializer(r.key)) for r in records]
            if self._value_deserializer:
                records = [r._replace(value=self._value_deserializer(r.value)) for r in records]
            for interceptor in self._interceptors:
                records = interceptor.on_consume(records)
            if records:
                dressed.append((state, records))
            else:
                state.position = last + 1
        return dressed

    # --- inside

    def _group(self, what: str) -> Membership:
        if self._membership is None:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, f"{what} needs a group: give group_id, and start first")
        return self._membership

    def _counts(self, topics: Iterable[str]) -> dict[str, int]:
        known = self._cluster.image.topics
        return {topic: len(known[topic].partitions) for topic in topics if topic in known}

    def _matching(self, image: Image) -> list[str]:
        pattern = self._pattern
        if pattern is None:
            return []
        return [name for name, topic in image.topics.items() if not topic.internal and pattern.fullmatch(name)]

    def _on_image(self, old: Image, new: Image) -> None:
        if self._subscribed and self._membership is not None and old.topics is not new.topics:
            if self._pattern is not None:
                self._membership.topics_changed(self._matching(new))
            self._membership.counts_changed()

    def _take_share(self, partitions: set[TopicPartition]) -> None:
        self._positions.assign(sorted(partitions))
        self._committed = {p: offset for p, offset in self._committed.items() if p in partitions}
        self._changed()

    def _state(self, partition: TopicPartition) -> PartitionPosition:
        state = self._positions.get(partition)
        if state is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{TopicPartition(*partition)} is not assigned")
        return state

    def _changed(self) -> None:
        """Something about what is read changed: streams follow."""
        self._look_for_positions()
        if self._fetcher is not None:
            self._fetcher.reconcile()

    def _raise_errors(self) -> None:
        if self._errors:
            raise self._errors.pop(0)

    async def _list_offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        committed = self._config["isolation.level"] == "read_committed"
        return await list_offsets(self._cluster, times, self._timeout, read_committed=committed)

    def _lost(self, state: PartitionPosition, error: KafkaError) -> None:
        """A partition cannot be read on where it is: out of range starts over as told, everything else is raised."""
        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE and self._config["auto.offset.reset"] in _RESETS:
            self._positions.jump(state.partition, None, _RESETS[self._config["auto.offset.reset"]])
            self._look_for_positions()
            return
        self._errors.append(
            KafkaError(error.code, f"{state.partition} at offset {state.fetch_offset}: {error.message}")
        )
        self._positions.jump(state.partition, None)
        state.paused = True

    def _look_for_positions(self) -> None:
        missing = [state for state in self._positions if state.position is None and not state.paused]
        if missing and self._resetting is None and self._fetcher is not None:
            self._resetting = asyncio.create_task(self._reset(missing), name="find positions")

    async def _reset(self, missing: list[PartitionPosition]) -> None:
        try:
            await self._find_positions(missing)
        except KafkaError as error:
            if not error.code.retriable:
                self._errors.append(error)
            await asyncio.sleep(0.1)
        finally:
            self._resetting = None
            if self._fetcher is not None:
                self._fetcher.reconcile()
                self._fetcher.arrived.set()

    async def _find_positions(self, missing: list[PartitionPosition]) -> None:
        """Positions for partitions that have none: a jump's, the group's, or as `auto.offset.reset` says."""
        policy = self._config["auto.offset.reset"]
        times: dict[TopicPartition, int] = {}
        versions = {state.partition: state.version for state in missing}
        if self._membership is not None:
            for partition, committed in (
                await self.committed(*(state.partition for state in missing if state.reset is None))
            ).items():
                found = self._positions.get(partition)
                if found is not None and found.version == versions[partition]:
                    self._positions.jump(partition, committed.offset)
                    self._committed[partition] = committed.offset
        for state in missing:
            if state.position is not None:
                continue
            if state.reset is None and policy not in _RESETS:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{state.partition} has no position, and auto_offset_reset is none: seek first",
                )
            times[state.partition] = _RESETS[policy] if state.reset is None else state.reset
        for partition, at in (await self._list_offsets(times)).items():
            found = self._positions.get(partition)
            if found is not None and found.version == versions[partition]:
                self._positions.jump(partition, at.offset)
