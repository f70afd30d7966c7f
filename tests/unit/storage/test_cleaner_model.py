"""Compaction against a plain model, and with the plug pulled at every step of it."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.unit.storage.compaction_logs import (
    FOLDER,
    append,
    compact,
    contents,
    headers,
    open_compacted,
    records,
    table,
)

from headrace.records.compression import Codec
from headrace.records.record import Record
from headrace.storage.compaction import plan
from headrace.storage.memory_files import Crash, MemoryFiles
from headrace.storage.recovery import Known

KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
VALUES = st.one_of(st.none(), st.binary(max_size=60))
DELETE_RETENTION_MS = 1000


class CompactedLog(RuleBasedStateMachine):
    """A log and a list of everything that was ever appended to it."""

    @initialize(capacity=st.sampled_from([3, 1000]))
    def begin(self, capacity: int) -> None:
        self.files = MemoryFiles()
        self.log = open_compacted(self.files)
        self.capacity = capacity
        self.now = 10_000
        self.clean_offset = 0
        self.sequences: dict[int, int] = {}
        self.appended: list[Record] = []
        self.first_seen: dict[int, int] = {}
        """When a cleaning first met each tombstone."""

    @rule(
        pairs=st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=4),
        codec=st.sampled_from(list(Codec)),
        producer=st.sampled_from([None, 1, 2]),
    )
    def append(self, pairs: list[tuple[bytes, bytes | None]], codec: Codec, producer: int | None) -> None:
        fields: dict[str, Any] = {"codec": codec}
        if producer is not None:
            sequence = self.sequences.get(producer, 0)
            fields |= {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
            self.sequences[producer] = sequence + len(pairs)
        first = append(self.log, pairs, self.now, **fields)
        self.appended += [Record(first + at, self.now, key, value) for at, (key, value) in enumerate(pairs)]

    @rule(elapsed=st.sampled_from([1, 400, 2000]))
    def wait(self, elapsed: int) -> None:
        self.now += elapsed

    @rule()
    def clean(self) -> None:
        end = plan(self.log, self.clean_offset, upto=self.log.log_end_offset, now_ms=self.now).end_offset
        done = compact(self.log, self.clean_offset, self.now, self.capacity)
        self.clean_offset = done.next_dirty_offset
        assert self.clean_offset <= max(end, 0)
        for record in self.appended:
            if record.value is None and record.offset < self.clean_offset:
                self.first_seen.setdefault(record.offset, self.now)
        below = [record.key for record in records(self.log) if record.offset < self.clean_offset]
        assert len(below) == len(set(below)), "two records of a key in the clean part"
        assert [record for record in records(self.log) if record.offset >= self.clean_offset] == [
            record for record in self.appended if record.offset >= self.clean_offset
        ]

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        self.log.close()
        known = Known(self.log.recovery_point, self.log.log_start_offset, clean)
        self.log = open_compacted(self.files, known)

    @rule()
    def send_again(self) -> None:
        """Each producer repeats its last batch: it is still known as a duplicate."""
        for producer, sequence in self.sequences.items():
            last = max((b for b in headers(self.log) if b.producer_id == producer), key=lambda b: b.last_offset)
            assert last.last_sequence == sequence - 1

    @invariant()
    def nothing_is_lost(self) -> None:
        found = records(self.log)
        by_offset = {record.offset: record for record in self.appended}
        assert all(by_offset[record.offset] == record for record in found), "a record was changed"
        assert table(found) == table(self.appended)
        there = {record.offset for record in found}
        for record in {record.key: record for record in self.appended}.values():
            if record.offset not in there:
                assert record.value is None
                assert self.now >= self.first_seen[record.offset] + DELETE_RETENTION_MS
        assert self.log.log_end_offset == len(self.appended)

    @invariant()
    def every_offset_can_be_read_from(self) -> None:
        log = self.log
        for offset in range(log.log_start_offset, log.log_end_offset):
            expected = next((b for b in headers(log) if b.last_offset >= offset), None)
            read = log.read(offset, 1, upto=log.log_end_offset)
            assert read.size == (0 if expected is None else expected.size)


TestCompactedLog = CompactedLog.TestCase
TestCompactedLog.settings = settings(max_examples=60, stateful_step_count=25)


def filled(files: MemoryFiles) -> None:
    """A log whose cleaning has several groups to replace, some of which leave nothing."""
    log = open_compacted(files)
    for number in range(50):
        append(log, [(b"%d" % (number % 4), None if number % 9 == 8 else b"x" * 50)], number + 1)
    log.flush()
    files.sync_dir("/logs")
    files.sync_dir("/")


def changes_of_a_cleaning() -> list[tuple[str, str]]:
    files = MemoryFiles()
    filled(files)
    log = open_compacted(files)
    seen: list[tuple[str, str]] = []
    files.before = lambda operation, path: seen.append((operation, path))
    compact(log, now_ms=100)
    return seen


def crash_at(step: int) -> MemoryFiles:
    """The files as they are when the machine stops at change number `step` of a cleaning."""
    files = MemoryFiles()
    filled(files)
    log = open_compacted(files)
    count = 0

    def stop(_operation: str, _path: str) -> None:
        nonlocal count
        count += 1
        if count > step:
            raise Crash

    files.before = stop
    try:
        compact(log, now_ms=100)
    except Crash:
        return files
    raise AssertionError(f"the cleaning ended before change {step}")


def check_after_crash(files: MemoryFiles, before: list[tuple[int, bytes | None, bytes | None]]) -> None:
    log = open_compacted(files, Known(50, 0))
    after = contents(log)
    assert set(after) <= set(before)
    last = {key: (offset, key, value) for offset, key, value in before}
    assert set(last.values()) <= set(after), "the last record of a key is gone"
    assert (log.log_start_offset, log.log_end_offset) == (0, 50)
    for segment in log.segments:
        if segment is not log.segments.active:
            segment.check_indexes()
    compact(log, now_ms=200)
    assert set(last.values()) <= set(contents(log))
    assert not [name for name in files.scan(FOLDER) if name.endswith((".cleaned", ".swap"))]


def test_a_crash_at_every_change_of_a_cleaning_loses_nothing() -> None:
    whole = MemoryFiles()
    filled(whole)
    before = contents(open_compacted(whole))
    steps = changes_of_a_cleaning()
    assert len({path for operation, path in steps if operation == "rename"}) > 20
    for step in range(len(steps)):
        killed = crash_at(step)
        killed.before = None
        check_after_crash(killed, before)
        for seed in (None, 1, 2):
            files = crash_at(step)
            files.crash(None if seed is None else Random(1000 * step + seed))
            check_after_crash(files, before)
