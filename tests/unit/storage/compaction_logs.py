"""Small compacted logs in memory, for the tests of the cleaner: how one is made, filled, cleaned and read back."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, TypeVar

from headrace.records.batch import Batch, batches
from headrace.records.record import ControlType, Marker, Record, build, build_marker, check_deep, iter_records
from headrace.storage.cleaner import Cleaned, clean
from headrace.storage.compaction import plan
from headrace.storage.config import LogConfig
from headrace.storage.log import Log
from headrace.storage.memory_files import MemoryFiles
from headrace.storage.offset_map import BYTES_PER_ENTRY, OffsetMap
from headrace.storage.recovery import Known, open_log

FOLDER = "/logs/compacted-0"
T = TypeVar("T")

Pair = tuple[bytes | None, bytes | None]


def config(**overrides: Any) -> LogConfig:
    """Compacted, with segments of a few batches."""
    names = {
        "cleanup.policy": "compact",
        "segment.bytes": 400,
        "index.interval.bytes": 100,
        "delete.retention.ms": 1000,
    }
    names |= {name.replace("_", "."): value for name, value in overrides.items()}
    return LogConfig.of(names)


def open_compacted(files: MemoryFiles, known: Known | None = None, **overrides: Any) -> Log:
    return open_log(files, FOLDER, config(**overrides), known)


def append(log: Log, pairs: Iterable[Pair], now_ms: int = 1, **batch: Any) -> int:
    """Append one batch; its first offset."""
    records = [Record(at, now_ms, key, value) for at, (key, value) in enumerate(pairs)]
    buf = memoryview(build(records, **batch))
    return log.append_as_leader(buf, 0, now_ms).first_offset


def end_transaction(log: Log, producer_id: int, kind: ControlType, now_ms: int = 1) -> int:
    marker = build_marker(Marker(kind, 0), producer_id=producer_id, producer_epoch=0, timestamp=now_ms)
    return log.append_as_leader(memoryview(marker), 0, now_ms, from_client=False).first_offset


def drain(steps: Generator[int, None, T]) -> T:
    """Run a cleaning to its end."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


def compact(log: Log, clean_offset: int = 0, now_ms: int = 1, capacity: int = 10_000, **options: Any) -> Cleaned:
    what = plan(log, clean_offset, upto=log.log_end_offset, now_ms=now_ms)
    return drain(clean(log, what, OffsetMap(capacity * BYTES_PER_ENTRY, 1.0), now_ms=now_ms, **options))


def headers(log: Log) -> list[Batch]:
    return [batch for _, batch in _raw(log)]


def records(log: Log, *, control: bool = False) -> list[Record]:
    """Every record in the log, from its bytes; each batch is validated on the way."""
    found = []
    for buf, batch in _raw(log):
        check_deep(buf, batch, dense=False)
        if control or not batch.is_control:
            found += iter_records(buf, batch)
    return found


def _raw(log: Log) -> list[tuple[bytes, Batch]]:
    found = []
    for segment in log.segments:
        buf = segment.log.pread(segment.size, 0)
        found += [(buf, batch) for batch in batches(buf)]
    return found


def contents(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in records(log)]


def table(found: Iterable[Record]) -> dict[bytes, bytes]:
    """What a consumer that reads everything knows in the end."""
    known: dict[bytes, bytes] = {}
    for record in found:
        assert record.key is not None
        if record.value is None:
            known.pop(record.key, None)
        else:
            known[record.key] = record.value
    return known
