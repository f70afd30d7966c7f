"""Variable-length integers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records import varint
from headrace.records.errors import InvalidRecord


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_known_encodings(value: int, encoded: str) -> None:
    out = bytearray()
    varint.write(out, value)
    assert out.hex() == encoded
    assert varint.size(value) == len(out)
    assert varint.read_long(bytes(out), 0) == (value, len(out))


@given(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=4))
def test_int32_round_trip(value: int, after: bytes) -> None:
    out = bytearray(b"..")
    varint.write(out, value)
    end = len(out)
    assert varint.read_int(bytes(out + after), 2) == (value, end)


@given(st.integers(-(2**63), 2**63 - 1))
def test_int64_round_trip(value: int) -> None:
    out = bytearray()
    varint.write(out, value)
    assert varint.size(value) == len(out)
    assert varint.read_long(bytes(out), 0) == (value, len(out))


def test_more_than_32_bits_is_refused_for_an_int() -> None:
    out = bytearray()
    varint.write(out, 2**31)
    with pytest.raises(InvalidRecord, match="32 bits"):
        varint.read_int(bytes(out), 0)


def test_an_integer_that_never_ends_is_refused() -> None:
    with pytest.raises(InvalidRecord, match="64 bits"):
        varint.read_long(b"\xff" * 20, 0)


def test_running_off_the_buffer_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        varint.read_long(b"\x80\x80", 0)
