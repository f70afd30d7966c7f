"""What Spark calls: the data source `headrace`, its batch reader and its stream reader. Decisions are in `planning`.

>>> spark.read.format("headrace").option("headrace.bootstrap.servers", "127.0.0.1:9094") \\
...     .option("subscribe", "orders").load()  # doctest: +SKIP
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.client.types import TopicPartition
from headrace.errors import ErrorCode, KafkaError
from headrace.spark.connection import Connection, connected
from headrace.spark.filters import Pushed, push
from headrace.spark.offsets import StreamOffset
from headrace.spark.options import InvalidOption, ReadOptions, column_names, read_options, write_options
from headrace.spark.planning import (
    Losses,
    OffsetRange,
    admit,
    batch_ranges,
    check_topics,
    resolve,
    split,
    stream_ranges,
    times_to_ask,
)
from headrace.spark.reading import Task, read

log = logging.getLogger(__name__)

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(_HEADER),
}
_IDLE_SECONDS = 3.0
"""How long a stream's question for news waits for some: without it Spark asks dozens of times a second."""
_IDLE_PAUSES = (0.01, 0.02, 0.04, 0.08, 0.15)


class TaskPartition(InputPartition):
    """A task, as Spark carries it to an executor."""

    def __init__(self, task: Task) -> None:
        self.task = task


class HeadraceDataSource(DataSource):
    """The format `headrace`."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType:
        return StructType([StructField(name, _TYPES[name]) for name in column_names(self.options)])

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options, streaming=False)
        _check_schema(schema, options)
        return PushdownReader(options) if options.filter_pushdown else BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = read_options(self.options, streaming=True)
        _check_schema(schema, options)
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from headrace.spark.sink import BatchWriter

        if overwrite:
            raise InvalidOption('a log can only be appended to: write with mode("append")')
        return BatchWriter(write_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from headrace.spark.sink import StreamWriter

        return StreamWriter(write_options(self.options), schema)


def _check_schema(schema: StructType, options: ReadOptions) -> None:
    if tuple(schema.fieldNames()) != options.columns:
        raise InvalidOption(
            f"this source has the columns {', '.join(options.columns)}, not {', '.join(schema.fieldNames())}: give no "
            "schema, and name the columns that you want in the option columns"
        )


class Reading:
    """What both readers do: ask a cluster, plan, and run a task."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def _connection(self) -> Connection:
        return connected(self.options.servers, self.options.client)

    def _losses(self) -> Losses:
        return Losses(self.options.fail_on_data_loss, [])

    def _tasks(self, ranges: Iterable[OffsetRange], pushed: Pushed | None = None) -> list[InputPartition]:
        pushed = pushed or Pushed()
        cut = split(pushed.apply(ranges), self.options.min_partitions)
        options = self.options
        return [
            TaskPartition(Task(each, options.columns, options.fail_on_data_loss, pushed.from_time, pushed.to_time))
            for each in cut
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark turns a plan of no partitions into one that is none of ours.
        if not isinstance(partition, TaskPartition):
            return iter(())
        given = self.options.client.get("max.partition.fetch.bytes")
        return read(self._connection(), partition.task, int(given) if given else None)


def _partitions(topics: Mapping[str, tuple[Any, tuple[int, ...]]]) -> list[TopicPartition]:
    return [TopicPartition(name, index) for name, (_, indexes) in topics.items() for index in indexes]


def _warn(losses: Losses) -> None:
    for sentence in losses.warnings:
        log.warning("%s: going on, because failOnDataLoss is false", sentence)


class BatchReader(Reading, DataSourceReader):
    """A read with a beginning and an end."""

    def partitions(self) -> list[InputPartition]:
        return self._planned(Pushed())

    def _planned(self, pushed: Pushed) -> list[InputPartition]:
        connection, options, losses = self._connection(), self.options, self._losses()
        topics = connection.topics(options.topics)
        partitions = _partitions(topics)
        bounds = connection.bounds(partitions)
        times = [connection.by_time(times_to_ask(spec, partitions)) for spec in (options.starting, options.ending)]
        starts = resolve(options.starting, bounds, times[0], losses)
        ends = resolve(options.ending, bounds, times[1], losses)
        if pushed.from_time is not None and pushed.from_time >= 0:
            # Everything before the first record of that time, or later, is older.
            first = connection.by_time(dict.fromkeys(partitions, pushed.from_time))
            for partition, at in first.items():
                starts[partition] = max(starts[partition], at if at >= 0 else ends[partition])
        _warn(losses)
        ids = {name: topic.id for name, (topic, _) in topics.items()}
        return self._tasks(batch_ranges(starts, ends, ids), pushed)


class PushdownReader(BatchReader):
    """The same, asked by Spark which filters it takes. One without the method is needed where Spark does not ask."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._pushed = Pushed()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._pushed, rest = push(filters)
        return rest

    def partitions(self) -> list[InputPartition]:
        return self._planned(self._pushed)


class StreamReader(Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A read without an end, micro-batch by micro-batch."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._initial: dict[str, Any] | None = None
        self._target: dict[TopicPartition, int] | None = None
        self._ends: StreamOffset | None = None
        self._committed: StreamOffset | None = None

    def initialOffset(self) -> dict[str, Any]:
        # Asked for twice, and it must not move in between.
        if self._initial is None:
            connection, losses = self._connection(), self._losses()
            topics = connection.topics(self.options.topics)
            partitions = _partitions(topics)
            bounds = connection.bounds(partitions)
            times = connection.by_time(times_to_ask(self.options.starting, partitions))
            starts = resolve(self.options.starting, bounds, times, losses)
            _warn(losses)
            self._initial = StreamOffset.of({name: topic.id for name, (topic, _) in topics.items()}, starts).encode()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        topics = self._connection().topics(self.options.topics)
        self._target = self._connection().ends(_partitions(topics))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next micro-batch ends. `start` is where the last finished one ended, so it is committed here:
        Spark's own `commit` comes one batch late, and never for the last one."""
        at = StreamOffset.decode(start)
        self._commit(at)
        ids, begin, available = self._news(at)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return StreamOffset.of(ids, admit(begin, available, most)).encode()

    def _news(self, at: StreamOffset) -> tuple[dict[str, Any], dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Ids, beginnings and ends of what can be read now; waits a little for news when there is none."""
        deadline = time.monotonic() + (_IDLE_SECONDS if self._target is None else 0.0)
        pauses = iter(_IDLE_PAUSES)
        while True:
            ids, begin, ends = self._available(at)
            if any(end > begin[partition] for partition, end in ends.items()) or time.monotonic() >= deadline:
                return ids, begin, ends
            time.sleep(next(pauses, 0.25))

    def _available(
        self, at: StreamOffset
    ) -> tuple[dict[str, Any], dict[TopicPartition, int], dict[TopicPartition, int]]:
        connection, losses = self._connection(), self._losses()
        topics = connection.topics(self.options.topics)
        ids = {name: topic.id for name, (topic, _) in topics.items()}
        check_topics(at, ids, losses)
        ends = connection.ends(_partitions(topics))
        self._ends = StreamOffset.of(ids, ends)
        known = {
            partition: offset
            for partition, offset in at.items()
            if ids.get(partition.topic) == at.topics[partition.topic].id
        }
        fresh = [partition for partition in ends if partition not in known]
        begin = {
            **{partition: known[partition] for partition in ends if partition in known},
            **connection.firsts(fresh),
        }
        for partition, offset in begin.items():
            if ends[partition] < offset:
                losses.add(f"{partition} ends at offset {ends[partition]} now, the query had come to {offset}")
        _warn(losses)
        target = self._target if self._target is not None else ends
        return ids, begin, {p: max(begin[p], min(end, target.get(p, begin[p]))) for p, end in ends.items()}

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._ends is None else self._ends.encode()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        from_, to, losses = StreamOffset.decode(start), StreamOffset.decode(end), self._losses()
        connection = self._connection()
        topics = connection.topics(self.options.topics)
        check_topics(to, {name: topic.id for name, (topic, _) in topics.items()}, losses)
        ranges = stream_ranges(from_, to, connection.firsts(_partitions(topics)), losses)
        _warn(losses)
        return self._tasks(ranges)

    def commit(self, end: dict[str, Any]) -> None:
        self._commit(StreamOffset.decode(end))

    def _commit(self, at: StreamOffset) -> None:
        """Tells the group how far the query has come. Only for those who look: the checkpoint is what counts."""
        group = self.options.group_id
        if not group or self._committed == at:
            return
        try:
            self._connection().commit(group, dict(at))
            self._committed = at
        except KafkaError as error:
            if error.code is ErrorCode.NON_EMPTY_GROUP:
                raise InvalidOption(
                    f"groupId {group} has members that read on their own: give the query its own"
                ) from None
            log.warning("the offsets of group %s were not stored: %s", group, error)
