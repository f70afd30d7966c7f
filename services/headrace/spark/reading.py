"""What a task does: fetches its range of a partition ahead of Spark, and hands it over as Arrow batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import grpc
import pyarrow as pa

from headrace.client.admin import EARLIEST, LATEST, leader_of, list_offsets
from headrace.client.cluster import error_of
from headrace.errors import ErrorCode, KafkaError
from headrace.records.batch import batches
from headrace.rpc.errors import kafka_error_of
from headrace.spark.columns import Columns, Wanted
from headrace.spark.connection import Connection
from headrace.spark.planning import DataLost, OffsetRange
from headrace.v1 import broker_pb2 as pb
from headrace.v1 import common_pb2

log = logging.getLogger(__name__)

Fetched = tuple[int, bytes]
"""The offset that was asked for, and whole batches from the one that holds it."""

AHEAD = 2
"""Answers that wait for Spark; with the one being decoded and the one on its way this bounds a task's memory."""
FETCH_BYTES = 4 << 20
"""Bytes of one answer unless `headrace.max.partition.fetch.bytes` says otherwise: large ones cost least a row."""
_GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


@dataclass(frozen=True, slots=True)
class Task:
    """One task's work, as it is sent to an executor."""

    range: OffsetRange
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    from_time: int | None = None
    to_time: int | None = None


def read(connection: Connection, task: Task, fetch_bytes: int | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of `task`. Fetching goes on while Spark works on what was handed over."""
    where = task.range
    columns = Columns(task.columns, where.topic, where.partition, connection.config["check.crcs"])
    wanted = Wanted(where.start, where.end, task.from_time, task.to_time)
    source = _Ahead(connection, RangeFetcher(connection, task, fetch_bytes or FETCH_BYTES))
    try:
        for position, records in source:
            # What was asked for begins inside a batch, and what lies before it there may be deleted already.
            yield from columns.decode(records, replace(wanted, start=position))
    finally:
        source.close()


class _Ahead:
    """Runs a fetcher on the connection's thread; a bounded queue lies between it and the task."""

    def __init__(self, connection: Connection, fetcher: RangeFetcher) -> None:
        self._thread = connection.thread
        self._queue: asyncio.Queue[Fetched | BaseException | None] = asyncio.Queue(AHEAD)
        self._task = self._thread.call(asyncio.ensure_future, self._fill(fetcher))

    async def _fill(self, fetcher: RangeFetcher) -> None:
        last: BaseException | None = None
        try:
            async for fetched in fetcher.fetch():
                await self._queue.put(fetched)
        except Exception as error:
            last = error
        await self._queue.put(last)

    def __iter__(self) -> Iterator[Fetched]:
        while (item := self._thread.run(self._queue.get())) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> None:
        self._thread.call(self._task.cancel)


class RangeFetcher:
    """Fetches one range from its leader, wherever that moves, until the range is done."""

    def __init__(self, connection: Connection, task: Task, fetch_bytes: int) -> None:
        self._cluster = connection.cluster
        self._config = connection.config
        self._timeout = connection.timeout
        self._range = task.range
        self._fail_on_data_loss = task.fail_on_data_loss
        self._fetch_bytes = fetch_bytes
        self._position = task.range.start
        self._failures = 0
        self._since = self._cluster.clock.monotonic()

    async def fetch(self) -> AsyncIterator[Fetched]:
        """The batches of the range. What passes is tried again until `default.api.timeout.ms` brought no progress."""
        while self._position < self._range.end:
            try:
                self._check_topic()
                async for fetched in self._stream():
                    self._failures, self._since = 0, self._cluster.clock.monotonic()
                    yield fetched
            except KafkaError as error:
                if error.code is ErrorCode.OFFSET_OUT_OF_RANGE and not isinstance(error, DataLost):
                    await self._out_of_range()
                    continue
                self._failures += 1
                pause = self._cluster.backoff.pause(self._failures)
                if not error.code.retriable or self._cluster.clock.monotonic() + pause - self._since > self._timeout:
                    if error.code in _GONE and not self._fail_on_data_loss:
                        log.warning("%s: going on, because failOnDataLoss is false", error)
                        return
                    raise
                log.info("reading %s: %s", self._range.topic_partition, error)
                await self._cluster.clock.sleep(pause)

    def _check_topic(self) -> None:
        topic = self._cluster.image.topics.get(self._range.topic)
        if topic is not None and topic.id != self._range.topic_id:
            said = f"topic {self._range.topic} was deleted and created again while it was read"
            if self._fail_on_data_loss:
                raise DataLost(said)
            # A metadata server that lags behind may know the older topic still: only time tells.
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, said)

    async def _stream(self) -> AsyncIterator[Fetched]:
        """Answers of one FetchStream, up to the end of the range."""
        node = leader_of(self._cluster, self._range.topic_partition)
        silence = self._config.seconds("fetch.max.wait.ms") + self._config.seconds("request.timeout.ms")
        call: Any = self._cluster.broker(node).FetchStream(self._request())
        try:
            while self._position < self._range.end:
                async with asyncio.timeout(silence):
                    response = await call.read()
                if response is grpc.aio.EOF:
                    raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "the broker ended the stream")
                records = _records(response)
                if records:
                    asked, self._position = self._position, batches(records)[-1].next_offset
                    yield asked, records
                elif await self._nothing_left():
                    self._position = self._range.end
        except grpc.aio.AioRpcError as failed:
            raise kafka_error_of(failed) from None
        except TimeoutError:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"broker {node.id} fell silent") from None
        finally:
            call.cancel()

    def _request(self) -> pb.FetchRequest:
        request = pb.FetchRequest(
            header=self._cluster.header(),
            max_wait_ms=self._config["fetch.max.wait.ms"],
            min_bytes=1,
            max_bytes=self._fetch_bytes,
            read_committed=self._config["isolation.level"] == "read_committed",
        )
        where = self._range
        request.partitions.add(
            partition=common_pb2.TopicPartition(
                topic=where.topic, topic_id=where.topic_id.bytes, partition=where.partition
            ),
            offset=self._position,
            max_bytes=self._fetch_bytes,
            current_leader_epoch=-1,
        )
        return request

    async def _nothing_left(self) -> bool:
        """Whether the rest of the range is readable and empty: compaction takes records away, also the last ones."""
        return await self._end(LATEST) >= self._range.end

    async def _out_of_range(self) -> None:
        where = self._range.topic_partition
        first, end = await self._end(EARLIEST), await self._end(LATEST)
        lost = f"{where} holds the offsets {first} to {end} now, {self._position} was to be read"
        if self._fail_on_data_loss:
            raise DataLost(lost)
        log.warning("%s: going on, because failOnDataLoss is false", lost)
        self._position = first if first > self._position else self._range.end

    async def _end(self, which: int) -> int:
        where = self._range.topic_partition
        return (await list_offsets(self._cluster, {where: which}, self._timeout))[where].offset


def _records(response: pb.FetchResponse) -> bytes:
    parts: Sequence[pb.FetchResponse.PartitionData] = response.partitions
    for part in parts:
        if part.error.code:
            raise error_of(part.error)
        return part.records
    return b""
