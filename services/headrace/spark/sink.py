"""What Spark calls to write: rows of a task into topics, each exactly once (see `writing`)."""

from __future__ import annotations

import concurrent.futures
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructType

from headrace.client.admin import EARLIEST, leader_of, list_offsets
from headrace.client.cluster import raise_for
from headrace.client.types import TopicPartition
from headrace.errors import ErrorCode, KafkaError
from headrace.records.batch import batches
from headrace.spark.connection import Connection, connected
from headrace.spark.options import InvalidOption, Topics, WriteOptions
from headrace.spark.writing import (
    Identity,
    PartitionBatches,
    Row,
    Sealed,
    Written,
    fenced,
    fingerprints,
    identity,
    place,
)
from headrace.v1 import broker_pb2 as pb
from headrace.v1 import common_pb2

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Names under which Spark tells tasks of a stream whose they are."""

BATCH_BYTES = 256 << 10
"""Bytes of a batch unless `headrace.batch.size` says otherwise: a task has many rows at once, not one now and then."""
_IN_FLIGHT = 8
_READ_BACK_BYTES = 4 << 20


@dataclass
class TaskDone(WriterCommitMessage):
    """What a task wrote, and how many rows an earlier attempt had written already."""

    rows: int
    skipped: int


class _Writer:
    """What both writers share: the checks of planning, and the work of a task."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.options = options
        _check_columns(options, schema)
        if options.topic:
            self._connection().topics(Topics(names=(options.topic,)))

    def _connection(self) -> Connection:
        return connected(self.options.servers, self.options.client, producing=True)

    def _write(self, rows: Iterator[pa.RecordBatch], query_id: str, batch_id: int) -> TaskDone:
        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        writer = TaskWriter(self._connection(), self.options, identity(query_id, batch_id, task), task)
        return writer.write(rows)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """One write of a DataFrame: tasks that Spark repeats write nothing twice. The write as a whole can be repeated by
    nobody but its user, and then is another one."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._id = str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        return self._write(iterator, self._id, 0)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The sink of a streaming query, which keeps its id in its checkpoint."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        context = TaskContext.get()
        query_id = context.getLocalProperty(QUERY_ID) if context is not None else None
        batch_id = context.getLocalProperty(BATCH_ID) if context is not None else None
        if query_id is None or batch_id is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Spark told the task no {QUERY_ID} or {BATCH_ID}, without which rows could be written twice",
            )
        return self._write(iterator, query_id, int(batch_id))


def _check_columns(options: WriteOptions, schema: StructType) -> None:
    types = {each.name: each.dataType for each in schema.fields}
    if "value" not in types:
        raise InvalidOption(f"a column value is missing: the columns are {', '.join(types)}; select one as value")
    if "topic" not in types and not options.topic:
        raise InvalidOption("where to? give the option topic, or a column topic")
    allowed: dict[str, tuple[Any, ...]] = {
        "key": (BinaryType, StringType),
        "value": (BinaryType, StringType),
        "topic": (StringType,),
        "partition": (IntegerType,),
        "headers": (ArrayType,),
    }
    for name, kind in types.items():
        if name not in allowed:
            raise InvalidOption(f"column {name} cannot be written: select {', '.join(allowed)} only")
        if not isinstance(kind, allowed[name]):
            wanted = " or ".join(each().simpleString() for each in allowed[name] if each is not ArrayType)
            raise InvalidOption(
                f"column {name} is {kind.simpleString()}: cast it to {wanted or 'array<struct<key,value>>'}"
            )
    if "headers" in types and not options.include_headers:
        raise InvalidOption("the column headers is written with the option includeHeaders true only")


class TaskWriter:
    """One attempt of one task."""

    def __init__(self, connection: Connection, options: WriteOptions, who: Identity, task: int) -> None:
        self._connection = connection
        self._cluster = connection.cluster
        self._options = options
        self._who = who
        self._task = task
        given = options.client.get("batch.size")
        self._batch_bytes = int(given) if given else BATCH_BYTES
        self._timeout = connection.config.seconds("delivery.timeout.ms")
        self._places: dict[TopicPartition, PartitionBatches] = {}
        self._counts: dict[str, int] = {}
        self._sending: dict[TopicPartition, concurrent.futures.Future[None]] = {}

    def write(self, rows: Iterator[pa.RecordBatch]) -> TaskDone:
        count = 0
        for batch in rows:
            now = time.time_ns() // 1_000_000
            for row in _rows(batch, self._options):
                self._add(row, now)
                count += 1
        for there in self._places.values():
            self._send(there.seal())
            if self._options.fail_on_changed_rows:
                there.finish()
        for future in self._sending.values():
            future.result()
        return TaskDone(count, sum(there.skipped for there in self._places.values()))

    def _add(self, row: Row, now: int) -> None:
        partitions = self._counts.get(row.topic)
        if partitions is None:
            ((topic, _),) = self._connection.topics(Topics(names=(row.topic,))).values()
            partitions = self._counts[row.topic] = len(topic.partitions)
        where = place(row, partitions, self._task)
        there = self._places.get(where)
        if there is None:
            there = self._places[where] = PartitionBatches(where, self._who, self._options.codec, self._batch_bytes)
            there.resume(self._connection.thread.run(self._already(where)))
        self._send(there.add(row, now))

    def _send(self, sealed: Sealed | None) -> None:
        """Batches of one partition one after the other, of several at the same time."""
        if sealed is None:
            return
        before = self._sending.pop(sealed.partition, None)
        if before is not None:
            before.result()
        while len(self._sending) >= _IN_FLIGHT:
            self._sending.pop(next(iter(self._sending))).result()
        self._sending[sealed.partition] = self._connection.thread.submit(self._produce(sealed))

    async def _produce(self, sealed: Sealed) -> None:
        async def attempt(left: float) -> None:
            request = pb.ProduceRequest(acks=-1, timeout_ms=int(left * 1000))
            request.partitions.add(partition=_proto(sealed.partition), records=sealed.data)
            stub = self._cluster.broker(leader_of(self._cluster, sealed.partition))
            (answer,) = (await self._cluster.call(stub.Produce, request, left)).partitions
            raise_for(answer.error)

        try:
            await self._cluster.until_done(attempt, self._timeout)
        except KafkaError as error:
            if error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise
            state = await self._state(sealed.partition)
            if (
                state is None
                or state.producer_epoch != self._who.epoch
                or state.last_sequence + 1 < sealed.next_sequence
            ):
                raise KafkaError(
                    error.code, f"{sealed.partition}: another attempt of this task writes at the same time"
                ) from None

    # --- what is there already

    async def _state(self, partition: TopicPartition) -> pb.DescribeProducersResponse.Producer | None:
        async def attempt(left: float) -> pb.DescribeProducersResponse.Producer | None:
            request = pb.DescribeProducersRequest(partitions=[_proto(partition)], producer_ids=[self._who.producer_id])
            stub = self._cluster.broker(leader_of(self._cluster, partition))
            (answer,) = (await self._cluster.call(stub.DescribeProducers, request, left)).partitions
            raise_for(answer.error)
            return answer.producers[0] if answer.producers else None

        return await self._cluster.until_done(attempt, self._timeout)

    async def _already(self, partition: TopicPartition) -> Written:
        """What an earlier attempt of this task wrote: read back from its last batch to its first."""
        state = await self._state(partition)
        if state is None or state.producer_epoch < self._who.epoch or state.last_sequence < 0:
            return Written(0, ())
        if state.producer_epoch > self._who.epoch:
            raise fenced(partition, self._who.epoch, state.producer_epoch)
        count, end = state.last_sequence + 1, state.last_offset + 1
        first = (await list_offsets(self._cluster, {partition: EARLIEST}, self._timeout))[partition].offset
        window = 2 * count
        while True:
            begin = max(first, end - window)
            found, lowest = await self._read_back(partition, begin, end)
            if lowest == 0 or begin == first:
                return Written(count, found)
            window *= 4

    async def _read_back(self, partition: TopicPartition, begin: int, end: int) -> tuple[list[bytes], int]:
        found: list[bytes] = []
        lowest = -1
        while begin < end:

            async def attempt(left: float, offset: int = begin) -> bytes:
                request = pb.FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=_READ_BACK_BYTES)
                request.partitions.add(
                    partition=_proto(partition),
                    offset=offset,
                    max_bytes=_READ_BACK_BYTES,
                    current_leader_epoch=-1,
                )
                stub = self._cluster.broker(leader_of(self._cluster, partition))
                for answer in (await self._cluster.call(stub.Fetch, request, left)).partitions:
                    raise_for(answer.error)
                    if answer.records:
                        return bytes(answer.records)
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{partition} cannot be read up to {end} yet")

            records = await self._cluster.until_done(attempt, self._timeout)
            some, sequence = fingerprints(records, self._who)
            found += some
            if sequence >= 0:
                lowest = sequence if lowest < 0 else min(lowest, sequence)
            begin = batches(records)[-1].next_offset
        return found, lowest


def _rows(batch: pa.RecordBatch, options: WriteOptions) -> Iterator[Row]:
    """The rows of an Arrow batch as records."""
    names = batch.schema.names
    count = batch.num_rows

    def column(name: str, kind: pa.DataType | None = None) -> Sequence[Any]:
        if name not in names:
            return [None] * count
        found = batch.column(names.index(name))
        listed: list[Any] = (found.cast(kind) if kind is not None else found).to_pylist()
        return listed

    topics = column("topic") if "topic" in names else [options.topic] * count
    keys, values = column("key", pa.binary()), column("value", pa.binary())
    partitions, headers = column("partition"), column("headers")
    for topic, partition, key, value, given in zip(topics, partitions, keys, values, headers, strict=True):
        if topic is None:
            if not options.topic:
                raise InvalidOption("a row has a null in the column topic: give the option topic for those")
            topic = options.topic
        pairs = [(each["key"], each["value"]) for each in given] if given else ()
        yield Row(topic, partition, key, value, pairs)


def _proto(partition: TopicPartition) -> common_pb2.TopicPartition:
    return common_pb2.TopicPartition(topic=partition.topic, partition=partition.partition)
