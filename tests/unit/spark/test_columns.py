"""Decoding into columns: the same as the record reader says, for every shape of batch, and damage is found."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client.batch_builder import BatchBuilder
from headrace.records.batch import batches, read_header, stamp, stamp_crc, stamp_log_append_time
from headrace.records.errors import CorruptMessage, InvalidRecord, InvalidTimestamp, WrongChecksum
from headrace.records.record import iter_records
from headrace.spark.columns import Columns, Wanted
from headrace.spark.options import COLUMNS

EVERYTHING = Wanted(0, 1 << 60)
Rows = list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]


def batch_of(rows: Rows, base_offset: int, codec: int = 0) -> bytearray:
    builder = BatchBuilder()
    for timestamp, key, value, headers in rows:
        builder.append(timestamp, key, value, headers)
    sealed = builder.seal(codec)
    stamp(sealed, 0, base_offset, 3)
    return sealed


def log_of(parts: list[Rows], codec: int = 0) -> bytes:
    out, offset = bytearray(), 100
    for rows in parts:
        out += batch_of(rows, offset, codec)
        offset += len(rows)
    return bytes(out)


def decoded(data: bytes, wanted: Wanted = EVERYTHING, names: tuple[str, ...] = COLUMNS) -> list[dict[str, object]]:
    return [row for batch in Columns(names, "orders", 7).decode(data, wanted) for row in batch.to_pylist()]


def expected(data: bytes) -> list[tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]:
    return [
        (r.offset, r.timestamp, r.key, r.value, list(r.headers)) for b in batches(data) for r in iter_records(data, b)
    ]


def same(data: bytes) -> None:
    found = [
        (
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),  # type: ignore[attr-defined]
            row["key"],
            row["value"],
            [(header["key"], header["value"]) for header in row["headers"]],  # type: ignore[attr-defined]
        )
        for row in decoded(data)
    ]
    assert found == expected(data)


maybe_bytes = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=5), maybe_bytes), max_size=2)
rows = st.lists(st.tuples(st.integers(0, 2**41), maybe_bytes, maybe_bytes, headers), min_size=1, max_size=8)


@settings(max_examples=40)
@given(st.lists(rows, min_size=1, max_size=30), st.sampled_from([0, 1, 4]))
def test_any_records_come_out_as_they_went_in(parts: list[Rows], codec: int) -> None:
    same(log_of(parts, codec))


@pytest.mark.parametrize("sizes", [(100, 100), (1024, 1024), (60, 140), (0, 3), (70_000, 70_001)])
@pytest.mark.parametrize("count", [1, 5, 150])
@pytest.mark.parametrize("parts", [1, 40])
def test_runs_of_one_size_many_batches_and_long_ones(sizes: tuple[int, int], count: int, parts: int) -> None:
    if sizes[0] * count * parts > 3_000_000:
        return  # the same again, only larger
    chance = random.Random(5)
    made: list[Rows] = [
        [(1_700_000_000_000 + n, b"k%d" % n, chance.randbytes(chance.randint(*sizes)), []) for n in range(count)]
        for _ in range(parts)
    ]
    same(log_of(made))


def test_the_topics_name_and_the_partition_are_on_every_row() -> None:
    found = decoded(log_of([[(5, None, b"v", []), (6, b"k", None, [])]]))
    assert [(row["topic"], row["partition"], row["timestampType"]) for row in found] == [("orders", 7, 0)] * 2
    assert [row["key"] for row in found] == [None, b"k"]


def test_log_append_time_is_the_time_of_every_record() -> None:
    batch = batch_of([(5, None, b"v", []), (6, None, b"w", [])], 0)
    stamp_log_append_time(batch, read_header(batch), 9000)
    found = decoded(bytes(batch))
    assert [(row["timestamp"].timestamp(), row["timestampType"]) for row in found] == [(9.0, 1)] * 2  # type: ignore[attr-defined]


def test_only_what_is_wanted() -> None:
    data = log_of([[(n, None, b"%d" % n, []) for n in range(10)], [(n, None, b"%d" % n, []) for n in range(10, 20)]])
    names = ("offset",)
    assert [row["offset"] for row in decoded(data, Wanted(105, 113), names)] == list(range(105, 113))
    assert [row["offset"] for row in decoded(data, Wanted(100, 200, 4, 12), names)] == list(range(104, 112))
    assert decoded(data, Wanted(120, 130), names) == []


def test_batches_that_compaction_emptied_are_passed_over() -> None:
    empty = bytearray(batch_of([(1, b"k", b"v", [])], 100))[:61]
    empty[8:12] = (49).to_bytes(4, "big")
    empty[57:61] = (0).to_bytes(4, "big")
    stamp_crc(empty, 0, 61)
    data = bytes(empty) + bytes(batch_of([(2, b"k", b"w", [])], 101))
    assert [row["value"] for row in decoded(data)] == [b"w"]


def test_a_damaged_batch_is_found_by_its_checksum() -> None:
    data = bytearray(log_of([[(1, b"k", b"v" * 50, [])]]))
    data[80] ^= 1
    with pytest.raises(WrongChecksum, match="offset 100 is damaged"):
        decoded(bytes(data))


@settings(max_examples=120)
@given(st.integers(61, 400), st.integers(1, 255), st.sampled_from([1, 30]))
def test_wrong_bytes_behind_a_right_checksum_never_pass_unnoticed_nor_crash(
    position: int, flip: int, parts: int
) -> None:
    one = log_of([[(n, b"key", b"v" * 40, [("h", b"x")] if n == 2 else []) for n in range(8)]] * parts)
    data = bytearray(one)
    size = read_header(data).size
    position = min(position, size - 1)
    data[position] ^= flip
    stamp_crc(data, 0, size)
    try:
        reference = expected(bytes(data))
    except (InvalidRecord, CorruptMessage, InvalidTimestamp):
        with pytest.raises((InvalidRecord, CorruptMessage)):
            decoded(bytes(data))
    else:
        found = [(row["offset"], row["key"], row["value"]) for row in decoded(bytes(data))]
        assert found == [(offset, key, value) for offset, _, key, value, _ in reference]
