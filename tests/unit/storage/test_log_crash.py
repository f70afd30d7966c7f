"""The plug is pulled at every single change of the disk that a roll, a deletion, a swap, a truncation or a stop makes.

After each the log is opened again: what had been flushed is there, what is there is what was written, and it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from tests.unit.storage.log_samples import FOLDER, NOW, batch, fill, make_log, offsets, remove_deleted

from headrace.records.batch import batches, valid_crc
from headrace.storage.log import Log
from headrace.storage.memory_files import Crash, MemoryFiles
from headrace.storage.recovery import Known
from headrace.storage.segment import CLEANED, Segment

CONFIG = {"segment_bytes": 300, "index_interval_bytes": 100, "retention_ms": 1000, "file_delete_delay_ms": 10}


def append_until_rolled(log: Log) -> None:
    count = len(log.segments)
    while len(log.segments) == count:
        log.append_as_leader(batch(), 1, NOW)


def retain(log: Log) -> None:
    log.retain(NOW + 1065)
    remove_deleted(log, NOW + 2000)


def retain_everything(log: Log) -> None:
    log.retain(NOW + 100_000)
    remove_deleted(log, NOW + 200_000)


def truncate(log: Log) -> None:
    log.truncate_to(4)


def truncate_fully(log: Log) -> None:
    log.truncate_fully(50)


def close(log: Log) -> None:
    log.close()


def swap(log: Log) -> None:
    """Put one segment in the place of the first two, as the cleaner does; here with every batch kept."""
    old = list(log.segments)[:2]
    new = Segment(log.files, log.folder, old[0].base_offset, log.limits, size=None, suffix=CLEANED)
    for segment in old:
        for header in segment.headers():
            position = new.size
            new.append(segment.read_batch(header))
            new.note(position, header.size, header.last_offset, header.max_timestamp)
    log.replace_segments([new], old, NOW)
    remove_deleted(log, NOW + 10)


CHANGES = [append_until_rolled, retain, retain_everything, truncate, truncate_fully, close, swap]
LOSES_FROM = {truncate: 4, truncate_fully: 0}
"""Where a change itself takes away the end of the log."""
DROPS_BELOW = {retain: 6, retain_everything: 12}
"""Where a change itself takes away the beginning."""


def prepared() -> tuple[MemoryFiles, Log]:
    files = MemoryFiles()
    log = make_log(files, **CONFIG)
    fill(log, 11, epoch=1)
    log.flush()
    fill(log, 1, epoch=1)
    return files, log


class Plug:
    """Pulls the plug at change number `at`, and counts them."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def __call__(self, operation: str, path: str) -> None:
        self.count += 1
        if self.count == self.at:
            raise Crash


def changes_of(change: Callable[[Log], None]) -> int:
    files, log = prepared()
    files.before = plug = Plug(-1)
    change(log)
    return plug.count


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_crash_at_every_step_loses_nothing_that_was_durable(change: Callable[[Log], None]) -> None:
    steps = changes_of(change)
    assert steps > 2
    for at in range(1, steps + 1):
        # Everything written survives (a killed process), only what was synced does, or some of it.
        for seed in ("kill", None, 0, 1):
            files, log = prepared()
            original = files.read(f"{FOLDER}/{log.segments.first.log.path.rsplit('/', 1)[1]}")
            files.before = Plug(at)
            with pytest.raises(Crash):
                change(log)
            if seed == "kill":
                files.before = None
            else:
                files.crash(None if seed is None else Random(seed))
            check_reopened(files, log, change, f"step {at} of {change.__name__}, {seed=}", original)


def check_reopened(
    files: MemoryFiles, log: Log, change: Callable[[Log], None], where: str, first_segment: bytes
) -> None:
    again = make_log(files, Known(recovery_point=11), **CONFIG)
    found = offsets(again)
    durable = min(11, LOSES_FROM.get(change, 11))
    begin = again.log_start_offset
    assert begin <= DROPS_BELOW.get(change, 0) or (change is truncate_fully and begin in (0, 50)), where
    if change is not truncate_fully:
        assert again.log_end_offset >= durable, where
    assert found == list(range(begin, again.log_end_offset)), where
    data = again.read(begin, 1 << 20, upto=again.log_end_offset).read()
    assert all(valid_crc(data, part) for part in batches(data)), where
    if begin == 0 and again.log_end_offset >= 3:
        assert data.startswith(first_segment), where
    leftovers = [name for name in files.scan(FOLDER) if name.endswith((".deleted", ".cleaned", ".swap", ".tmp"))]
    assert leftovers == [], where
    end = again.log_end_offset
    again.append_as_leader(batch(2), 9, NOW)
    again.flush()
    files.crash()
    last = make_log(files, Known(recovery_point=again.recovery_point, log_start_offset=begin), **CONFIG)
    assert offsets(last) == [*found, end, end + 1], where
    assert last.epochs.epoch_at(end) == 9, where
