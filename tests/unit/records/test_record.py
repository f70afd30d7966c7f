"""Records inside a batch: round trips, holes, control records, everything malformed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.records.record_strategies import CODECS, producer_fields, record_lists

from headrace.errors import ErrorCode
from headrace.records import errors, varint
from headrace.records.batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, read_header, stamp_crc, valid_crc
from headrace.records.compression import Codec
from headrace.records.record import (
    ControlType,
    Marker,
    Record,
    build,
    build_marker,
    check_deep,
    control_type,
    iter_records,
    read_marker,
)


def records_of(buf: bytes | bytearray) -> list[Record]:
    return list(iter_records(buf, read_header(buf)))


def around(body: bytes, count: int, last_delta: int = 0) -> bytearray:
    """A batch with a right checksum whose records are just `body`."""
    buf = bytearray(HEADER_SIZE)
    length = HEADER_SIZE + len(body) - LOG_OVERHEAD
    HEADER.pack_into(buf, 0, 0, length, -1, 2, 0, 0, last_delta, 0, 0, -1, -1, -1, count)
    buf += body
    stamp_crc(buf, 0, len(buf))
    return buf


def varints(*values: int) -> bytes:
    out = bytearray()
    for value in values:
        varint.write(out, value)
    return bytes(out)


@given(record_lists(base_offset=1000), CODECS, producer_fields())
def test_round_trip(records: list[Record], codec: Codec, producer: dict[str, Any]) -> None:
    buf = build(records, base_offset=1000, codec=codec, **producer)
    assert records_of(buf) == records
    check_deep(buf, read_header(buf))


@given(record_lists(), st.sets(st.integers(0, 11)), CODECS)
def test_holes_survive(records: list[Record], gone: set[int], codec: Codec) -> None:
    kept = [record for record in records if record.offset not in gone]
    buf = build(kept, codec=codec, last_offset=records[-1].offset)
    batch = read_header(buf)
    assert records_of(buf) == kept
    assert batch.last_offset == records[-1].offset
    check_deep(buf, batch, dense=False)
    if len(kept) < len(records):
        with pytest.raises(errors.InvalidRecord):
            check_deep(buf, batch)


def test_a_batch_without_records_keeps_its_offsets_and_producer() -> None:
    buf = build([], base_offset=5, last_offset=9, producer_id=3, producer_epoch=1, base_sequence=7, empty_timestamp=42)
    batch = read_header(buf)
    assert (batch.size, batch.count, batch.last_offset, batch.max_timestamp) == (HEADER_SIZE, 0, 9, 42)
    assert (batch.producer_id, batch.producer_epoch, batch.last_sequence) == (3, 1, 11)
    assert valid_crc(buf, batch)
    assert records_of(buf) == []


def test_a_delete_horizon_stands_in_for_the_base_timestamp() -> None:
    records = [Record(0, 100, b"k", None), Record(1, 50, b"l", b"v")]
    buf = build(records, delete_horizon=100_000)
    assert read_header(buf).delete_horizon == 100_000
    assert records_of(buf) == records


def test_header_keys_that_are_not_utf8_keep_their_bytes() -> None:
    body = varints(9) + b"\0" + varints(0, 0, -1, -1, 1, 1) + b"\xff" + varints(-1)
    body = varints(len(body) - 1) + body[1:]
    buf = around(body, 1)
    (record,) = records_of(buf)
    rebuilt = build([record])
    assert rebuilt[HEADER_SIZE:] == buf[HEADER_SIZE:]


def test_a_transaction_marker_round_trip() -> None:
    buf = build_marker(Marker(ControlType.COMMIT, 12), producer_id=7, producer_epoch=2, timestamp=99, base_offset=40)
    batch = read_header(buf)
    assert batch.is_control
    assert batch.is_transactional
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 2, -1)
    (record,) = records_of(buf)
    assert (record.offset, record.timestamp) == (40, 99)
    assert read_marker(record) == Marker(ControlType.COMMIT, 12)


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, None), (b"\0", b""), (b"\0\0\0\1", None), (b"\0\0\0\1", b"\0\0"), (b"\0\0\0\2", b"\0" * 6)],
)
def test_broken_markers_are_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(errors.InvalidRecord):
        read_marker(Record(0, 0, key, value))


def test_a_control_type_from_the_future_is_not_an_error() -> None:
    assert control_type(Record(0, 0, b"\0\0\x01\0", None)) is None


PLAIN = b"\0" + varints(0, 0, -1, -1, 0)


@pytest.mark.parametrize(
    ("body", "count", "text"),
    [
        (varints(-1), 1, "-1 bytes"),
        (varints(100) + PLAIN, 1, "left in its batch"),
        (varints(len(PLAIN)) + PLAIN, 2, "past the end"),
        (varints(len(PLAIN)) + PLAIN + b"!", 1, "after the last record"),
        (varints(len(PLAIN) + 1) + PLAIN + b"!", 1, "length is not"),
        (varints(5) + b"\0" + varints(0, 0, -2, -1), 1, "-2 bytes"),
        (varints(6) + b"\0" + varints(0, 0, 50, -1, 0), 1, "past the end"),
        (varints(6) + b"\0" + varints(0, 0, -1, -1, -1), 1, "-1 headers"),
        (varints(7) + b"\0" + varints(0, 0, -1, -1, 64), 1, "64 headers"),
        (varints(8) + b"\0" + varints(0, 0, -1, -1, 1, -1, -1), 1, "without a key"),
        (varints(6) + b"\0" + varints(0, 1, -1, -1, 0), 1, "offset delta 1"),
        (varints(6) + b"\0" + varints(0, -1, -1, -1, 0), 1, "offset delta -1"),
        (2 * (varints(len(PLAIN)) + PLAIN), 2, "offset delta 0 after 0"),
        (b"\xff" * 20, 1, "32 bits"),
        (b"", -1, "-1 records"),
    ],
)
def test_malformed_records(body: bytes, count: int, text: str) -> None:
    buf = around(body, count)
    with pytest.raises(errors.InvalidRecord, match=text) as caught:
        records_of(buf)
    assert caught.value.code is ErrorCode.INVALID_RECORD
    with pytest.raises(errors.InvalidRecord):
        check_deep(buf, read_header(buf))


def test_a_timestamp_past_int64_is_refused() -> None:
    buf = build([Record(0, 2**62, b"", b""), Record(1, 2**62 + 2**61, b"", b"")])
    buf[27:35] = (2**63 - 1).to_bytes(8, "big")
    with pytest.raises(errors.InvalidTimestamp):
        records_of(buf)


def test_a_compacted_topic_refuses_a_record_without_a_key() -> None:
    buf = build([Record(0, 0, b"k", b"v"), Record(1, 0, None, b"v")])
    check_deep(buf, read_header(buf))
    with pytest.raises(errors.InvalidRecord, match="record 1 has no key"):
        check_deep(buf, read_header(buf), key_required=True)


def test_deep_validation_looks_at_the_checksum() -> None:
    buf = build([Record(0, 0, b"k", b"v")])
    buf[-2] ^= 1
    with pytest.raises(errors.WrongChecksum):
        check_deep(buf, read_header(buf))


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_a_batch_that_decompresses_past_the_limit_is_refused(codec: Codec) -> None:
    buf = build([Record(0, 0, b"k", bytes(1_000_000))], codec=codec)
    with pytest.raises(errors.RecordTooLarge):
        list(iter_records(buf, read_header(buf), 500_000))
