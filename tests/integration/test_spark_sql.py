"""Spark itself on a local master: our source and sink, and Spark's own Kafka source, against a real cluster."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.cluster import Cluster
from tests.integration.spark_session import spark  # noqa: F401

from headrace.client.sync import Admin, Producer
from headrace.client.types import TopicPartition

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]
STREAM_SECONDS = 120


@pytest.fixture(scope="module")
def servers(own_cluster: Cluster) -> str:
    return str(own_cluster.description["grpc"])


@pytest.fixture(scope="module")
def admin(servers: str) -> Iterator[Admin]:
    with Admin(bootstrap_servers=servers) as admin:
        yield admin


@pytest.fixture(scope="module")
def orders(servers: str, admin: Admin) -> str:
    """A topic of two partitions with 200 records, which no test writes to."""
    topic = new_topic(admin)
    with Producer(bootstrap_servers=servers) as producer:
        for n in range(200):
            producer.send_nowait(topic, b"%d" % n, key=b"k%d" % (n % 5), partition=n % 2, headers=[("n", b"%d" % n)])
        producer.flush()
    return topic


def new_topic(admin: Admin) -> str:
    name = f"sql-{uuid.uuid4().hex[:8]}"
    admin.create_topic(name, partitions=2)
    return name


def ours(reader: Any, servers: str, topic: str, **options: str) -> Any:
    made = reader.format("headrace").option("headrace.bootstrap.servers", servers).option("subscribe", topic)
    return made.options(**options).load()


def theirs(reader: Any, bootstrap: str, topic: str) -> Any:
    made = reader.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    return made.option("startingOffsets", "earliest").load()


def run_once(rows: Any, sink: str, folder: Path, **options: str) -> Any:
    """Runs a stream over what is there now."""
    writer = rows.writeStream.format(sink).options(**options).option("checkpointLocation", str(folder))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(STREAM_SECONDS), "the stream did not end"
    return query


def test_both_sources_read_the_same(spark: Any, servers: str, bootstrap: str, orders: str) -> None:  # noqa: F811
    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    mine = ours(spark.read, servers, orders, includeHeaders="true")
    assert mine.columns == [*columns, "headers"]
    kafka = theirs(spark.read, bootstrap, orders)
    assert kafka.columns == columns
    assert sorted(mine.select(columns).collect()) == sorted(kafka.collect())
    assert mine.where("headers[0].value = value").count() == 200


def test_filters_are_pushed_down(spark: Any, servers: str, orders: str) -> None:  # noqa: F811
    rows = ours(spark.read, servers, orders, filterPushdown="true")
    some = rows.where("partition = 1 and offset >= 10 and offset < 13 and timestamp > '2020-01-01'")
    assert [row.offset for row in some.collect()] == [10, 11, 12]
    assert some.rdd.getNumPartitions() == 1


def test_errors_of_planning_reach_the_user(spark: Any, servers: str, orders: str) -> None:  # noqa: F811
    with pytest.raises(Exception, match=r"topic no-such-topic does not exist"):
        ours(spark.read, servers, "no-such-topic").count()
    with pytest.raises(Exception, match=r"unknown option startingoffset: did you mean startingOffsets\?"):
        ours(spark.read, servers, orders, startingOffset="earliest").count()


def test_a_stream_goes_through_and_a_repeated_micro_batch_writes_nothing_twice(
    spark: Any,  # noqa: F811
    servers: str,
    orders: str,
    admin: Admin,
    tmp_path: Path,
) -> None:
    target, group = new_topic(admin), f"g-{uuid.uuid4().hex[:8]}"
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "120", "groupId": group}
    sink = {"headrace.bootstrap.servers": servers, "topic": target}
    stream = ours(spark.readStream, servers, orders, **options).select("key", "value")
    run_once(stream, "headrace", tmp_path / "check", **sink)
    written = sorted(row.value for row in ours(spark.read, servers, target).select("value").collect())
    assert written == sorted(b"%d" % n for n in range(200))
    offsets = admin.list_group_offsets(group)
    assert [offsets[TopicPartition(orders, index)].offset for index in (0, 1)] == [100, 100]
    # As if the driver had died after writing the last micro-batch and before noting it.
    last = tmp_path / "check" / "commits" / "1"
    last.unlink()
    last.with_name(".1.crc").unlink(missing_ok=True)
    query = run_once(stream, "headrace", tmp_path / "check", **sink)
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == 80
    assert ours(spark.read, servers, target).count() == 200


def test_a_batch_is_written(spark: Any, servers: str, admin: Admin) -> None:  # noqa: F811
    target = new_topic(admin)
    rows = spark.range(20).selectExpr("cast(id as string) as key", "cast(id * 2 as string) as value")
    made = rows.write.format("headrace").option("headrace.bootstrap.servers", servers).option("topic", target)
    made.mode("append").save()
    found = ours(spark.read, servers, target).selectExpr("string(key)", "string(value)").collect()
    assert sorted((int(row.key), int(row.value)) for row in found) == [(n, 2 * n) for n in range(20)]


def test_sparks_own_kafka_source_streams(
    spark: Any,  # noqa: F811
    bootstrap: str,
    servers: str,
    orders: str,
    admin: Admin,
    tmp_path: Path,
) -> None:
    target = new_topic(admin)
    rows = theirs(spark.readStream, bootstrap, orders).select("key", "value")
    run_once(rows, "kafka", tmp_path / "check", **{"kafka.bootstrap.servers": bootstrap, "topic": target})
    written = sorted(row.value for row in ours(spark.read, servers, target).select("value").collect())
    assert written == sorted(b"%d" % n for n in range(200))
