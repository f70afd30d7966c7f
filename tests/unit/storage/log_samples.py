"""Batches and logs for the storage tests."""

from __future__ import annotations

from typing import Any

from headrace.records.batch import Batch, batches
from headrace.records.record import Record, build
from headrace.storage.config import LogConfig
from headrace.storage.log import Log
from headrace.storage.log_dirs import LogDirs
from headrace.storage.memory_files import MemoryFiles
from headrace.storage.recovery import Known, open_log

FOLDER = "/data/orders-0"
NOW = 1_700_000_000_000


def batch(
    count: int = 1, *, timestamp: int = NOW, value: bytes = b"v" * 20, key: bytes | None = b"k", **fields: Any
) -> memoryview:
    """A batch as a producer sends it: offsets from 0, timestamps a millisecond apart."""
    return memoryview(build([Record(i, timestamp + i, key, value) for i in range(count)], **fields))


def idempotent(sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0, **fields: Any) -> memoryview:
    return batch(count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, **fields)


def make_log(files: MemoryFiles | None = None, known: Known | None = None, **config: object) -> Log:
    overrides = {name.replace("_", "."): value for name, value in config.items()}
    return open_log(files if files is not None else MemoryFiles(), FOLDER, LogConfig.of(overrides), known)


def reopen(log: Log, *, clean: bool = False) -> Log:
    """The log as the next process finds it: killed, or closed."""
    if clean:
        log.close()
    known = Known(log.recovery_point, log.log_start_offset, clean)
    return open_log(log.files, log.folder, log.config, known)


def fill(log: Log, batches_: int, *, count: int = 1, epoch: int = 0, start: int = NOW, step: int = 10) -> None:
    for number in range(batches_):
        log.append_as_leader(batch(count, timestamp=start + number * step), epoch, start + number * step)


def content(log: Log, offset: int | None = None, upto: int | None = None, max_bytes: int = 1 << 30) -> list[Batch]:
    end = log.log_end_offset if upto is None else upto
    return batches(log.read(log.log_start_offset if offset is None else offset, max_bytes, upto=end).read())


def offsets(log: Log) -> list[int]:
    """Every offset that can be read."""
    return [o for b in content(log) for o in range(max(b.base_offset, log.log_start_offset), b.next_offset)]


def remove_deleted(of: Log | LogDirs, now_ms: int) -> None:
    """What a broker's worker does with what is due."""
    for removal in of.begin_removals(now_ms):
        (removal[1] if isinstance(removal, tuple) else removal)()
