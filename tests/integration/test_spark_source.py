"""The Spark source against a real cluster, without Spark: its readers and writers are called as Spark calls them.

What needs a JVM is in test_spark_sql.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, StringType, StructField, StructType
from tests.integration.cluster import Cluster, wait_until

from headrace.client.sync import Admin, Producer
from headrace.client.types import TopicPartition
from headrace.config import InvalidConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.spark.connection import TopicMissing, connected
from headrace.spark.options import InvalidOption, write_options
from headrace.spark.planning import DataLost
from headrace.spark.sink import TaskWriter
from headrace.spark.source import HeadraceDataSource
from headrace.spark.writing import identity

Options = dict[str, str]
ROW = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])


@pytest.fixture(scope="module")
def servers(own_cluster: Cluster) -> str:
    return str(own_cluster.description["grpc"])


@pytest.fixture(scope="module")
def admin(servers: str) -> Iterator[Admin]:
    with Admin(bootstrap_servers=servers) as admin:
        yield admin


@pytest.fixture
def topic(admin: Admin) -> str:
    """A topic of two partitions with ten records in the first and five in the second."""
    name = f"spark-{uuid.uuid4().hex[:8]}"
    admin.create_topic(name, partitions=2, configs={"retention.ms": "-1"})  # the records are years old
    return name


Produce = Callable[..., None]


@pytest.fixture(scope="module")
def produce(servers: str) -> Iterator[Produce]:
    with Producer(bootstrap_servers=servers) as producer:

        def send(topic: str, partition: int, values: range, timestamp: int = 1_700_000_000_000) -> None:
            for n in values:
                producer.send_nowait(topic, b"%d" % n, key=b"k", partition=partition, timestamp=timestamp + n)
            producer.flush()

        yield send


def source(servers: str, **options: str) -> HeadraceDataSource:
    return HeadraceDataSource({"headrace.bootstrap.servers": servers, **options})


def batch_reader(servers: str, **options: str) -> Any:
    made = source(servers, **options)
    return made.reader(made.schema())


def stream_reader(servers: str, **options: str) -> Any:
    made = source(servers, **options)
    return made.streamReader(made.schema())


def rows(reader: Any, partitions: list[Any]) -> list[tuple[int, int, bytes]]:
    found = [row for each in partitions for batch in reader.read(each) for row in batch.to_pylist()]
    return sorted((row["partition"], row["offset"], row["value"]) for row in found)


def batch(servers: str, **options: str) -> list[tuple[int, int, bytes]]:
    reader = batch_reader(servers, **options)
    return rows(reader, reader.partitions())


def values_at(partition: int, values: range) -> list[tuple[int, int, bytes]]:
    return [(partition, n, b"%d" % n) for n in values]


# --- batch


def test_a_batch_reads_everything(servers: str, topic: str, produce: Produce) -> None:
    produce(topic, 0, range(10))
    produce(topic, 1, range(5))
    everything = values_at(0, range(10)) + values_at(1, range(5))
    assert batch(servers, subscribe=topic) == everything
    assert batch(servers, subscribePattern=f"{topic[:-1]}.") == everything
    assert batch(servers, assign=f'{{"{topic}":[1]}}') == values_at(1, range(5))
    assert batch(servers, subscribe=topic, minPartitions="6") == everything


def test_offsets_and_times_bound_a_batch(servers: str, topic: str, produce: Produce) -> None:
    produce(topic, 0, range(10))
    produce(topic, 1, range(5))
    offsets = {
        "startingOffsets": f'{{"{topic}":{{"0":3,"1":-2}}}}',
        "endingOffsets": f'{{"{topic}":{{"0":6,"1":-1}}}}',
    }
    assert batch(servers, subscribe=topic, **offsets) == values_at(0, range(3, 6)) + values_at(1, range(5))
    times = {"startingTimestamp": "1700000000003", "endingTimestamp": "1700000000005"}
    assert batch(servers, subscribe=topic, **times) == values_at(0, range(3, 5)) + values_at(1, range(3, 5))


def test_what_cannot_be_read_is_said_when_it_is_planned(servers: str, topic: str, produce: Produce) -> None:
    produce(topic, 0, range(3))
    with pytest.raises(TopicMissing, match="topic no-such-topic does not exist"):
        batch_reader(servers, subscribe="no-such-topic").partitions()
    with pytest.raises(TopicMissing, match="has the partitions 0 to 1, there is no 7"):
        batch_reader(servers, assign=f'{{"{topic}":[0,7]}}').partitions()
    far = f'{{"{topic}":{{"0":99,"1":0}}}}'
    with pytest.raises(DataLost, match=r"offset 99 of .*-0, which holds 0 to 3"):
        batch_reader(servers, subscribe=topic, startingOffsets=far).partitions()
    assert batch(servers, subscribe=topic, startingOffsets=far, failOnDataLoss="false") == []
    with pytest.raises(InvalidConfig, match="no record at 1800000000000 or later"):
        batch_reader(servers, subscribe=topic, startingTimestamp="1800000000000").partitions()


def test_what_retention_takes_while_a_task_reads_is_a_loss(
    servers: str, topic: str, produce: Produce, admin: Admin
) -> None:
    produce(topic, 0, range(10))
    for fail in ("true", "false"):
        reader = batch_reader(servers, subscribe=topic, failOnDataLoss=fail, startingOffsets="earliest")
        planned = reader.partitions()
        if fail == "true":
            admin.delete_records({TopicPartition(topic, 0): 4})
            with pytest.raises(DataLost, match="holds the offsets 4 to 10 now, 0 was to be read"):
                rows(reader, planned)
        else:
            admin.delete_records({TopicPartition(topic, 0): 6})
            assert rows(reader, planned) == values_at(0, range(6, 10))


# --- stream


def test_micro_batches_keep_to_their_limit_and_lose_nothing(servers: str, topic: str, produce: Produce) -> None:
    produce(topic, 0, range(10))
    produce(topic, 1, range(5))
    reader = stream_reader(servers, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="6")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(6)
    reader.prepareForTriggerAvailableNow()
    produce(topic, 0, range(10, 12))
    at, found, sizes = reader.initialOffset(), [], []
    while (end := reader.latestOffset(at, limit)) != at:
        part = rows(reader, reader.partitions(at, end))
        found += part
        sizes.append(len(part))
        at = end
    assert sizes == [6, 6, 3]
    assert sorted(found) == values_at(0, range(10)) + values_at(1, range(5))


def test_finished_micro_batches_show_in_the_group(servers: str, topic: str, produce: Produce, admin: Admin) -> None:
    group = f"g-{topic}"
    produce(topic, 0, range(4))
    reader = stream_reader(servers, subscribe=topic, startingOffsets="earliest", groupId=group)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert admin.list_group_offsets(group)[TopicPartition(topic, 0)].offset == 0
    reader.prepareForTriggerAvailableNow()
    reader.latestOffset(end, ReadAllAvailable())
    assert admin.list_group_offsets(group)[TopicPartition(topic, 0)].offset == 4


def test_new_partitions_are_read_from_their_beginning(servers: str, topic: str, produce: Produce, admin: Admin) -> None:
    reader = stream_reader(servers, subscribe=topic)
    start = reader.initialOffset()
    admin.create_partitions(topic, 3)
    produce(topic, 2, range(2))

    def news() -> list[tuple[int, int, bytes]]:
        return rows(reader, reader.partitions(start, reader.latestOffset(start, ReadAllAvailable())))

    # Asked again, as Spark does: a reader may hear of a new partition late.
    assert wait_until(news, "the new partition is read") == values_at(2, range(2))


def test_a_recreated_topic_is_named(servers: str, topic: str, produce: Produce, admin: Admin) -> None:
    produce(topic, 0, range(4))
    strict = stream_reader(servers, subscribe=topic, startingOffsets="earliest")
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    admin.delete_topics([topic])
    admin.create_topic(topic, partitions=2)
    produce(topic, 0, range(100, 103))
    for call in (lambda: strict.latestOffset(end, ReadAllAvailable()), lambda: strict.partitions(start, end)):
        with pytest.raises(DataLost, match=f"topic {topic} was deleted and created again"):
            call()
    lenient = stream_reader(servers, subscribe=topic, startingOffsets="earliest", failOnDataLoss="false")
    fresh = lenient.latestOffset(end, ReadAllAvailable())
    assert [value for _, _, value in rows(lenient, lenient.partitions(end, fresh))] == [b"100", b"101", b"102"]


def test_a_micro_batch_whose_records_are_gone_keeps_its_tasks(
    servers: str, topic: str, produce: Produce, admin: Admin
) -> None:
    """A sink knows rows by the number of their task: without the lost range the other would have another number."""
    produce(topic, 0, range(4))
    produce(topic, 1, range(3))
    strict, lenient = (
        stream_reader(servers, subscribe=topic, startingOffsets="earliest", failOnDataLoss=fail)
        for fail in ("true", "false")
    )
    start = lenient.initialOffset()
    end = lenient.latestOffset(start, ReadAllAvailable())
    before = [each.task.range for each in lenient.partitions(start, end)]
    produce(topic, 0, range(4, 6))
    admin.delete_records({TopicPartition(topic, 0): 5})
    planned = lenient.partitions(start, end)
    assert [each.task.range for each in planned] == before
    assert [rows(lenient, [each]) for each in planned] == [[], values_at(1, range(3))]
    with pytest.raises(DataLost, match=f"{topic}-0 begins at offset 5 now, the query had come to 0"):
        strict.partitions(start, end)


def test_a_micro_batch_of_a_topic_that_was_recreated_is_left_out_when_loss_is_allowed(
    servers: str, topic: str, produce: Produce, admin: Admin
) -> None:
    produce(topic, 0, range(4))
    options = {"failOnDataLoss": "false", "headrace.default.api.timeout.ms": "1500"}
    reader = stream_reader(servers, subscribe=topic, startingOffsets="earliest", **options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    admin.delete_topics([topic])
    admin.create_topic(topic, partitions=2)
    produce(topic, 0, range(100, 103))
    assert rows(reader, reader.partitions(start, end)) == [], "nothing of the new topic stands for the old one"


# --- write


def arrow(values: range) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pydict({"key": [b"k%d" % n for n in values], "value": [b"%d" % n for n in values]})]


def attempt(servers: str, topic: str, batch_id: int, values: range, **options: str) -> Any:
    """One attempt of task 0 of a micro-batch of the query `q-<topic>`."""
    given = {"headrace.bootstrap.servers": servers, "topic": topic, **options}
    parsed = write_options(given)
    connection = connected(parsed.servers, parsed.client, producing=True)
    writer = TaskWriter(connection, parsed, identity(f"q-{topic}", batch_id, 0), 0)
    return writer.write(iter(arrow(values)))


def test_a_repeated_micro_batch_writes_nothing_twice(servers: str, topic: str) -> None:
    first = attempt(servers, topic, 0, range(50))
    again = attempt(servers, topic, 0, range(49, -1, -1))
    assert (first.skipped, again.skipped) == (0, 50)
    attempt(servers, topic, 1, range(50, 60))
    assert sorted(int(value) for _, _, value in batch(servers, subscribe=topic)) == list(range(60))


def test_an_attempt_that_died_half_way_is_completed_whatever_the_order(servers: str, topic: str) -> None:
    small = {"headrace.batch.size": "200"}
    attempt(servers, topic, 3, range(20), **small)
    done = attempt(servers, topic, 3, range(39, -1, -1), **small)
    assert (done.rows, done.skipped) == (40, 20)
    assert sorted(int(value) for _, _, value in batch(servers, subscribe=topic)) == list(range(40))


def test_rows_that_the_source_lost_since_the_first_attempt_are_refused_unless_told(servers: str, topic: str) -> None:
    attempt(servers, topic, 3, range(20))
    with pytest.raises(KafkaError, match="set failOnChangedRows to false until this micro-batch is done"):
        attempt(servers, topic, 3, range(10, 40))
    for _ in range(2):
        attempt(servers, topic, 3, range(10, 40), failOnChangedRows="false")
    assert sorted(int(value) for _, _, value in batch(servers, subscribe=topic)) == list(range(40))


def test_an_attempt_of_an_older_micro_batch_is_fenced(servers: str, topic: str) -> None:
    attempt(servers, topic, 6, range(10))
    with pytest.raises(KafkaError) as raised:
        attempt(servers, topic, 5, range(10))
    assert raised.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert len(batch(servers, subscribe=topic)) == 10


def test_what_cannot_be_written_is_said_when_it_is_planned(servers: str, topic: str) -> None:
    def writer(schema: StructType, **options: str) -> Any:
        return source(servers, **options).writer(schema, overwrite=False)

    with pytest.raises(InvalidOption, match="where to"):
        writer(ROW)
    with pytest.raises(TopicMissing, match="topic no-such-topic does not exist"):
        writer(ROW, topic="no-such-topic")
    with pytest.raises(InvalidOption, match="a column value is missing"):
        writer(StructType([StructField("key", BinaryType())]), topic=topic)
    with pytest.raises(InvalidOption, match="column extra cannot be written"):
        writer(StructType([*ROW.fields, StructField("extra", StringType())]), topic=topic)
    with pytest.raises(InvalidOption, match="can only be appended to"):
        source(servers, topic=topic).writer(ROW, overwrite=True)
