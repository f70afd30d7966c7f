"""Any bytes at all: the readers raise their named errors, and nothing else."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.records.record_strategies import CODECS, read_everything, record_lists

from headrace.records import errors, legacy
from headrace.records.batch import HEADER_SIZE, stamp_crc
from headrace.records.compression import Codec
from headrace.records.record import Record, build


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_random_bytes(data: bytes) -> None:
    read_everything(data)
    read_legacy(data)


@given(st.binary(max_size=300), st.integers(0, 2))
@settings(max_examples=300)
def test_random_bytes_with_a_magic_and_a_length_that_fit(data: bytes, magic: int) -> None:
    buf = bytearray(data.ljust(HEADER_SIZE, b"\0"))
    buf[8:12] = (len(buf) - 12).to_bytes(4, "big")
    buf[16] = magic
    if magic == 2:
        stamp_crc(buf, 0, len(buf))
    read_everything(buf)
    read_legacy(buf)


@given(record_lists(max_size=5), CODECS, st.data())
@settings(max_examples=400)
def test_mutated_batches(records: list[Record], codec: Codec, data: st.DataObject) -> None:
    buf = build(records, codec=codec)
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(buf) - 1))
        match data.draw(st.sampled_from(["set", "insert", "delete"])):
            case "set":
                buf[at] = data.draw(st.integers(0, 255))
            case "insert":
                buf[at:at] = data.draw(st.binary(min_size=1, max_size=4))
            case _ if len(buf) > 1:
                del buf[at]
    if len(buf) >= HEADER_SIZE and data.draw(st.booleans()):
        # Let the damage through to what lies behind the length and the checksum.
        buf[8:12] = (len(buf) - 12).to_bytes(4, "big")
        stamp_crc(buf, 0, len(buf))
    read_everything(buf)


def read_legacy(data: bytes | bytearray) -> None:
    try:
        for message in legacy.messages(data):
            legacy.valid_crc(data, message)
            for _ in legacy.iter_records(message, 100_000):
                pass
    except errors.RecordError:
        pass
