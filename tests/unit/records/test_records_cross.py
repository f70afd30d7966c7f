"""Against other people's code: what aiokafka and kafka-python write is read here, and the other way round."""

from __future__ import annotations

from typing import Any

import aiokafka.codec
import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder as AioLegacyBuilder
from hypothesis import given
from kafka.record.default_records import DefaultRecordBatch as KafkaBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaBuilder
from tests.unit.records.record_strategies import CODECS, producer_fields, record_lists

from headrace.records import legacy
from headrace.records.batch import check
from headrace.records.compression import Codec
from headrace.records.record import Record, build, check_deep, iter_records


def as_records(batch: Any) -> list[Record]:
    return [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]


def foreign(builder: Any, records: list[Record], codec: int, producer: dict[str, Any]) -> bytes:
    made = builder(
        magic=2,
        compression_type=codec,
        is_transactional=producer.get("transactional", False),
        producer_id=producer.get("producer_id", -1),
        producer_epoch=producer.get("producer_epoch", -1),
        base_sequence=producer.get("base_sequence", -1),
        batch_size=1 << 24,
    )
    for r in records:
        made.append(r.offset, timestamp=r.timestamp, key=r.key, value=r.value, headers=list(r.headers))
    return bytes(made.build())


@given(record_lists(), CODECS, producer_fields())
def test_aiokafka_both_ways(records: list[Record], codec: Codec, producer: dict[str, Any]) -> None:
    theirs = foreign(AioBuilder, records, codec, producer)
    (batch,) = check(theirs, max_message_bytes=len(theirs))
    check_deep(theirs, batch)
    assert list(iter_records(theirs, batch)) == records
    ours = build(records, codec=codec, **producer)
    read = AioBatch(bytes(ours))
    assert read.validate_crc()
    assert as_records(read) == records


@given(record_lists(), producer_fields())
def test_the_bytes_are_those_of_kafka_python(records: list[Record], producer: dict[str, Any]) -> None:
    theirs = foreign(KafkaBuilder, records, Codec.NONE, producer)
    assert bytes(build(records, leader_epoch=0, **producer)) == theirs[:12] + bytes(4) + theirs[16:]


@given(record_lists())
def test_kafka_python_reads_gzip(records: list[Record]) -> None:
    read = KafkaBatch(bytes(build(records, codec=Codec.GZIP)))
    assert read.validate_crc()
    assert as_records(read) == records


# aiokafka writes no lz4 in format 0; the test of the first lz4 writer below covers it.
@pytest.mark.parametrize(("magic", "codec"), [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3)])
def test_old_formats(magic: Any, codec: int) -> None:
    builder = AioLegacyBuilder(magic, codec, 1 << 20)
    expected = []
    for at, (key, value) in enumerate([(b"a", b"1"), (None, b"2"), (b"c", None), (b"d" * 200, b"4" * 5000)]):
        timestamp = 1000 + at if magic else -1
        builder.append(at, timestamp, key, value)
        expected.append(Record(at, timestamp, key, value))
    buf = bytes(builder.build())
    found = list(legacy.messages(buf))
    assert all(legacy.valid_crc(buf, message) for message in found)
    assert len(found) == (1 if codec else 4)
    if codec and magic:
        # The broker gives a wrapper of format 1 the offset of its last inner message.
        found = [found[0]._replace(offset=53)]
        expected = [record._replace(offset=record.offset + 50) for record in expected]
    assert [record for message in found for record in legacy.iter_records(message)] == expected


def test_the_wrapper_carries_the_time_of_the_append() -> None:
    builder = AioLegacyBuilder(1, Codec.GZIP, 1 << 20)
    builder.append(0, 1000, b"k", b"v")
    (message,) = legacy.messages(bytes(builder.build()))
    message = message._replace(attributes=message.attributes | 8, timestamp=77)
    assert [record.timestamp for record in legacy.iter_records(message)] == [77]


def test_the_wrong_header_checksum_of_the_first_lz4_writer_is_repaired() -> None:
    builder = AioLegacyBuilder(0, Codec.NONE, 1 << 20)
    for at in range(3):
        builder.append(at, None, b"key", b"value" * 100)
    frame = bytearray(aiokafka.codec.lz4_encode(bytes(builder.build())))
    frame[6] ^= 0xFF
    wrapper = legacy.Message(0, 0, 2, 0, 0, Codec.LZ4, -1, None, bytes(frame))
    assert [(r.offset, r.value) for r in legacy.iter_records(wrapper)] == [(at, b"value" * 100) for at in range(3)]
