"""Batch headers: reading, everything a broker refuses, stamping."""

from __future__ import annotations

from struct import pack_into
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.records.record_strategies import CODECS, producer_fields, record_lists

from headrace.errors import ErrorCode
from headrace.records import errors
from headrace.records.batch import (
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    TIMESTAMP_TYPE,
    TRANSACTIONAL,
    Batch,
    batches,
    check,
    read_header,
    stamp,
    stamp_crc,
    stamp_log_append_time,
    valid_crc,
)
from headrace.records.record import Record, build, iter_records

NOW = 1_700_000_000_000
RECORDS = [Record(at, NOW + at, b"key", b"value") for at in range(3)]

# Where each field lies, and how struct writes it.
LENGTH, MAGIC, ATTRIBUTES, LAST_DELTA, BASE_TIME, MAX_TIME = (
    (8, "i"),
    (16, "b"),
    (21, "h"),
    (23, "i"),
    (27, "q"),
    (35, "q"),
)
PRODUCER_ID, PRODUCER_EPOCH, SEQUENCE, COUNT = (43, "q"), (51, "h"), (53, "i"), (57, "i")


def with_field(field: tuple[int, str], value: int, **options: Any) -> bytearray:
    """A valid batch but for one field; the checksum fits."""
    buf = build(RECORDS, **options)
    pack_into(">" + field[1], buf, field[0], value)
    stamp_crc(buf, 0, len(buf))
    return buf


def checked(buf: bytes | bytearray) -> list[Batch]:
    return check(buf, max_message_bytes=10_000, now_ms=NOW, before_max_ms=1000, after_max_ms=1000)


def test_the_header_is_61_bytes() -> None:
    assert HEADER.size == HEADER_SIZE == 61


@given(record_lists(base_offset=7), CODECS, producer_fields(), st.integers(-1, 2**31 - 1))
def test_every_field_comes_back(records: list[Record], codec: int, producer: dict[str, Any], epoch: int) -> None:
    buf = build(records, base_offset=7, codec=codec, leader_epoch=epoch, **producer)
    (batch,) = check(buf, max_message_bytes=len(buf))
    assert batch == read_header(b"junk" + buf, 4)._replace(position=0)
    assert (batch.position, batch.size, batch.magic, batch.codec) == (0, len(buf), 2, codec)
    assert (batch.base_offset, batch.last_offset, batch.next_offset) == (7, records[-1].offset, records[-1].offset + 1)
    assert (batch.count, batch.leader_epoch) == (len(records), epoch)
    assert (batch.base_timestamp, batch.max_timestamp) == (records[0].timestamp, max(r.timestamp for r in records))
    assert batch.producer_id == producer.get("producer_id", -1)
    assert batch.producer_epoch == producer.get("producer_epoch", -1)
    assert batch.base_sequence == producer.get("base_sequence", -1)
    assert batch.is_transactional == producer.get("transactional", False)
    assert not batch.is_control
    assert not batch.log_append_time
    assert batch.delete_horizon is None


def test_the_last_sequence_wraps() -> None:
    batch = read_header(build(RECORDS, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2))
    assert batch.last_sequence == 0
    assert read_header(build(RECORDS)).last_sequence == -1


def test_many_batches_in_one_buffer() -> None:
    buf = build(RECORDS) + build(RECORDS[:1], codec=1) + build(RECORDS)
    found = checked(buf)
    assert found == batches(buf)
    assert [batch.count for batch in found] == [3, 1, 3]
    assert sum(batch.size for batch in found) == len(buf)


@pytest.mark.parametrize(
    ("field", "value", "error", "code"),
    [
        (MAGIC, 0, errors.WrongMagic, ErrorCode.INVALID_RECORD),
        (MAGIC, 1, errors.WrongMagic, ErrorCode.INVALID_RECORD),
        (MAGIC, 3, errors.WrongMagic, ErrorCode.CORRUPT_MESSAGE),
        (MAGIC, -1, errors.WrongMagic, ErrorCode.CORRUPT_MESSAGE),
        (LENGTH, 48, errors.CorruptMessage, ErrorCode.CORRUPT_MESSAGE),
        (LENGTH, -1, errors.CorruptMessage, ErrorCode.CORRUPT_MESSAGE),
        (LENGTH, 2**31 - 1, errors.CorruptMessage, ErrorCode.CORRUPT_MESSAGE),
        (COUNT, -3, errors.InvalidRecord, ErrorCode.INVALID_RECORD),
        (COUNT, 0, errors.InvalidRecord, ErrorCode.INVALID_RECORD),
        (COUNT, 4, errors.InvalidRecord, ErrorCode.INVALID_RECORD),
        (LAST_DELTA, -1, errors.InvalidRecord, ErrorCode.INVALID_RECORD),
        (LAST_DELTA, 3, errors.InvalidRecord, ErrorCode.INVALID_RECORD),
        (ATTRIBUTES, 5, errors.UnknownCodec, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (ATTRIBUTES, CONTROL, errors.InvalidRecord, ErrorCode.INVALID_RECORD),
        (ATTRIBUTES, DELETE_HORIZON, errors.InvalidRecord, ErrorCode.INVALID_RECORD),
        (ATTRIBUTES, TIMESTAMP_TYPE, errors.InvalidTimestamp, ErrorCode.INVALID_TIMESTAMP),
        (ATTRIBUTES, TRANSACTIONAL, errors.InvalidRecord, ErrorCode.INVALID_RECORD),
        (PRODUCER_ID, 5, errors.InvalidRecord, ErrorCode.INVALID_RECORD),
        (PRODUCER_ID, -2, errors.InvalidRecord, ErrorCode.INVALID_RECORD),
        (BASE_TIME, -2, errors.InvalidTimestamp, ErrorCode.INVALID_TIMESTAMP),
        (BASE_TIME, NOW + 3, errors.InvalidTimestamp, ErrorCode.INVALID_TIMESTAMP),
        (BASE_TIME, NOW - 1001, errors.InvalidTimestamp, ErrorCode.INVALID_TIMESTAMP),
        (MAX_TIME, NOW + 1001, errors.InvalidTimestamp, ErrorCode.INVALID_TIMESTAMP),
        (MAX_TIME, NOW - 1, errors.InvalidTimestamp, ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_bad_fields(field: tuple[int, str], value: int, error: type[errors.RecordError], code: ErrorCode) -> None:
    with pytest.raises(error) as caught:
        checked(with_field(field, value))
    assert caught.value.code is code
    assert caught.value.message


@pytest.mark.parametrize(("field", "value"), [(PRODUCER_EPOCH, -1), (SEQUENCE, -1), (SEQUENCE, -5)])
def test_a_producer_id_needs_an_epoch_and_a_sequence(field: tuple[int, str], value: int) -> None:
    whole = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
    assert checked(build(RECORDS, **whole))
    with pytest.raises(errors.InvalidRecord, match="producer id 1"):
        checked(with_field(field, value, **whole))


def test_a_batch_at_the_size_limit_is_taken_and_one_above_is_not() -> None:
    buf = build(RECORDS)
    assert check(buf, max_message_bytes=len(buf))
    with pytest.raises(errors.RecordTooLarge, match=r"max\.message\.bytes") as caught:
        check(buf, max_message_bytes=len(buf) - 1)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_records_without_a_timestamp_pass_any_limit() -> None:
    assert checked(build([Record(0, -1, b"k", b"v")]))


@pytest.mark.parametrize("at", range(21, 61 + 20))
def test_a_flipped_bit_is_a_wrong_checksum(at: int) -> None:
    buf = build(RECORDS)
    buf[at] ^= 0x10
    with pytest.raises(errors.WrongChecksum) as caught:
        checked(buf)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert not valid_crc(buf, read_header(buf))


def test_every_cut_is_refused() -> None:
    buf = build(RECORDS)
    with pytest.raises(errors.InvalidRecord, match="without a batch"):
        checked(b"")
    for end in range(1, len(buf)):
        with pytest.raises(errors.CorruptMessage):
            checked(buf[:end])
        with pytest.raises(errors.CorruptMessage):
            checked(buf + buf[:end])


def test_an_old_message_is_recognised_though_it_is_shorter_than_a_header() -> None:
    old = bytearray(26)
    old[16] = 1
    with pytest.raises(errors.WrongMagic, match="newer"):
        checked(old)


def test_a_position_outside_the_buffer_is_refused() -> None:
    with pytest.raises(errors.CorruptMessage, match="no batch at 500"):
        read_header(build(RECORDS), 500)


@given(record_lists(), CODECS, st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1))
def test_stamping_keeps_the_checksum(records: list[Record], codec: int, offset: int, epoch: int) -> None:
    first = build(records, codec=codec)
    buf = first + first
    stamp(buf, len(first), offset, epoch)
    untouched, stamped = batches(buf)
    assert (untouched.base_offset, untouched.leader_epoch) == (0, -1)
    assert (stamped.base_offset, stamped.leader_epoch) == (offset, epoch)
    assert stamped.crc == untouched.crc
    assert valid_crc(buf, stamped)
    assert [r.value for r in iter_records(buf, stamped)] == [r.value for r in records]


def test_log_append_time_replaces_every_timestamp() -> None:
    buf = build(RECORDS, codec=4)
    changed = stamp_log_append_time(buf, read_header(buf), NOW + 99)
    assert changed == read_header(buf)
    assert changed.log_append_time
    assert changed.max_timestamp == NOW + 99
    assert valid_crc(buf, changed)
    assert [r.timestamp for r in iter_records(buf, changed)] == [NOW + 99] * 3
