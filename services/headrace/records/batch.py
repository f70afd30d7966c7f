"""The header of a record batch (message format 2): read, validated and stamped in place.

    baseOffset           0  int64   stamped by the leader
    length               8  int32   bytes after this field
    partitionLeaderEpoch 12 int32   stamped by the leader
    magic                16 int8    2
    crc                  17 uint32  CRC-32C of everything from attributes on
    attributes           21 int16   bits: codec 0-2, timestamp type 3, transactional 4, control 5, delete horizon 6
    lastOffsetDelta      23 int32
    baseTimestamp        27 int64   of the first record; the delete horizon when bit 6 is set
    maxTimestamp         35 int64
    producerId           43 int64
    producerEpoch        51 int16
    baseSequence         53 int32
    recordCount          57 int32
    records              61

The two fields a leader writes lie outside the checksum, so a batch is appended without touching, decompressing or even
looking at its records. Everything here costs the same for one record in a batch as for ten thousand.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from crc32c import crc32c

from headrace.records.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    RecordTooLarge,
    UnknownCodec,
    WrongChecksum,
    WrongMagic,
)

Bytes = bytes | bytearray | memoryview

HEADER: Final = Struct(">qiibIhiqqqhii")
HEADER_SIZE: Final = 61
LOG_OVERHEAD: Final = 12
"""Bytes of base offset and length, which `length` does not count."""

CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_LEADER_EPOCH: Final = -1

_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
_CRC_FROM: Final = 21
_MAX_TIMESTAMP_AT: Final = 35
_LAST_CODEC: Final = 4
_NO_LIMIT: Final = 1 << 63
_UINT32: Final = Struct(">I")
_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")

_unpack_header = HEADER.unpack_from
_new_tuple = tuple.__new__


class Batch(NamedTuple):
    """A header, and where its batch lies: `size` bytes from `position` on in the buffer it was read from."""

    position: int
    size: int
    base_offset: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # Kafka's word; hides tuple.count, which nobody needs here

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; it wraps from the largest int32 to 0. -1 without a sequence."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def log_append_time(self) -> bool:
        """Whether every record's timestamp is `max_timestamp`, the time of the append."""
        return self.attributes & TIMESTAMP_TYPE != 0

    @property
    def delete_horizon(self) -> int | None:
        """From when on the tombstones (or the transaction marker) in this batch may go, once a cleaning has set it."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None


def read_header(buf: Bytes, position: int = 0) -> Batch:
    """The batch at `position`: its length is sane and inside `buf`, its magic is 2. Nothing else is checked."""
    try:
        base_offset, length, epoch, magic, *rest = _unpack_header(buf, position)
    except StructError:
        raise _short(buf, position) from None
    size = length + LOG_OVERHEAD
    if magic != 2:
        raise WrongMagic(magic)
    if size < HEADER_SIZE:
        raise CorruptMessage(f"batch at {position} says it has {size} bytes: a header alone has {HEADER_SIZE}")
    if position + size > len(buf):
        raise CorruptMessage(f"batch at {position} has {size} bytes, only {len(buf) - position} are there")
    return _new_tuple(Batch, (position, size, base_offset, epoch, magic, *rest))


def batches(buf: Bytes) -> list[Batch]:
    """Every batch of a buffer that holds whole batches and nothing else."""
    found = []
    position, end = 0, len(buf)
    while position < end:
        batch = read_header(buf, position)
        found.append(batch)
        position += batch.size
    return found


def valid_crc(buf: Bytes, batch: Batch) -> bool:
    start = batch.position
    return crc32c(memoryview(buf)[start + _CRC_FROM : start + batch.size]) == batch.crc


def intact(buf: memoryview) -> list[Batch]:
    """The batches of a buffer that did not come from a client: whole, and with the right checksums."""
    found = batches(buf)
    if not found:
        raise CorruptMessage("an append without a batch")
    for batch in found:
        if batch.last_offset_delta < 0:
            raise CorruptMessage(f"batch at offset {batch.base_offset}: its last offset delta is negative")
        if not valid_crc(buf, batch):
            raise WrongChecksum(f"batch at offset {batch.base_offset}: the checksum is not that of its bytes")
    return found


def check(
    buf: Bytes,
    *,
    max_message_bytes: int,
    now_ms: int | None = None,
    before_max_ms: int = _NO_LIMIT,
    after_max_ms: int = _NO_LIMIT,
) -> list[Batch]:
    """The batches of a produced buffer, after everything that can be validated without decompressing.

    The limits are `max.message.bytes`, `message.timestamp.before.max.ms` and `message.timestamp.after.max.ms`; leave
    the times out where the broker sets the timestamp itself. Raises the first fault found, so that nothing is
    written.
    """
    view = memoryview(buf)
    end = len(view)
    if not end:
        raise InvalidRecord("a produce request without a batch: send at least one record")
    earliest, latest = (-_NO_LIMIT, _NO_LIMIT) if now_ms is None else (now_ms - before_max_ms, now_ms + after_max_ms)
    found = []
    position = 0
    while position < end:
        # As read_header, without the call: this is what every produced batch pays.
        try:
            header = _unpack_header(view, position)
        except StructError:
            raise _short(view, position) from None
        offset, length, leader_epoch, magic, crc, attributes, last_delta, base_time, max_time, *producer = header
        producer_id, epoch, sequence, count = producer
        size = length + LOG_OVERHEAD
        if magic != 2 or size < HEADER_SIZE or position + size > end:
            read_header(view, position)  # says which of them
        if size > max_message_bytes:
            raise RecordTooLarge(f"batch of {size} bytes, max.message.bytes is {max_message_bytes}")
        if crc32c(view[position + _CRC_FROM : position + size]) != crc:
            raise WrongChecksum(f"batch at {position}: the checksum in the header is not that of its bytes")
        if count < 1 or count != last_delta + 1:
            raise InvalidRecord(f"{count} records with a last offset delta of {last_delta}: give 1 or more, densely")
        if not 0 <= attributes <= _LAST_CODEC:
            _check_attributes(attributes, producer_id)
        if producer_id != NO_PRODUCER_ID and (producer_id < 0 or epoch < 0 or sequence < 0):
            raise InvalidRecord(
                f"producer id {producer_id} with epoch {epoch} and sequence {sequence}: all must be >= 0"
            )
        if base_time < NO_TIMESTAMP or max_time < base_time:
            raise InvalidTimestamp(f"timestamps from {base_time} to {max_time}: give -1 (none) or more, in this order")
        if NO_TIMESTAMP != base_time < earliest:
            raise InvalidTimestamp(f"timestamp {base_time} is before {earliest}, see message.timestamp.before.max.ms")
        if max_time > latest:
            raise InvalidTimestamp(f"timestamp {max_time} is after {latest}, see message.timestamp.after.max.ms")
        found.append(_new_tuple(Batch, (position, size, offset, leader_epoch, *header[3:])))
        position += size
    return found


def stamp(buf: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Write the two fields that belong to the leader. The checksum does not cover them, so it stays right."""
    _INT64.pack_into(buf, position, base_offset)
    _INT32.pack_into(buf, position + LOG_OVERHEAD, leader_epoch)


def stamp_log_append_time(buf: bytearray | memoryview, batch: Batch, now_ms: int) -> Batch:
    """Make `now_ms` the timestamp of every record of `batch`, and the checksum right again. Returns the new header."""
    position = batch.position
    _INT16.pack_into(buf, position + _CRC_FROM, batch.attributes | TIMESTAMP_TYPE)
    _INT64.pack_into(buf, position + _MAX_TIMESTAMP_AT, now_ms)
    stamp_crc(buf, position, batch.size)
    return read_header(buf, position)


def stamp_crc(buf: bytearray | memoryview, position: int, size: int) -> None:
    """Make the checksum of the batch of `size` bytes at `position` right."""
    crc = crc32c(memoryview(buf)[position + _CRC_FROM : position + size])
    _UINT32.pack_into(buf, position + _CRC_AT, crc)


def _short(buf: Bytes, position: int) -> CorruptMessage | WrongMagic:
    """Why there is no whole header at `position`."""
    if position < 0 or position > len(buf):
        return CorruptMessage(f"there is no batch at {position} in a buffer of {len(buf)} bytes")
    if len(buf) > position + _MAGIC_AT and buf[position + _MAGIC_AT] in (0, 1):
        return WrongMagic(buf[position + _MAGIC_AT])
    return CorruptMessage(f"{len(buf) - position} bytes at {position} are too few for a batch header ({HEADER_SIZE})")


def _check_attributes(attributes: int, producer_id: int) -> None:
    """Refuse what a client may not set: codecs that do not exist, and attributes that belong to the log."""
    if attributes & CODEC_MASK > _LAST_CODEC:
        raise UnknownCodec(f"codec {attributes & CODEC_MASK}: use none, gzip, snappy, lz4 or zstd (0 to 4)")
    if attributes & CONTROL:
        raise InvalidRecord("clients may not write control batches")
    if attributes & DELETE_HORIZON:
        raise InvalidRecord("clients may not set a delete horizon: compaction does")
    if attributes & TIMESTAMP_TYPE:
        raise InvalidTimestamp("clients may not set the timestamp type to LogAppendTime: the topic's config does")
    if attributes & TRANSACTIONAL and producer_id == NO_PRODUCER_ID:
        raise InvalidRecord("a transactional batch without a producer id")
