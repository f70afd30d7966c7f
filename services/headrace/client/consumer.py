"""The consumer: what it reads, from where, and how it hands records out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

from headrace.client.admin import EARLIEST, LATEST, list_offsets
from headrace.client.cluster import Cluster
from headrace.client.config import consumer_config
from headrace.client.fetcher import Fetcher
from headrace.client.positions import PartitionPosition, Positions
from headrace.client.types import ConsumerRecord, OffsetAndTimestamp, TopicPartition
from headrace.errors import ErrorCode, KafkaError

Deserializer = Callable[[bytes | None], Any]

_RESETS = {"earliest": EARLIEST, "latest": LATEST}


class Consumer:
    """Reads records. Settings are Kafka's names with underscores.

    >>> async with Consumer(bootstrap_servers="127.0.0.1:9094", auto_offset_reset="earliest") as consumer:
    ...     await consumer.assign([TopicPartition("orders", 0)])
    ...     async for record in consumer:
    ...         print(record.value)  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        **config: Any,
    ) -> None:
        self._config = conf = consumer_config(config)
        self._cluster = Cluster(conf)
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

    async def close(self) -> None:
        """Lets go of everything.

        >>> await consumer.close()  # doctest: +SKIP
        """
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

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads exactly these partitions from now on; those that stay keep their position.

        >>> await consumer.assign([TopicPartition("orders", 0)])  # doctest: +SKIP
        """
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
        while True:
            self._raise_errors()
            fetcher.arrived.clear()
            found = self._positions.take(most)
            if found:
                fetcher.taken()
                return self._deserialized(found) if self._key_deserializer or self._value_deserializer else found
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

    def _deserialized(
        self, found: list[tuple[PartitionPosition, list[ConsumerRecord]]]
    ) -> list[tuple[PartitionPosition, list[ConsumerRecord]]]:
        def same(data: bytes | None) -> Any:
            return data

        of_key = self._key_deserializer or same
        of_value = self._value_deserializer or same
        return [
            (state, [r._replace(key=of_key(r.key), value=of_value(r.value)) for r in records])
            for state, records in found
        ]

    # --- inside

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
        """Positions for partitions that have none: as `auto.offset.reset` says, unless a jump said otherwise."""
        policy = self._config["auto.offset.reset"]
        times: dict[TopicPartition, int] = {}
        versions = {state.partition: state.version for state in missing}
        for state in missing:
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
