"""What a log promises, one point at a time."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from tests.unit.storage.log_samples import (
    FOLDER,
    NOW,
    batch,
    content,
    fill,
    idempotent,
    make_log,
    offsets,
    remove_deleted,
    reopen,
)

from headrace.errors import ErrorCode, KafkaError
from headrace.records.batch import batches, stamp_crc, valid_crc
from headrace.records.record import ControlType, Marker, build_marker
from headrace.storage.config import LogConfig
from headrace.storage.memory_files import MemoryFiles


def code_of(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        call()
    return refused.value.code


def test_a_leader_gives_offsets_and_its_epoch_and_keeps_the_checksum() -> None:
    log = make_log()
    log.append_as_leader(batch(3), 4, NOW)
    info = log.append_as_leader(memoryview(bytearray(batch(2)) + bytearray(batch(1))), 5, NOW)
    assert (info.first_offset, info.last_offset, info.records, info.log_append_time_ms) == (3, 5, 3, -1)
    data = log.read(0, 1 << 20, upto=6).read()
    found = batches(data)
    assert [(b.base_offset, b.leader_epoch) for b in found] == [(0, 4), (3, 5), (5, 5)]
    assert all(valid_crc(data, b) for b in found)
    assert log.epochs.entries() == [(4, 0), (5, 3)]


def test_log_append_time_replaces_the_producers_time() -> None:
    log = make_log(message_timestamp_type="LogAppendTime")
    info = log.append_as_leader(batch(2, timestamp=5), 0, NOW)
    assert info.log_append_time_ms == NOW
    data = log.read(0, 1000, upto=2).read()
    (stored,) = batches(data)
    assert (stored.max_timestamp, stored.log_append_time, valid_crc(data, stored)) == (NOW, True, True)


def _broken(position: int, value: int) -> memoryview:
    damaged = bytearray(batch(2))
    damaged[position] = value
    return memoryview(damaged)


def _with_crc(data: memoryview) -> memoryview:
    stamp_crc(data, 0, len(data))
    return data


def _count(count: int) -> memoryview:
    damaged = bytearray(batch(2))
    damaged[57:61] = count.to_bytes(4, "big", signed=True)
    return _with_crc(memoryview(damaged))


BAD_INPUT = {
    "nothing": (memoryview(b""), ErrorCode.INVALID_RECORD),
    "wrong crc": (_broken(70, 0xFF), ErrorCode.CORRUPT_MESSAGE),
    "wrong magic": (_broken(16, 9), ErrorCode.CORRUPT_MESSAGE),
    "old magic": (_broken(16, 1), ErrorCode.INVALID_RECORD),
    "length past the buffer": (_broken(8, 0x7F), ErrorCode.CORRUPT_MESSAGE),
    "negative length": (_broken(8, 0xFF), ErrorCode.CORRUPT_MESSAGE),
    "half a batch": (batch(2)[:80], ErrorCode.CORRUPT_MESSAGE),
    "negative count": (_count(-1), ErrorCode.INVALID_RECORD),
    "deltas that are not dense": (_count(5), ErrorCode.INVALID_RECORD),
    "too large": (batch(1, value=b"v" * 5000), ErrorCode.MESSAGE_TOO_LARGE),
    "unknown codec": (_with_crc(_broken(22, 7)), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "too old": (batch(1, timestamp=NOW - 20_000), ErrorCode.INVALID_TIMESTAMP),
    "from the future": (batch(1, timestamp=NOW + 20_000), ErrorCode.INVALID_TIMESTAMP),
    "sequence out of order": (idempotent(9, epoch=3), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    "stale producer epoch": (idempotent(5, epoch=2), ErrorCode.INVALID_PRODUCER_EPOCH),
    "new epoch not from 0": (idempotent(5, epoch=4), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    "a control batch": (
        memoryview(build_marker(Marker(ControlType.COMMIT, 0), producer_id=7, producer_epoch=3, timestamp=NOW)),
        ErrorCode.INVALID_RECORD,
    ),
    "larger than a segment": (
        memoryview(b"".join(bytes(batch(1, value=b"v" * 3500)) for _ in range(3))),
        ErrorCode.RECORD_LIST_TOO_LARGE,
    ),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_named_and_nothing_is_written(name: str) -> None:
    data, code = BAD_INPUT[name]
    log = make_log(
        max_message_bytes=4096,
        segment_bytes=10_000,
        message_timestamp_before_max_ms=10_000,
        message_timestamp_after_max_ms=10_000,
    )
    log.append_as_leader(idempotent(0, 5, epoch=3), 0, NOW)
    files = log.files
    assert isinstance(files, MemoryFiles)
    before = {name: files.read(f"{FOLDER}/{name}") for name in files.scan(FOLDER)}
    # A good batch in front of the bad one must not get through either.
    for sent in (data, memoryview(bytearray(batch(1)) + bytearray(data)) if len(data) else data):
        assert code_of(lambda sent=sent: log.append_as_leader(memoryview(bytearray(sent)), 0, NOW)) is code
    assert {name: files.read(f"{FOLDER}/{name}") for name in files.scan(FOLDER)} == before
    assert log.log_end_offset == 5
    assert log.append_as_leader(idempotent(5, epoch=3), 0, NOW).first_offset == 5


def test_a_compacted_topic_refuses_records_without_a_key() -> None:
    log = make_log(cleanup_policy="compact")
    assert code_of(lambda: log.append_as_leader(batch(1, key=None), 0, NOW)) is ErrorCode.INVALID_RECORD
    assert log.log_end_offset == 0


def test_the_last_five_batches_of_a_producer_are_recognised() -> None:
    log = make_log()
    for number in range(6):
        log.append_as_leader(idempotent(number * 2, 2), 0, NOW)
    assert log.append_as_leader(idempotent(2, 2), 0, NOW)[:2] == (2, 3)
    assert code_of(lambda: log.append_as_leader(idempotent(0, 2), 0, NOW)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert log.log_end_offset == 12


def test_a_batch_from_before_a_restart_is_not_taken_for_one_that_is_missing() -> None:
    """A snapshot holds only a producer's last batch; whoever repeats an earlier one must not write it again."""
    log = make_log()
    for number in range(3):
        log.append_as_leader(idempotent(number), 0, NOW)
    again = reopen(log, clean=True)
    assert again.append_as_leader(idempotent(2), 0, NOW).duplicate
    assert code_of(lambda: again.append_as_leader(idempotent(0), 0, NOW)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert code_of(lambda: again.append_as_leader(idempotent(4), 0, NOW)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert again.log_end_offset == 3


def test_sequences_wrap_at_the_largest_int32() -> None:
    log = make_log()
    log.append_as_leader(idempotent(2**31 - 2, 2), 0, NOW)
    assert log.append_as_leader(idempotent(0), 0, NOW).first_offset == 2
    assert log.append_as_leader(idempotent(2**31 - 2, 2), 0, NOW).duplicate


def test_a_follower_takes_the_leaders_bytes_and_epochs() -> None:
    leader, follower = make_log(), make_log()
    fill(leader, 4, epoch=1)
    fill(leader, 4, count=3, epoch=3)
    data = leader.read(0, 1 << 20, upto=leader.log_end_offset).read()
    info = follower.append_as_follower(memoryview(bytearray(data)))
    assert (info.first_offset, info.last_offset, info.records) == (0, 15, 16)
    assert follower.read(0, 1 << 20, upto=16).read() == data
    assert follower.epochs.entries() == leader.epochs.entries() == [(1, 0), (3, 4)]


def test_a_follower_of_a_leader_whose_log_begins_far_ahead_begins_there_too() -> None:
    follower = make_log()
    far = bytearray(batch(2, base_offset=0))
    far[:8] = (10**12).to_bytes(8, "big")
    follower.append_as_follower(memoryview(far))
    assert [segment.base_offset for segment in follower.segments] == [10**12]
    follower.roll()
    again = reopen(follower)
    assert again.log_end_offset == 10**12 + 2
    assert again.log_start_offset == 10**12


def test_a_follower_refuses_what_does_not_continue_its_log_or_is_damaged() -> None:
    leader, follower = make_log(), make_log()
    fill(leader, 2)
    data = bytearray(leader.read(0, 1 << 20, upto=2).read())
    follower.append_as_follower(memoryview(data))
    assert code_of(lambda: follower.append_as_follower(memoryview(data))) is ErrorCode.OFFSET_OUT_OF_RANGE
    fill(leader, 1)
    data = bytearray(leader.read(2, 1 << 20, upto=3).read())
    data[-1] ^= 1
    assert code_of(lambda: follower.append_as_follower(memoryview(data))) is ErrorCode.CORRUPT_MESSAGE
    assert code_of(lambda: follower.append_as_follower(memoryview(data)[:-5])) is ErrorCode.CORRUPT_MESSAGE
    assert follower.log_end_offset == 2


def test_a_transaction_marker_is_written_by_the_broker_and_ends_the_transaction() -> None:
    log = make_log()
    log.append_as_leader(idempotent(0, 2, transactional=True), 0, NOW)
    assert log.producers.first_unstable_offset() == 0
    marker = build_marker(Marker(ControlType.COMMIT, 0), producer_id=7, producer_epoch=0, timestamp=NOW)
    log.append_as_leader(memoryview(marker), 0, NOW, from_client=False)
    assert log.producers.first_unstable_offset() is None
    assert log.append_as_leader(idempotent(2), 0, NOW).first_offset == 3


def test_segments_roll_by_size_by_age_and_when_an_index_is_full() -> None:
    by_size = make_log(segment_bytes=300)
    fill(by_size, 10)
    assert all(segment.size <= 300 for segment in by_size.segments)
    assert len(by_size.segments) > 2

    by_age = make_log(segment_ms=100)
    fill(by_age, 2, step=100)
    assert len(by_age.segments) == 1
    fill(by_age, 1, start=NOW + 101)
    assert [s.base_offset for s in by_age.segments] == [0, 2]
    assert not by_age.maybe_roll(NOW + 201)
    assert by_age.maybe_roll(NOW + 202)
    assert not by_age.maybe_roll(NOW + 10_000), "an empty segment does not roll"

    by_index = make_log(index_interval_bytes=0, segment_index_bytes=64)
    fill(by_index, 20)
    assert len(by_index.segments) > 2
    assert all(len(segment.offsets) * 8 <= 64 for segment in by_index.segments)
    assert offsets(by_index) == list(range(20))


def test_a_read_gives_whole_batches_below_the_limit() -> None:
    log = make_log(segment_bytes=1000)
    fill(log, 30, count=3)
    size = len(batch(3))
    assert [b.base_offset for b in content(log, 4, upto=9)] == [3, 6]
    assert [b.base_offset for b in content(log, 4, max_bytes=1)] == [3]
    assert log.read(4, size - 1, upto=90, min_one_batch=False).size == 0
    assert log.read(0, 10 * size + 5, upto=90).size == 10 * size
    assert log.read(90, 1000, upto=90).ranges == []
    assert log.read(50, 1000, upto=40).ranges == []
    assert code_of(lambda: log.read(91, 1, upto=90)) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_fetching_what_was_just_written_reads_no_header() -> None:
    log = make_log()
    fill(log, 200, count=4)
    files = log.files
    assert isinstance(files, MemoryFiles)
    files.reads.clear()
    assert log.read(log.log_end_offset - 8, 1 << 20, upto=log.log_end_offset - 4).size == len(batch(4))
    assert files.reads == []


@pytest.mark.parametrize(("value", "count"), [(10, 1), (300, 2), (9000, 1)])
def test_a_lookup_reads_no_more_than_the_index_interval(value: int, count: int) -> None:
    """And the header of the batch it leads to; by time, from one entry to the next after the way to the first."""
    log = make_log(segment_bytes=100_000, index_interval_bytes=1000)
    for number in range(120):
        log.append_as_leader(batch(count, value=b"v" * value, timestamp=NOW + number * 10), 0, NOW + number * 10)
    log = reopen(log, clean=True)
    files = log.files
    assert isinstance(files, MemoryFiles)
    for offset in range(log.log_end_offset):
        files.reads.clear()
        segment = log.segments.floor(offset)
        position = segment.locate(offset)
        assert sum(length for _, length, _ in files.reads) <= 1000 + 61 * (offset % count)
        assert position <= segment.size
    for number in range(120):
        files.reads.clear()
        found = log.segments.floor(number * count).find_timestamp(NOW + number * 10, 0)
        assert found is not None
        assert found.base_offset == number * count
        assert sum(length for _, length, _ in files.reads) <= 2 * (1000 + 61)


def test_a_timestamp_is_found_inside_a_batch() -> None:
    log = make_log(segment_bytes=400)
    fill(log, 20, count=4, step=100)
    assert log.offset_for_timestamp(NOW + 502) == (NOW + 502, 22, 0)
    assert log.offset_for_timestamp(NOW + 504) == (NOW + 600, 24, 0)
    assert log.offset_for_timestamp(0) == (NOW, 0, 0)
    assert log.offset_for_timestamp(NOW + 5000) is None
    assert log.offset_of_max_timestamp() == (NOW + 1903, 79, 0)
    assert make_log().offset_of_max_timestamp() is None


def test_truncation_cuts_to_the_batch_and_forgets_later_epochs() -> None:
    log = make_log(segment_bytes=300)
    fill(log, 10, count=2, epoch=1)
    fill(log, 10, count=2, epoch=2)
    log.flush()
    assert not log.truncate_to(40)
    assert log.truncate_to(23)
    assert (log.log_end_offset, log.recovery_point) == (22, 22)
    assert log.truncate_to(15)
    assert log.epochs.entries() == [(1, 0)]
    assert offsets(log) == list(range(14))
    fill(log, 1, epoch=5)
    assert offsets(reopen(log)) == list(range(15))
    log.truncate_fully(100)
    assert (log.log_start_offset, log.log_end_offset, log.epochs.entries()) == (100, 100, [])
    fill(log, 1, epoch=6)
    assert offsets(log) == [100]


def test_producers_are_known_again_after_a_truncation() -> None:
    log = make_log(segment_bytes=300)
    for number in range(20):
        log.append_as_leader(idempotent(number), 0, NOW)
    log.truncate_to(11)
    assert log.append_as_leader(idempotent(10), 0, NOW).duplicate
    assert code_of(lambda: log.append_as_leader(idempotent(12), 0, NOW)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.append_as_leader(idempotent(11), 0, NOW).first_offset == 11


def test_retention_by_time_renames_then_removes_and_never_takes_the_last_segment() -> None:
    log = make_log(segment_bytes=300, retention_ms=1000, file_delete_delay_ms=500)
    fill(log, 10, step=100)
    kept = log.read(9, 1000, upto=10)
    assert log.retain(NOW + 1550) == 2
    names = log.files.scan(FOLDER)
    assert sum(name.endswith(".log.deleted") for name in names) == 2
    assert log.log_start_offset == log.segments.first.base_offset > 0
    assert log.next_removal_ms() == NOW + 2050
    remove_deleted(log, NOW + 2049)
    assert any(name.endswith(".deleted") for name in log.files.scan(FOLDER))
    remove_deleted(log, NOW + 2050)
    assert not any(name.endswith(".deleted") for name in log.files.scan(FOLDER))
    log.retain(NOW + 100_000)
    assert (log.log_start_offset, log.log_end_offset, len(log.segments), log.size) == (10, 10, 1, 0)
    remove_deleted(log, NOW + 200_000)
    assert kept.read(), "a range on its way out outlives its file"
    fill(log, 1)
    assert offsets(reopen(log)) == [10]


def test_retention_by_size_and_by_start_stops_at_the_high_watermark() -> None:
    log = make_log(segment_bytes=300, retention_bytes=400, retention_ms=-1)
    fill(log, 12)
    assert log.retain(NOW, high_watermark=2) == 0
    log.retain(NOW)
    assert log.size <= 700
    assert log.size - log.segments.first.size < 400
    log.update_config(LogConfig.of({"cleanup.policy": "compact", "segment.bytes": 300}))
    assert log.retain(NOW + 10**12) == 0
    assert log.delete_records_before(11) == 11
    assert code_of(lambda: log.read(10, 10, upto=12)) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.retain(NOW) > 0
    assert offsets(log) == [11]
    assert code_of(lambda: log.delete_records_before(13)) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_flush_settings_say_when_a_flush_is_due() -> None:
    log = make_log(flush_messages=3, flush_ms=1000)
    log.flush(NOW)
    assert not log.flush_due(NOW + 5000), "nothing is waiting"
    fill(log, 2)
    assert not log.flush_due(NOW + 999)
    assert log.flush_due(NOW + 1000)
    fill(log, 1)
    assert log.flush_due(NOW)
    assert log.flush(NOW) == 3


def test_a_flush_does_not_vouch_for_what_came_after_a_truncation() -> None:
    log = make_log()
    fill(log, 5)
    flush = log.begin_flush()
    log.truncate_to(2)
    fill(log, 3, epoch=1)
    flush.run()
    log.finish_flush(flush)
    assert log.recovery_point == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_failing_disk_takes_the_log_offline_and_loses_nothing(number: int) -> None:
    files = MemoryFiles()
    log = make_log(files)
    fill(log, 3)
    told: list[OSError] = []
    log.on_failure = told.append
    used = files.space(FOLDER)
    files.capacity = used[0] - used[1] + 50

    def fail(operation: str, path: str) -> None:
        if operation == "append":
            raise OSError(number, "failed", path)

    if number != errno.ENOSPC:
        files.before = fail
    assert code_of(lambda: log.append_as_leader(batch(2), 0, NOW)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.log_end_offset == 3
    assert [error.errno for error in told] == [number]
    assert code_of(lambda: log.read(0, 100, upto=3)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert code_of(log.roll) is ErrorCode.KAFKA_STORAGE_ERROR
    files.before = files.capacity = None
    again = make_log(files)
    assert offsets(again) == [0, 1, 2]
    fill(again, 1)
    assert offsets(again) == [0, 1, 2, 3]


def test_an_index_that_leads_astray_is_made_anew_at_the_lookup() -> None:
    log = make_log(segment_bytes=2000, index_interval_bytes=200)
    fill(log, 60)
    log = reopen(log, clean=True)
    index = log.segments.first.offsets.file
    entries = bytearray(index.map())
    for at in range(4, len(entries), 8):
        entries[at + 3] ^= 0x15
    index.truncate(0)
    index.append(entries)
    for offset in range(log.segments.active.base_offset):
        found = batches(log.read(offset, 1, upto=60).read())[0]
        assert found.base_offset == offset


def test_a_batch_that_the_disk_did_not_keep_is_the_disks_failure() -> None:
    log = make_log(segment_bytes=2000, index_interval_bytes=200)
    fill(log, 60)
    log = reopen(log, clean=True)
    told: list[OSError] = []
    log.on_failure = told.append
    file = log.segments.first.log
    damaged = bytearray(file.pread(file.size(), 0))
    damaged[8:17] = b"\xff" * 9
    file.truncate(0)
    file.append(damaged)
    assert code_of(lambda: log.read(0, 1, upto=60)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert [error.errno for error in told] == [errno.EIO]
