"""The jobs on a local master against a real cluster: started as a user starts them, compared with what was sent."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs import compacted_snapshot, replay, topic_to_parquet, windowed_counts
from tests.integration.cluster import Cluster
from tests.integration.spark_session import spark  # noqa: F401

from headrace.client.sync import Admin, Producer

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]
NOON = 1_769_860_800_000
"""2026-01-31 12:00 UTC."""
JOBS = ("compacted_snapshot", "replay", "topic_to_parquet", "windowed_counts")


@pytest.fixture(scope="module")
def servers(own_cluster: Cluster) -> str:
    return str(own_cluster.description["grpc"])


@pytest.fixture(scope="module")
def admin(servers: str) -> Iterator[Admin]:
    with Admin(bootstrap_servers=servers) as admin:
        yield admin


def new_topic(admin: Admin, name: str) -> str:
    made = f"{name}-{uuid.uuid4().hex[:8]}"
    # Its records have times long past, which retention goes by.
    admin.create_topic(made, partitions=2, configs={"retention.ms": "-1"})
    return made


@pytest.fixture(scope="module")
def clicks(servers: str, admin: Admin) -> str:
    """300 records of three keys, one every ten seconds from noon on; the last of one key is a tombstone."""
    topic = new_topic(admin, "clicks")
    with Producer(bootstrap_servers=servers) as producer:
        for n in range(300):
            value = None if n == 299 else b"%d" % n
            producer.send_nowait(
                topic, value, key=b"page%d" % (n % 3), timestamp=NOON + n * 10_000, headers=[("n", b"h")]
            )
        producer.flush()
    return topic


def read(spark: Any, servers: str, topic: str) -> list[Any]:  # noqa: F811
    reader = spark.read.format("headrace").option("headrace.bootstrap.servers", servers).option("subscribe", topic)
    found: list[Any] = reader.option("includeHeaders", "true").load().collect()
    return found


def test_topic_to_parquet_holds_every_record_once_and_goes_on(
    spark: Any,  # noqa: F811
    servers: str,
    clicks: str,
    tmp_path: Path,
) -> None:
    line = ["--bootstrap-servers", servers, "--topic", clicks, "--output", str(tmp_path / "out"), "--by", "hour"]
    line += ["--checkpoint", str(tmp_path / "check"), "--max-offsets", "200"]
    topic_to_parquet.main(line)
    topic_to_parquet.main(line)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((row.partition, row.offset) for row in rows) == sorted(
        (row.partition, row.offset) for row in read(spark, servers, clicks)
    )
    assert len(rows) == 300
    assert (tmp_path / "out" / "date=2026-01-31" / "hour=12").is_dir()


def test_windowed_counts_are_those_of_the_records(
    spark: Any,  # noqa: F811
    servers: str,
    admin: Admin,
    clicks: str,
    tmp_path: Path,
) -> None:
    target = new_topic(admin, "counts")
    line = ["--bootstrap-servers", servers, "--topic", clicks, "--output-topic", target]
    windowed_counts.main([*line, "--window", "5 minutes", "--checkpoint", str(tmp_path / "check")])
    found = [json.loads(row.value) for row in read(spark, servers, target)]
    # The last record is of 12:49:50, so the watermark has not passed the window that ends at 12:50.
    expected = Counter((f"page{n % 3}", n // 30) for n in range(270))
    assert len(found) == len(expected)
    assert {(each["key"], each["start"]): each["count"] for each in found} == {
        (key, f"2026-01-31T12:{5 * window:02d}:00.000Z"): count for (key, window), count in expected.items()
    }


def test_replay_writes_the_records_of_a_time_range(
    spark: Any,  # noqa: F811
    servers: str,
    admin: Admin,
    clicks: str,
) -> None:
    target = new_topic(admin, "again")
    line = ["--bootstrap-servers", servers, "--topic", clicks, "--output-topic", target, "--keep-partitions"]
    replay.main([*line, "--from", "2026-01-31T12:10:00Z", "--to", "2026-01-31T12:20:00Z"])
    before = {row.value: row for row in read(spark, servers, clicks)}
    rows = read(spark, servers, target)
    assert sorted(int(row.value) for row in rows) == list(range(60, 120))
    assert all(before[row.value].key == row.key and before[row.value].partition == row.partition for row in rows)
    assert all(row.headers == before[row.value].headers for row in rows)


def test_compacted_snapshot_has_the_latest_value_of_every_key(
    spark: Any,  # noqa: F811
    servers: str,
    clicks: str,
    tmp_path: Path,
) -> None:
    line = ["--bootstrap-servers", servers, "--topic", clicks, "--output", str(tmp_path / "out")]
    compacted_snapshot.main(line)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert {bytes(row.key): bytes(row.value) for row in rows} == {b"page0": b"297", b"page1": b"298"}
    compacted_snapshot.main([*line, "--keep-deleted"])
    assert spark.read.parquet(str(tmp_path / "out")).count() == 3


@pytest.mark.parametrize("job", JOBS)
def test_help_has_examples(job: str) -> None:
    root = Path(__file__).resolve().parents[2]
    said = subprocess.run(
        [sys.executable, f"jobs/{job}.py", "--help"], capture_output=True, text=True, cwd=root, timeout=60
    )
    assert said.returncode == 0, said.stderr
    assert f"{job} --bootstrap-servers" in said.stdout
