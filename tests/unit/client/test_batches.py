"""Batches that the client builds and reads, against the record library and other clients' bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client.batch_builder import BatchBuilder, record_size
from headrace.client.decoding import decode
from headrace.records.batch import check, read_header, stamp
from headrace.records.compression import Codec
from headrace.records.errors import InvalidRecord, WrongChecksum
from headrace.records.record import Record, build, check_deep, iter_records

OPTIONAL = st.one_of(st.none(), st.binary(max_size=300), st.just(b"x" * 5000))
HEADERS = st.lists(st.tuples(st.text(max_size=20), OPTIONAL), max_size=3).map(tuple)
RECORDS = st.lists(st.tuples(st.integers(0, 2**41), OPTIONAL, OPTIONAL, HEADERS), min_size=1, max_size=20)


@given(RECORDS, st.sampled_from(Codec))
@settings(max_examples=80)
def test_a_built_batch_is_what_the_record_library_builds(rows: list, codec: Codec) -> None:
    builder = BatchBuilder()
    for row in rows:
        before = builder.size
        builder.append(*row)
        assert builder.size - before <= record_size(*row[1:])
    ours = builder.seal(codec, 7, 1, 42)
    theirs = build(
        [Record(i, *row) for i, row in enumerate(rows)], codec=codec, producer_id=7, producer_epoch=1, base_sequence=42
    )
    assert bytes(ours) == bytes(theirs)
    check_deep(ours, read_header(ours))


@given(st.lists(RECORDS, min_size=1, max_size=4), st.sampled_from(Codec), st.integers(0, 60))
@settings(max_examples=60)
def test_decoding_gives_what_the_record_library_reads(parts: list, codec: Codec, start: int) -> None:
    data, offset = bytearray(), 0
    expected = []
    for rows in parts:
        builder = BatchBuilder()
        for row in rows:
            builder.append(*row)
        batch = builder.seal(codec)
        stamp(batch, 0, offset, 5)
        expected += [r for r in iter_records(batch, read_header(batch)) if r.offset >= start]
        offset += len(rows)
        data += batch
    found = decode(bytes(data), "t", 3, start, check_crcs=True)
    assert [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in found] == [tuple(r) for r in expected]
    assert all((r.topic, r.partition, r.leader_epoch) == ("t", 3, 5) for r in found)


def test_many_records_in_a_batch() -> None:
    builder = BatchBuilder()
    for i in range(9000):
        builder.append(1000 + i * 7, b"%d" % i, None)
    batch = builder.seal()
    assert check(batch, max_message_bytes=1 << 20)[0].count == 9000
    assert [r.key for r in decode(bytes(batch), "t", 0, 8998, True)] == [b"8998", b"8999"]


def test_control_batches_are_left_out() -> None:
    batch = build([Record(0, 1, b"\0\0\0\1", b"\0" * 6)], control=True, producer_id=1, producer_epoch=0)
    assert decode(bytes(batch), "t", 0, 0, True) == []


def test_log_append_time_is_the_time_of_every_record() -> None:
    batch = build([Record(0, 1, None, b"a"), Record(1, 2, None, b"b")], log_append_time=99)
    assert [(r.timestamp, r.timestamp_type) for r in decode(bytes(batch), "t", 0, 0, True)] == [(99, 1), (99, 1)]


def test_damage_is_an_error_and_not_a_record() -> None:
    builder = BatchBuilder()
    builder.append(1, b"key", b"value")
    batch = builder.seal()
    batch[-3] ^= 1
    with pytest.raises(WrongChecksum):
        decode(bytes(batch), "t", 0, 0, check_crcs=True)
    batch = builder.seal()
    batch[61] += 2
    with pytest.raises(InvalidRecord):
        decode(bytes(batch), "t", 0, 0, check_crcs=False)
