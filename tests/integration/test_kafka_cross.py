"""Byte compatibility, both ways: Kafka's own dump tool over our files, and our code over a Kafka broker's files."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.integration.java import Broker, kafka_broker, require_kafka, run_java
from tests.unit.storage.compaction_logs import drain

from headrace.records.batch import Batch, batches
from headrace.records.compression import Codec
from headrace.records.record import ControlType, Marker, Record, build, build_marker, iter_records
from headrace.storage.checkpoint import RECOVERY_POINT, read_offsets
from headrace.storage.cleaner import clean
from headrace.storage.compaction import plan
from headrace.storage.config import LogConfig
from headrace.storage.dump import dump
from headrace.storage.files import OsFiles
from headrace.storage.log import Log
from headrace.storage.offset_map import OffsetMap
from headrace.storage.recovery import Known, open_log

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]
DUMP = "org.apache.kafka.tools.DumpLogSegments"
NOW = 1_700_000_000_000
PARTITIONS = ("plain-0", "compacted-0")
SUFFIXES = (".log", ".index", ".timeindex", ".snapshot")


@pytest.fixture(autouse=True)
def _kafka() -> None:
    require_kafka()


def dumpable(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)


def our_dump(files: list[Path], **options: bool) -> list[str]:
    """Our lines for these files; none of them tells of damage."""
    found = [line for path in files for line in dump(OsFiles(), str(path), **options)]
    assert [line.text for line in found if line.fault] == []
    return [line.text for line in found]


def kafka_dump(files: list[Path], *options: str) -> list[str]:
    ran = run_java(DUMP, *options, "--files", ",".join(map(str, files)))
    assert ran.status == 0, ran.stderr
    for complaint in ("Mismatches", "mismatch", "out of order", "not found", "Exception", "failed"):
        assert complaint not in ran.stderr
    return ran.stdout.splitlines()


def without_gaps(lines: list[str]) -> list[str]:
    """Kafka tells of gaps between offsets on its other stream."""
    return [line for line in lines if not line.startswith(("Non-consecutive", "  "))]


def assert_same_dump(files: list[Path]) -> list[str]:
    ours = our_dump(files, print_data=True)
    assert without_gaps(ours) == kafka_dump(files, "--deep-iteration", "--print-data-log")
    indexes = [path for path in files if path.suffix in (".index", ".timeindex")]
    assert our_dump(indexes, sanity_check=True) == kafka_dump(indexes, "--index-sanity-check")
    return ours


# -- ours, read by Kafka ---------------------------------------------------------------------------------------------


def our_log(folder: Path, **overrides: Any) -> Log:
    """A log of several segments with batches of every kind."""
    names = {"segment.bytes": 3000, "index.interval.bytes": 300, "delete.retention.ms": 1000}
    names |= {name.replace("_", "."): value for name, value in overrides.items()}
    log = open_log(OsFiles(), str(folder), LogConfig.of(names))
    for number in range(60):
        records = [
            Record(at, NOW + 10 * number + at, b"key-%d" % (number % 7 + at), b"value %d" % number * 5, headers)
            for at, headers in enumerate([(), (("h", b"1"), ("none", None)), (("é", b""),)])
        ]
        if number % 8 == 5:
            records.append(Record(3, NOW + 10 * number, b"key-%d" % (number % 7), None))
        fields: dict[str, Any] = {"codec": list(Codec)[number % 5]}
        if number % 3 == 0:
            sequence = sum(3 + (n % 8 == 5) for n in range(0, number, 3))
            fields |= {"producer_id": 42, "producer_epoch": 1, "base_sequence": sequence, "transactional": True}
        log.append_as_leader(memoryview(build(records, **fields)), number // 20, NOW + 10 * number)
        if number % 6 == 3:
            kind = ControlType.ABORT if number % 12 == 3 else ControlType.COMMIT
            marker = build_marker(Marker(kind, 5), producer_id=42, producer_epoch=1, timestamp=NOW + 10 * number)
            log.append_as_leader(memoryview(marker), number // 20, NOW + 10 * number, from_client=False)
    assert len(log.segments) > 3
    return log


def test_kafka_reads_what_we_write(tmp_path: Path) -> None:
    files = []
    for number, timestamp_type in enumerate(("CreateTime", "LogAppendTime")):
        log = our_log(tmp_path / f"ours-{number}", message_timestamp_type=timestamp_type)
        log.close()
        files += dumpable(tmp_path / f"ours-{number}")
    assert {path.suffix for path in files} == set(SUFFIXES)
    lines = assert_same_dump(files)
    for codec in Codec:
        assert any(f"compresscodec: {codec.name.lower()} " in line for line in lines)
    assert any("endTxnMarker: ABORT coordinatorEpoch: 5" in line for line in lines)
    assert any(line.startswith("producerId: 42 ") for line in lines)
    assert any(" LogAppendTime: " in line for line in lines)


def test_kafka_reads_what_we_compacted(tmp_path: Path) -> None:
    log = our_log(tmp_path / "ours-0", cleanup_policy="compact")
    before = log.size
    for now in (NOW, NOW + 500):
        drain(clean(log, plan(log, 0, upto=log.log_end_offset, now_ms=now), OffsetMap(), now_ms=now))
    for remove in log.begin_removals(NOW + 10**9):
        remove()
    log.close()
    assert log.size < before / 2
    files = dumpable(tmp_path / "ours-0")
    lines = assert_same_dump(files)
    assert any("OptionalLong[" in line and line.startswith("baseOffset") for line in lines), "a delete horizon"


# -- Kafka's, read by us ---------------------------------------------------------------------------------------------


def await_condition(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain: {what}"
        time.sleep(0.1)


def produce(broker: Broker, topic: str, count: int, **config: Any) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 50, **config})
    for number in range(count):
        producer.produce(topic, b"value %d" % number * 10, b"key-%d" % (number % 5), headers={"h": b"x"})
    assert producer.flush(30) == 0


def produce_in_transactions(broker: Broker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "tests"})
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for number in range(10):
            producer.produce(topic, b"transactional", b"key-%d" % number)
        assert producer.flush(30) == 0
        end(30)


@pytest.fixture(scope="module")
def kafka_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log dir of a broker that took every codec, transactions and a compaction, and was stopped cleanly."""
    require_kafka()
    with kafka_broker(tmp_path_factory.mktemp("kafka"), log_cleaner_backoff_ms=200) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        compacted = {"cleanup.policy": "compact", "segment.ms": "300", "min.cleanable.dirty.ratio": "0.01"}
        topics = [
            NewTopic("plain", 1, 1, config={"index.interval.bytes": "1000"}),
            NewTopic("compacted", 1, 1, config=compacted),
        ]
        for created in admin.create_topics(topics).values():
            created.result(30)
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            idempotent = codec == "zstd"
            options = {"compression.type": codec, "batch.num.messages": 20, "enable.idempotence": idempotent}
            produce(broker, "plain", 100, **options)
        produce_in_transactions(broker, "plain")
        produce(broker, "compacted", 200, **{"batch.num.messages": 10})
        # Written after a pass, when its files have their names; until then the cleaned segment is away for a moment.
        checkpoint = broker.log_dir / "cleaner-offset-checkpoint"

        def cleaned() -> bool:
            # A segment rolls with the next append after segment.ms; only then is there something to clean.
            produce(broker, "compacted", 1)
            upto = re.search(r"^compacted 0 (\d+)$", checkpoint.read_text(), re.M) if checkpoint.exists() else None
            return upto is not None and int(upto[1]) >= 200

        await_condition(cleaned, "Kafka's cleaner")
    return broker.log_dir


def test_our_dump_of_kafkas_files_is_kafkas(kafka_logs: Path) -> None:
    folders = [kafka_logs / name for name in PARTITIONS]
    lines = assert_same_dump([path for folder in folders for path in dumpable(folder)])
    for codec in Codec:
        assert any(f"compresscodec: {codec.name.lower()} " in line for line in lines)
    assert any("endTxnMarker: ABORT" in line for line in lines)
    for folder in folders:
        assert our_dump([folder / "leader-epoch-checkpoint"])[1:] == ["epoch: 0 startOffset: 0"]


def in_files(folder: Path) -> list[tuple[Record, Batch]]:
    return [entry for path in sorted(folder.glob("*.log")) for entry in in_bytes(path.read_bytes())]


def in_bytes(data: bytes) -> list[tuple[Record, Batch]]:
    return [(record, batch) for batch in batches(data) for record in iter_records(data, batch)]


def test_our_log_opens_kafkas_files_reads_them_and_goes_on(kafka_logs: Path, tmp_path: Path) -> None:
    files = []
    recovery_points = read_offsets(OsFiles(), str(kafka_logs / RECOVERY_POINT))
    for name, clean_stop in product(PARTITIONS, (True, False)):
        folder = tmp_path / f"stopped-cleanly-{clean_stop}" / name
        shutil.copytree(kafka_logs / name, folder)
        topic, _, partition = name.rpartition("-")
        end = recovery_points[topic, int(partition)]
        written = in_files(folder)
        log = open_log(OsFiles(), str(folder), LogConfig.of({}), Known(end if clean_stop else 0, 0, clean_stop))
        assert (log.log_start_offset, log.log_end_offset, log.latest_epoch) == (0, end, 0)
        found = in_bytes(log.read(0, 1 << 24, upto=end).read())
        assert [record for record, _ in found] == [record for record, _ in written]
        if name == "plain-0":
            assert len([record for record, batch in found if not batch.is_control]) == 520
            assert log.producers.producers
        for record, _ in found[:: max(1, len(found) // 20)]:
            at = log.offset_for_timestamp(record.timestamp)
            assert at is not None
            assert at.timestamp >= record.timestamp
            assert at.offset <= record.offset
        more = memoryview(build([Record(0, record.timestamp, b"new", b"record")]))
        assert log.append_as_leader(more, 1, record.timestamp).first_offset == end
        log.close()
        files += dumpable(folder)
    assert_same_dump(files)
