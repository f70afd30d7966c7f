"""Compaction: what stays, what goes and when; plans, checkpoints and what stops a cleaning."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.storage.compaction_logs import (
    FOLDER,
    append,
    compact,
    contents,
    drain,
    end_transaction,
    headers,
    open_compacted,
    records,
    table,
)

from headrace.records.compression import Codec
from headrace.records.record import ControlType
from headrace.storage.cleaner import CLEANER_OFFSETS, CleaningAborted, LogCleaner, clean
from headrace.storage.compaction import grouped, plan
from headrace.storage.log import Log
from headrace.storage.memory_files import MemoryFiles
from headrace.storage.offset_map import BYTES_PER_ENTRY, OffsetMap
from headrace.storage.recovery import Known

PARTITION = ("compacted", 0)


@pytest.fixture
def log() -> Log:
    return open_compacted(MemoryFiles())


def seal(log: Log, now_ms: int = 1) -> None:
    """Begin a new segment, so that everything before it may be cleaned."""
    before = log.segments.active
    while log.segments.active is before:
        append(log, [(b"filler", b"x" * 100)], now_ms)


def test_the_last_record_of_a_key_stays_at_its_offset(log: Log) -> None:
    append(log, [(b"a", b"1"), (b"b", b"1")])
    append(log, [(b"a", b"2")])
    append(log, [(b"c", b"1"), (b"a", b"3")])
    seal(log)
    end = log.log_end_offset
    compact(log)
    assert contents(log)[:3] == [(1, b"b", b"1"), (3, b"c", b"1"), (4, b"a", b"3")]
    assert log.log_end_offset == end


@pytest.mark.parametrize("codec", list(Codec))
def test_untouched_batches_keep_their_bytes_and_rebuilt_ones_their_fields(log: Log, codec: Codec) -> None:
    fields = {"codec": codec, "producer_id": 7, "producer_epoch": 3, "base_sequence": 10}
    append(log, [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")], 500, **fields)
    append(log, [(b"d", b"1")], 501, codec=codec)
    append(log, [(b"c", b"2")], 502, codec=codec)
    seal(log, 503)
    first, second, *_ = headers(log)
    compact(log)
    rebuilt, untouched, *_ = headers(log)
    assert untouched == second._replace(position=untouched.position)
    assert rebuilt.count == 2
    for field in (
        "base_offset",
        "last_offset",
        "codec",
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "leader_epoch",
    ):
        assert getattr(rebuilt, field) == getattr(first, field), field
    assert {record.timestamp for record in records(log) if record.offset <= 2} == {500}


def test_log_append_time_stays() -> None:
    log = open_compacted(MemoryFiles(), message_timestamp_type="LogAppendTime")
    append(log, [(b"a", b"1"), (b"b", b"1")], 100)
    append(log, [(b"a", b"2")], 200)
    seal(log, 300)
    compact(log)
    assert [record.timestamp for record in records(log)][:2] == [100, 200]
    assert all(batch.log_append_time for batch in headers(log))


def test_a_tombstone_goes_after_its_horizon_and_not_before(log: Log) -> None:
    append(log, [(b"a", b"1"), (b"b", b"1")])
    append(log, [(b"a", None)])
    seal(log)
    done = compact(log, now_ms=5000)
    assert contents(log)[:2] == [(1, b"b", b"1"), (2, b"a", None)]
    assert headers(log)[1].delete_horizon == 6000
    compact(log, now_ms=5999)
    assert contents(log)[1] == (2, b"a", None)
    assert headers(log)[1].delete_horizon == 6000
    compact(log, done.next_dirty_offset, now_ms=5999)
    assert contents(log)[1] == (2, b"a", None)
    compact(log, now_ms=6000)
    assert b"a" not in {key for _, key, _ in contents(log)}


def test_a_key_written_after_its_tombstone_stays(log: Log) -> None:
    append(log, [(b"a", b"1")])
    append(log, [(b"a", None)])
    append(log, [(b"a", b"2")])
    seal(log)
    compact(log)
    assert contents(log)[0] == (2, b"a", b"2")


def test_records_without_a_key_go(log: Log) -> None:
    log.update_config(open_compacted(MemoryFiles(), cleanup_policy="delete").config)
    append(log, [(None, b"1"), (b"a", b"1")])
    seal(log)
    compact(log)
    assert contents(log)[0] == (1, b"a", b"1")


def test_small_segments_are_merged_up_to_segment_bytes(log: Log) -> None:
    for number in range(40):
        append(log, [(b"%d" % (number % 3), b"x" * 100)])
    seal(log)
    before = len(log.segments)
    cleaned = compact(log)
    cleaned_twice = compact(log, cleaned.next_dirty_offset)
    assert len(log.segments) < before / 2
    assert max(segment.size for segment in log.segments) <= log.config.segment_bytes
    assert cleaned_twice.bytes_read < cleaned.bytes_read
    assert len(table(records(log))) == 4


def test_neighbours_are_grouped_by_size(log: Log) -> None:
    for _ in range(30):
        append(log, [(b"k", b"x" * 100)])
    groups = list(grouped(log.segments, 1000))
    assert [segment for group in groups for segment in group] == list(log.segments)
    assert all(sum(segment.size for segment in group) <= 1000 for group in groups)
    assert max(len(group) for group in groups) > 1


def test_output_that_does_not_fit_one_segment_becomes_two(log: Log) -> None:
    for number in range(20):
        append(log, [(b"%d" % number, b"x" * 30)])
    seal(log)
    before = table(records(log))
    compact(log, max_segment_bytes=150)
    assert table(records(log)) == before
    assert max(segment.size for segment in log.segments) <= 400
    assert all(log.read(offset, 1, upto=log.log_end_offset).size for offset in range(log.log_end_offset))


def test_indexes_of_a_cleaned_segment_lead_to_its_batches(log: Log) -> None:
    for number in range(30):
        append(log, [(b"%d" % (number % 7), b"x" * 40)], 1000 + number)
    seal(log, 2000)
    compact(log)
    for segment in log.segments:
        if segment is not log.segments.active:
            segment.check_indexes()
        for batch in segment.headers():
            assert segment.locate(batch.last_offset) == batch.position
    kept = records(log)
    for timestamp in range(1000, 1030):
        found = log.offset_for_timestamp(timestamp)
        expected = next(record for record in kept if record.timestamp >= timestamp)
        assert found is not None
        assert found.offset == expected.offset


def test_a_full_map_cleans_a_part_and_the_next_round_the_rest(log: Log) -> None:
    for number in range(20):
        append(log, [(b"%d" % (number % 10), b"%d" % number)])
    seal(log)
    clean_offset, rounds = 0, 0
    end = plan(log, 0, upto=log.log_end_offset, now_ms=1).end_offset
    while clean_offset < end:
        done = compact(log, clean_offset, capacity=4)
        assert done.next_dirty_offset > clean_offset
        clean_offset, rounds = done.next_dirty_offset, rounds + 1
    assert rounds > 1
    below = [record.key for record in records(log) if record.offset < end]
    assert len(below) == len(set(below))


# -- producers and transactions --------------------------------------------------------------------------------------


def test_the_last_batch_of_a_producer_stays_empty_and_still_refuses_duplicates() -> None:
    files = MemoryFiles()
    log = open_compacted(files)
    fields = {"producer_id": 7, "producer_epoch": 0}
    append(log, [(b"a", b"0")], base_sequence=0, **fields)
    sent = append(log, [(b"a", b"1")], base_sequence=1, **fields)
    append(log, [(b"a", b"2")])
    seal(log)
    compact(log)
    assert (sent, b"a", b"1") not in contents(log)
    (kept,) = [batch for batch in headers(log) if batch.producer_id == 7]
    assert (kept.count, kept.base_sequence, kept.last_offset) == (0, 1, sent)
    for name in files.scan(FOLDER):
        if name.endswith(".snapshot"):
            files.remove(f"{FOLDER}/{name}")
    again = open_compacted(files)
    assert append(again, [(b"a", b"1")], base_sequence=1, **fields) == sent


def test_a_producer_that_expired_keeps_nothing(log: Log) -> None:
    append(log, [(b"a", b"1")], producer_id=7, producer_epoch=0, base_sequence=0)
    append(log, [(b"a", b"2")])
    seal(log)
    log.expire_producers(10**9)
    compact(log)
    assert not [batch for batch in headers(log) if batch.producer_id == 7]


def test_the_last_batch_of_a_cleaning_stays_for_its_offset(log: Log) -> None:
    seal(log)
    end = plan(log, 0, upto=log.log_end_offset, now_ms=1).end_offset
    seal(log)
    what = plan(log, 0, upto=end, now_ms=1)
    assert what.end_offset == end
    offsets = OffsetMap()
    offsets.put(b"filler", 10**6)
    drain(clean(log, what._replace(first_dirty_offset=end), offsets, now_ms=1))
    below = [batch for batch in headers(log) if batch.base_offset < end]
    assert [(batch.count, batch.next_offset) for batch in below] == [(0, end)]


def in_transaction(sequence: int, producer_id: int = 9) -> dict[str, Any]:
    return {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence, "transactional": True}


def test_an_aborted_record_stands_for_nothing(log: Log) -> None:
    append(log, [(b"a", b"before")])
    append(log, [(b"a", b"aborted")], **in_transaction(0))
    end_transaction(log, 9, ControlType.ABORT)
    append(log, [(b"b", b"committed")], **in_transaction(1))
    end_transaction(log, 9, ControlType.COMMIT)
    seal(log)
    compact(log)
    assert contents(log)[:2] == [(0, b"a", b"before"), (3, b"b", b"committed")]


def test_an_abort_marker_after_the_cleaned_part_is_seen(log: Log) -> None:
    append(log, [(b"a", b"before")])
    append(log, [(b"a", b"aborted")], **in_transaction(0))
    seal(log)
    end_transaction(log, 9, ControlType.ABORT)
    compact(log)
    assert (0, b"a", b"before") in contents(log)
    assert (1, b"a", b"aborted") not in contents(log)


def test_an_open_transaction_stops_the_cleaning_before_it(log: Log) -> None:
    append(log, [(b"a", b"1")])
    append(log, [(b"a", b"2")])
    seal(log)
    first = append(log, [(b"a", b"3")], **in_transaction(0))
    seal(log)
    seal(log)
    assert plan(log, 0, upto=log.log_end_offset, now_ms=1).end_offset <= first
    compact(log)
    assert (first, b"a", b"3") in contents(log)
    assert (1, b"a", b"2") in contents(log)


def test_a_marker_goes_when_its_records_are_gone_and_its_horizon_is_past(log: Log) -> None:
    append(log, [(b"a", b"1")], **in_transaction(0))
    marker = end_transaction(log, 9, ControlType.COMMIT)
    append(log, [(b"a", b"2")])
    seal(log)
    log.expire_producers(10**9)

    def marker_horizon() -> int | None:
        (batch,) = [batch for batch in headers(log) if batch.base_offset == marker]
        return batch.delete_horizon

    compact(log, now_ms=5000)
    assert marker_horizon() is None
    compact(log, now_ms=6000)
    assert marker_horizon() == 7000
    assert [record.offset for record in records(log, control=True)][:1] == [marker]
    compact(log, now_ms=6999)
    assert marker_horizon() == 7000
    compact(log, now_ms=7000)
    assert marker not in [batch.base_offset for batch in headers(log)]


# -- plans -----------------------------------------------------------------------------------------------------------


def test_a_log_is_due_by_its_dirty_ratio(log: Log) -> None:
    for number in range(20):
        append(log, [(b"%d" % number, b"x" * 50)])
    all_dirty = plan(log, 0, upto=log.log_end_offset, now_ms=1)
    assert (all_dirty.dirty_ratio, all_dirty.due) == (1.0, True)
    mostly_clean = plan(log, all_dirty.end_offset - 3, upto=log.log_end_offset, now_ms=1)
    assert 0 < mostly_clean.dirty_ratio < 0.5
    assert not mostly_clean.due
    nothing = plan(log, all_dirty.end_offset, upto=log.log_end_offset, now_ms=1)
    assert (nothing.dirty_bytes, nothing.due) == (0, False)


def test_records_younger_than_the_minimum_lag_are_left_alone() -> None:
    log = open_compacted(MemoryFiles(), min_compaction_lag_ms=100)
    append(log, [(b"a", b"1")], 1000)
    append(log, [(b"a", b"2")], 1000)
    seal(log, 1050)
    assert plan(log, 0, upto=log.log_end_offset, now_ms=1120).end_offset == 0
    assert plan(log, 0, upto=log.log_end_offset, now_ms=1150).end_offset > 0


def test_a_record_that_waited_too_long_makes_a_log_due() -> None:
    log = open_compacted(MemoryFiles(), max_compaction_lag_ms=100, min_cleanable_dirty_ratio=1.0)
    for number in range(20):
        append(log, [(b"%d" % number, b"x" * 50)], 1000)
    half = log.log_end_offset // 2
    assert not plan(log, half, upto=log.log_end_offset, now_ms=1100).due
    assert plan(log, half, upto=log.log_end_offset, now_ms=1101).due


def test_nothing_above_the_high_watermark_is_touched(log: Log) -> None:
    for _ in range(20):
        append(log, [(b"k", b"x" * 50)])
    what = plan(log, 0, upto=9, now_ms=1)
    assert 0 < what.end_offset <= 9
    drain(clean(log, what, OffsetMap(), now_ms=1))
    assert [record.offset for record in records(log) if record.offset >= 9] == list(range(9, 20))


def test_a_checkpoint_outside_of_the_log_means_all_is_dirty(log: Log) -> None:
    append(log, [(b"a", b"1")])
    seal(log)
    assert plan(log, 10**6, upto=log.log_end_offset, now_ms=1).first_dirty_offset == log.log_start_offset


# -- the cleaner of a log dir ----------------------------------------------------------------------------------------


def test_the_dirtiest_log_comes_first_and_the_checkpoint_remembers() -> None:
    files = MemoryFiles()
    logs = {PARTITION: open_compacted(files)}
    for number in range(20):
        append(logs[PARTITION], [(b"%d" % (number % 2), b"x" * 50)])
    cleaner = LogCleaner(files, "/logs")
    cleaner.load()
    found = cleaner.dirtiest(logs, lambda _: 20, 1)
    assert found is not None
    partition, what = found
    done = drain(cleaner.clean(partition, logs[partition], what, 1))
    assert done is not None
    assert done.bytes_written < done.bytes_read
    assert cleaner.dirtiest(logs, lambda _: 20, 1) is None
    again = LogCleaner(files, "/logs")
    again.load()
    assert again.clean_offsets == {PARTITION: what.end_offset}
    again.truncated(PARTITION, 5)
    assert again.clean_offsets == {PARTITION: 5}
    again.forget(PARTITION)
    assert files.read(f"/logs/{CLEANER_OFFSETS}") == b"0\n0\n"


def test_a_damaged_checkpoint_only_costs_work() -> None:
    files = MemoryFiles()
    files.mkdir("/logs")
    files.write(f"/logs/{CLEANER_OFFSETS}", b"nonsense")
    cleaner = LogCleaner(files, "/logs")
    cleaner.load()
    assert cleaner.clean_offsets == {}


def test_logs_that_are_not_compacted_are_not_cleaned() -> None:
    files = MemoryFiles()
    log = open_compacted(files, cleanup_policy="delete")
    for _ in range(20):
        append(log, [(b"k", b"x" * 50)])
    assert LogCleaner(files, "/logs").dirtiest({PARTITION: log}, lambda _: 20, 1) is None


def test_compact_and_delete_does_both() -> None:
    log = open_compacted(MemoryFiles(), cleanup_policy="compact,delete", retention_ms=1000)
    for number in range(20):
        append(log, [(b"%d" % (number % 3), b"x" * 50)], 1000 + 100 * number)
    compact(log)
    assert len({record.key for record in records(log)}) == 3
    assert log.retain(10_000)
    assert contents(log) == []


def test_a_damaged_batch_stops_the_cleaning_and_changes_nothing() -> None:
    files = MemoryFiles()
    log = open_compacted(files)
    for _ in range(20):
        append(log, [(b"k", b"x" * 50)])
    victim = list(log.segments)[1]
    files.node(victim.log.path).data[100] ^= 1
    before = {name: files.read(f"{FOLDER}/{name}") for name in files.scan(FOLDER)}
    cleaner = LogCleaner(files, "/logs")
    found = cleaner.dirtiest({PARTITION: log}, lambda _: 20, 1)
    assert found is not None
    assert drain(cleaner.clean(PARTITION, log, found[1], 1)) is None
    assert "checksum" in cleaner.uncleanable[PARTITION]
    assert cleaner.dirtiest({PARTITION: log}, lambda _: 20, 1) is None
    assert {name: files.read(f"{FOLDER}/{name}") for name in files.scan(FOLDER)} == before


@pytest.mark.parametrize("appended_again", [0, 30])
def test_a_log_that_is_cut_under_a_cleaning_stays_as_it_is(log: Log, appended_again: int) -> None:
    for _ in range(20):
        append(log, [(b"k", b"x" * 50)])
    what = plan(log, 0, upto=20, now_ms=1)
    steps = clean(log, what, OffsetMap(), now_ms=1)
    next(steps)
    log.truncate_to(4)
    for _ in range(appended_again):
        append(log, [(b"k", b"other")])
    with pytest.raises(CleaningAborted):
        drain(steps)
    assert [offset for offset, _, _ in contents(log)] == list(range(4 + appended_again))
    assert not [name for name in log.files.scan(FOLDER) if ".cleaned" in name]


def test_a_cleaning_that_is_given_up_leaves_no_files(log: Log) -> None:
    for _ in range(20):
        append(log, [(b"k", b"x" * 50)])
    steps = clean(log, plan(log, 0, upto=20, now_ms=1), OffsetMap(), now_ms=1)
    for _ in range(8):
        next(steps)
    assert [name for name in log.files.scan(FOLDER) if ".cleaned" in name]
    steps.close()
    assert not [name for name in log.files.scan(FOLDER) if ".cleaned" in name]
    assert contents(log)[-1] == (19, b"k", b"x" * 50)


def test_a_full_disk_stops_the_cleaning_and_changes_nothing() -> None:
    files = MemoryFiles()
    log = open_compacted(files)
    for number in range(20):
        append(log, [(b"%d" % number, b"x" * 50)])
    before = contents(log)
    files.capacity = sum(size for size in files.scan(FOLDER).values()) + 100
    with pytest.raises(OSError, match="space"):
        compact(log)
    files.capacity = None
    assert contents(log) == before
    assert not [name for name in files.scan(FOLDER) if ".cleaned" in name]
    assert contents(open_compacted(files, Known())) == before


def test_the_map_knows_its_capacity() -> None:
    offsets = OffsetMap(10 * BYTES_PER_ENTRY, 0.5)
    assert offsets.capacity == 5
    for number in range(4):
        offsets.put(b"%d" % number, number)
    assert offsets.room_for(1)
    assert not offsets.room_for(2)
    assert (offsets.get(b"3"), offsets.get(b"unknown")) == (3, -1)
