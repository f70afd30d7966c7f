"""The records inside a batch: iterated, built, and validated one by one.

    length           varint   bytes after this field
    attributes       int8     unused
    timestampDelta   varlong  to the batch's base timestamp
    offsetDelta      varint   to the batch's base offset
    key              varint length (-1: none), bytes
    value            varint length (-1: none, a tombstone), bytes
    headers          varint count, then key (varint length, UTF-8) and value (varint length or -1, bytes) of each

None of this is needed to append or to send a batch. It is for consumers and producers, for tools, and for the rare work
that must know keys: compaction, and topics that refuse records without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from headrace.records import varint
from headrace.records.batch import (
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE,
    TRANSACTIONAL,
    Batch,
    Bytes,
    stamp_crc,
    valid_crc,
)
from headrace.records.compression import DEFAULT_MAX_DECOMPRESSED, Codec, compress, decompress
from headrace.records.errors import InvalidRecord, InvalidTimestamp, WrongChecksum

Header = tuple[str, bytes | None]

_CONTROL_KEY = Struct(">hh")
_MARKER_VALUE = Struct(">hi")


class Record(NamedTuple):
    """One record. Header keys that are not UTF-8 keep their bytes as surrogates, so a rewrite changes nothing."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


class ControlType(IntEnum):
    """What a control record says; the first two end a transaction."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class Marker(NamedTuple):
    """The end of a transaction, as its coordinator wrote it."""

    type: ControlType
    coordinator_epoch: int


def iter_records(buf: Bytes, batch: Batch, max_size: int = DEFAULT_MAX_DECOMPRESSED) -> Iterator[Record]:
    """The records of `batch`, decompressed. Offsets grow but may have holes, as compaction leaves them.

    The checksum is not looked at (see `valid_crc`). Malformed bytes raise one of `records.errors` at the record where
    they are found; more than `max_size` bytes after decompression raise `RecordTooLarge`.
    """
    if batch.count < 0:
        raise InvalidRecord(f"a batch of {batch.count} records")
    view = memoryview(buf)[batch.position + HEADER_SIZE : batch.position + batch.size]
    data = bytes(decompress(batch.codec, view, max_size))
    position, end = 0, len(data)
    previous = -1
    append_time = batch.max_timestamp if batch.log_append_time else None
    for _ in range(batch.count):
        try:
            length, position = varint.read_int(data, position)
            stop = position + length
            if length < 0 or stop > end:
                raise InvalidRecord(f"a record of {length} bytes, {end - position} are left in its batch")
            time_delta, position = varint.read_long(data, position + 1)
            offset_delta, position = varint.read_int(data, position)
            key, position = _read_bytes(data, position)
            value, position = _read_bytes(data, position)
            count, position = varint.read_int(data, position)
            headers = read_headers(data, position, count, stop) if count else ()
        except IndexError:
            raise InvalidRecord("a record ends past the end of its batch") from None
        if not count and position != stop:
            raise InvalidRecord("a record's length is not that of its fields")
        if not previous < offset_delta <= batch.last_offset_delta:
            raise InvalidRecord(f"offset delta {offset_delta} after {previous}, the last is {batch.last_offset_delta}")
        timestamp = batch.base_timestamp + time_delta if append_time is None else append_time
        if not -(1 << 63) <= timestamp < 1 << 63:
            raise InvalidTimestamp(f"timestamp delta {time_delta} leaves the range of a timestamp")
        yield Record(batch.base_offset + offset_delta, timestamp, key, value, headers)
        previous = offset_delta
        position = stop
    if position != end:
        raise InvalidRecord(f"{end - position} bytes after the last record of a batch")


def check_deep(
    buf: Bytes,
    batch: Batch,
    *,
    key_required: bool = False,
    dense: bool = True,
    max_size: int = DEFAULT_MAX_DECOMPRESSED,
) -> None:
    """Validate what `batch.check` leaves closed: the checksum, every record, and that offset deltas are 0, 1, 2, ...

    `key_required` is for compacted topics, where a record without a key could never be replaced. `dense` is off for
    batches that compaction has been through.
    """
    if not valid_crc(buf, batch):
        raise WrongChecksum(f"batch at offset {batch.base_offset}: the checksum is not that of its bytes")
    expected = batch.base_offset
    for record in iter_records(buf, batch, max_size):
        if dense and record.offset != expected:
            raise InvalidRecord(f"offset {record.offset} where {expected} was expected: deltas must be dense")
        if key_required and record.key is None:
            raise InvalidRecord(f"record {record.offset - batch.base_offset} has no key: a compacted topic needs one")
        expected += 1
    if dense and expected != batch.next_offset:
        raise InvalidRecord(f"{batch.count} records with a last offset delta of {batch.last_offset_delta}")


def build(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    last_offset: int | None = None,
    codec: int = Codec.NONE,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    log_append_time: int | None = None,
    delete_horizon: int | None = None,
    transactional: bool = False,
    control: bool = False,
    empty_timestamp: int = NO_TIMESTAMP,
) -> bytearray:
    """A batch of `records`, whose offsets grow from `base_offset` on.

    `last_offset` is more than the last record's when compaction has removed the end of a batch; `empty_timestamp` is
    the max timestamp of a batch that has no record left. `log_append_time` and `delete_horizon` set the attribute
    they name.
    """
    found = list(records)
    base_timestamp = found[0].timestamp if found else NO_TIMESTAMP
    if delete_horizon is not None:
        base_timestamp = delete_horizon
    body = bytearray()
    for record in found:
        _write_record(body, record, record.offset - base_offset, record.timestamp - base_timestamp)
    payload = compress(codec, body) if found else b""
    if last_offset is None:
        last_offset = found[-1].offset if found else base_offset
    attributes = (codec if found else Codec.NONE) | (TRANSACTIONAL * transactional) | (CONTROL * control)
    max_timestamp = max((record.timestamp for record in found), default=empty_timestamp)
    if log_append_time is not None:
        attributes |= TIMESTAMP_TYPE
        max_timestamp = log_append_time
    if delete_horizon is not None:
        attributes |= DELETE_HORIZON
    size = HEADER_SIZE + len(payload)
    out = bytearray(size)
    HEADER.pack_into(
        out,
        0,
        base_offset,
        size - LOG_OVERHEAD,
        leader_epoch,
        2,
        0,
        attributes,
        last_offset - base_offset,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(found),
    )
    out[HEADER_SIZE:] = payload
    stamp_crc(out, 0, size)
    return out


def build_marker(
    marker: Marker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """The control batch that ends a producer's transaction in one partition."""
    key = _CONTROL_KEY.pack(0, marker.type)
    value = _MARKER_VALUE.pack(0, marker.coordinator_epoch)
    return build(
        [Record(base_offset, timestamp, key, value)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def control_type(record: Record) -> ControlType | None:
    """What a record of a control batch says; None for a type that came after this version."""
    try:
        _, number = _CONTROL_KEY.unpack_from(record.key or b"")
        return ControlType(number)
    except StructError:
        raise InvalidRecord(f"control record at offset {record.offset} has a key of less than 4 bytes") from None
    except ValueError:
        return None


def read_marker(record: Record) -> Marker:
    """The transaction marker in a record of a control batch."""
    kind = control_type(record)
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        raise InvalidRecord(f"control record at offset {record.offset} ends no transaction")
    try:
        _, epoch = _MARKER_VALUE.unpack_from(record.value or b"")
    except StructError:
        raise InvalidRecord(f"transaction marker at offset {record.offset} has a value of less than 6 bytes") from None
    return Marker(kind, epoch)


def _read_bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = varint.read_int(data, position)
    if length < 0:
        if length != -1:
            raise InvalidRecord(f"a key or value of {length} bytes")
        return None, position
    stop = position + length
    if stop > len(data):
        raise IndexError
    return data[position:stop], stop


def read_headers(data: bytes, position: int, count: int, stop: int) -> tuple[Header, ...]:
    """The headers from `position`, which must end at `stop`."""
    # Each header takes two bytes at least, so a count cannot make this loop run longer than the record is.
    if not 0 <= count <= (stop - position) // 2:
        raise InvalidRecord(f"{count} headers in {stop - position} bytes")
    headers = []
    for _ in range(count):
        key, position = _read_bytes(data, position)
        if key is None:
            raise InvalidRecord("a header without a key")
        value, position = _read_bytes(data, position)
        headers.append((key.decode("utf-8", "surrogateescape"), value))
    if position != stop:
        raise InvalidRecord("a record's length is not that of its fields")
    return tuple(headers)


def _write_record(out: bytearray, record: Record, offset_delta: int, time_delta: int) -> None:
    body = bytearray(1)
    varint.write(body, time_delta)
    varint.write(body, offset_delta)
    _write_bytes(body, record.key)
    _write_bytes(body, record.value)
    varint.write(body, len(record.headers))
    for key, value in record.headers:
        _write_bytes(body, key.encode("utf-8", "surrogateescape"))
        _write_bytes(body, value)
    varint.write(out, len(body))
    out += body


def _write_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)
    else:
        varint.write(out, len(value))
        out += value


def in_codec(buf: memoryview, found: Sequence[Batch], codec: Codec) -> memoryview:
    """The same batches stored with `codec`: a topic's compression.type is not the producer's.

    This looks at every record, so it is only for topics that ask for it.
    """
    if all(batch.codec == codec for batch in found):
        return buf
    out = bytearray()
    for batch in found:
        if batch.codec == codec:
            out += buf[batch.position : batch.position + batch.size]
            continue
        out += build(
            iter_records(buf, batch),
            base_offset=batch.base_offset,
            codec=codec,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            transactional=batch.is_transactional,
        )
    return memoryview(out)
