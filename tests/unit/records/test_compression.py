"""Codecs: round trips, foreign framings, damage and bombs."""

from __future__ import annotations

import contextlib
import gzip

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.records.record_strategies import CODECS

from headrace.records.compression import Codec, compress, decompress
from headrace.records.errors import CorruptMessage, RecordError, RecordTooLarge, UnknownCodec

COMPRESSING = [codec for codec in Codec if codec is not Codec.NONE]


@given(CODECS, st.one_of(st.binary(max_size=200), st.integers(0, 200_000).map(lambda n: b"abc" * (n // 3))))
def test_round_trip(codec: Codec, data: bytes) -> None:
    assert bytes(decompress(codec, compress(codec, data))) == data


def test_snappy_of_several_blocks_and_several_streams() -> None:
    data = bytes(range(256)) * 1000
    once = bytes(compress(Codec.SNAPPY, data))
    assert once.startswith(b"\x82SNAPPY\x00")
    assert bytes(decompress(Codec.SNAPPY, once + once)) == data + data


def test_raw_snappy_is_read() -> None:
    data = b"raw" * 1000
    assert bytes(decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data)))) == data


def test_gzip_is_what_everybody_reads() -> None:
    assert gzip.decompress(bytes(compress(Codec.GZIP, b"data"))) == b"data"


def test_lz4_blocks_are_independent_as_kafka_demands() -> None:
    frame = bytes(compress(Codec.LZ4, b"x" * 200_000))
    assert frame[:4] == b"\x04\x22\x4d\x18"
    assert frame[4] >> 5 & 1, "block independence"


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_bomb_is_refused_at_the_limit(codec: Codec) -> None:
    bomb = compress(codec, bytes(10_000_000))
    with pytest.raises(RecordTooLarge, match="1000000"):
        decompress(codec, bomb, 1_000_000)
    assert len(decompress(codec, bomb, 10_000_000)) == 10_000_000


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_cut_stream_is_corrupt(codec: Codec) -> None:
    whole = bytes(compress(codec, bytes(range(256)) * 100))
    with pytest.raises(CorruptMessage):
        decompress(codec, whole[:-5])


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs_are_named(codec: int) -> None:
    with pytest.raises(UnknownCodec, match=str(codec)):
        decompress(codec, b"x")
    with pytest.raises(UnknownCodec, match=str(codec)):
        compress(codec, b"x")


@given(st.integers(0, 7), st.binary(max_size=200))
def test_random_bytes_raise_only_named_errors(codec: int, data: bytes) -> None:
    with contextlib.suppress(RecordError):
        decompress(codec, data, 100_000)


@given(st.sampled_from(COMPRESSING), st.binary(max_size=300), st.data())
def test_mutated_streams_raise_only_named_errors(codec: Codec, data: bytes, draw: st.DataObject) -> None:
    stream = bytearray(compress(codec, data))
    for _ in range(draw.draw(st.integers(1, 4))):
        stream[draw.draw(st.integers(0, len(stream) - 1))] = draw.draw(st.integers(0, 255))
    with contextlib.suppress(RecordError):
        decompress(codec, stream, 100_000)
