"""Fetched bytes into consumer records: the consumer's cost for each record, so integers are read in place.

`headrace.records.record.iter_records` is the reference; this one trusts nothing more, but checks once for each record
(its fields must end where its length says) where that one checks each field.
"""

from __future__ import annotations

from headrace.client.types import ConsumerRecord
from headrace.records.batch import CONTROL, HEADER_SIZE, Batch, batches, valid_crc
from headrace.records.compression import decompress
from headrace.records.errors import InvalidRecord, WrongChecksum
from headrace.records.record import iter_records
from headrace.records.varint import read_int, read_long

_new = tuple.__new__


def decode(data: bytes, topic: str, partition: int, from_offset: int, check_crcs: bool) -> list[ConsumerRecord]:
    """The records of whole batches from `from_offset` on; control batches are left out."""
    found: list[ConsumerRecord] = []
    for batch in batches(data):
        if batch.attributes & CONTROL or batch.next_offset <= from_offset:
            continue
        if check_crcs and not valid_crc(data, batch):
            raise WrongChecksum(f"batch at offset {batch.base_offset} of {topic}-{partition} is damaged")
        records = _decode_batch(data, batch, topic, partition)
        if batch.base_offset < from_offset:
            records = [record for record in records if record.offset >= from_offset]
        found += records
    return found


def next_offset(data: bytes) -> int:
    """The offset after the last batch."""
    return batches(data)[-1].next_offset


def _decode_batch(buf: bytes, batch: Batch, topic: str, partition: int) -> list[ConsumerRecord]:
    body = memoryview(buf)[batch.position + HEADER_SIZE : batch.position + batch.size]
    data = bytes(decompress(batch.codec, body))
    epoch, base_offset, base_time = batch.leader_epoch, batch.base_offset, batch.base_timestamp
    append_time = batch.max_timestamp if batch.log_append_time else None
    kind = 0 if append_time is None else 1
    found: list[ConsumerRecord] = []
    add = found.append
    position = 0
    try:
        for _ in range(batch.count):
            length, position = read_int(data, position)
            stop = position + length
            byte = data[position + 1]
            if byte < 0x80:
                time_delta = (byte >> 1) ^ -(byte & 1)
                position += 2
            else:
                time_delta, position = read_long(data, position + 1)
            byte = data[position]
            if byte < 0x80:
                offset_delta = byte >> 1
                position += 1
            else:
                offset_delta, position = read_int(data, position)
            byte = data[position]
            if byte == 1:
                key = None
                position += 1
            else:
                if byte < 0x80:
                    length = byte >> 1
                    position += 1
                else:
                    length, position = read_int(data, position)
                key = data[position : position + length]
                position += length
            byte = data[position]
            if byte == 1:
                value = None
                position += 1
            else:
                if byte < 0x80:
                    length = byte >> 1
                    position += 1
                else:
                    length, position = read_int(data, position)
                value = data[position : position + length]
                position += length
            if data[position] or position + 1 != stop:
                # Headers, or damage: the careful reader finds out which.
                return _decode_carefully(buf, batch, topic, partition)
            position = stop
            stamp = base_time + time_delta if append_time is None else append_time
            add(
                _new(ConsumerRecord, (topic, partition, base_offset + offset_delta, stamp, kind, key, value, (), epoch))
            )
    except IndexError:
        raise InvalidRecord(f"a record of {topic}-{partition} ends past the end of its batch") from None
    if position != len(data):
        raise InvalidRecord(f"{len(data) - position} bytes after the last record of a batch of {topic}-{partition}")
    return found


def _decode_carefully(buf: bytes, batch: Batch, topic: str, partition: int) -> list[ConsumerRecord]:
    kind = int(batch.log_append_time)
    return [
        ConsumerRecord(topic, partition, offset, timestamp, kind, key, value, headers, batch.leader_epoch)
        for offset, timestamp, key, value, headers in iter_records(buf, batch)
    ]
