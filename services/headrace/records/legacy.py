"""Message formats 0 and 1, read only: what logs written before Kafka 0.11 hold, for the dump tool.

    offset      0  int64   of a compressed wrapper: the offset of its last inner message
    size        8  int32   bytes after this field
    crc         12 uint32  CRC-32 of everything from magic on
    magic       16 int8    0 or 1
    attributes  17 int8    codec (bits 0-2), timestamp type (3, format 1)
    timestamp   18 int64   format 1 only
    key            int32 length (-1: none), bytes
    value          int32 length (-1: none), bytes; of a wrapper: the inner messages, compressed

Inner messages of format 0 carry absolute offsets; those of format 1 count from 0 and the wrapper's offset places them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from headrace.records.batch import CODEC_MASK, LOG_OVERHEAD, NO_TIMESTAMP, TIMESTAMP_TYPE, Bytes
from headrace.records.compression import DEFAULT_MAX_DECOMPRESSED, Codec, decompress
from headrace.records.errors import CorruptMessage, InvalidRecord, WrongChecksum, WrongMagic
from headrace.records.record import Record

_HEADER: Final = Struct(">qiIbb")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
_CRC_FROM: Final = 16
_HEADER_SIZE: Final = {0: 18, 1: 26}
_KEY_AND_VALUE_LENGTHS: Final = 8


class Message(NamedTuple):
    """One message on disk: `size` bytes from `position` on. With a codec it is a wrapper of others."""

    position: int
    size: int
    offset: int
    crc: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def log_append_time(self) -> bool:
        return self.magic == 1 and self.attributes & TIMESTAMP_TYPE != 0


def read_message(buf: Bytes, position: int = 0) -> Message:
    """The message at `position`; its lengths are sane, its checksum is not looked at."""
    try:
        offset, length, crc, magic, attributes = _HEADER.unpack_from(buf, position)
        if magic not in _HEADER_SIZE:
            raise WrongMagic(magic)
        size = length + LOG_OVERHEAD
        if size < _HEADER_SIZE[magic] + _KEY_AND_VALUE_LENGTHS or position + size > len(buf):
            raise CorruptMessage(f"message at {position} says it has {size} bytes, {len(buf) - position} are there")
        timestamp = _INT64.unpack_from(buf, position + 18)[0] if magic else NO_TIMESTAMP
        end = position + size
        key, after = _read_bytes(buf, position + _HEADER_SIZE[magic], end)
        value, after = _read_bytes(buf, after, end)
    except StructError:
        raise CorruptMessage(f"{len(buf) - position} bytes at {position} are too few for a message") from None
    if after != end:
        raise CorruptMessage(f"message at {position} has {end - after} bytes after its value")
    return Message(position, size, offset, crc, magic, attributes, timestamp, key, value)


def messages(buf: Bytes) -> Iterator[Message]:
    """Every message of a buffer that holds whole messages and nothing else."""
    position = 0
    while position < len(buf):
        message = read_message(buf, position)
        yield message
        position += message.size


def valid_crc(buf: Bytes, message: Message) -> bool:
    start = message.position
    return zlib.crc32(memoryview(buf)[start + _CRC_FROM : start + message.size]) == message.crc


def unwrap(message: Message, max_size: int = DEFAULT_MAX_DECOMPRESSED) -> Iterator[Message]:
    """The message itself, or those a wrapper holds, with the offsets and timestamps they have in the log."""
    if not message.codec:
        yield message
        return
    if message.value is None:
        raise InvalidRecord(f"compressed message at offset {message.offset} has no value")
    value = message.value
    if message.codec == Codec.LZ4 and message.magic == 0:
        value = _with_right_header_checksum(value)
    data = bytes(decompress(message.codec, value, max_size))
    inner = list(messages(data))
    if not inner:
        raise InvalidRecord(f"compressed message at offset {message.offset} holds no message")
    # In format 1 the wrapper has the last inner message's offset and the inner ones count from 0.
    shift = message.offset - inner[-1].offset if message.magic else 0
    for one in inner:
        if one.codec or one.magic != message.magic:
            raise InvalidRecord(f"compressed message at offset {message.offset} holds a message of another kind")
        if not valid_crc(data, one):
            raise WrongChecksum(f"a message inside the one at offset {message.offset} has a wrong checksum")
        timestamp = message.timestamp if message.log_append_time else one.timestamp
        yield one._replace(offset=one.offset + shift, timestamp=timestamp)


def iter_records(message: Message, max_size: int = DEFAULT_MAX_DECOMPRESSED) -> Iterator[Record]:
    """The record a message is, or the records a wrapper holds."""
    for one in unwrap(message, max_size):
        yield Record(one.offset, one.timestamp, one.key, one.value)


def _read_bytes(buf: Bytes, position: int, end: int) -> tuple[bytes | None, int]:
    (length,) = _INT32.unpack_from(buf, position)
    position += 4
    if length == -1:
        return None, position
    if length < 0 or position + length > end:
        raise CorruptMessage(f"a key or value of {length} bytes, {end - position} are left in its message")
    return bytes(buf[position : position + length]), position + length


def _with_right_header_checksum(frame: bytes) -> bytes:
    """An lz4 frame as format 0 stored it, with the header checksum that the lz4 format asks for.

    Kafka's first lz4 writer hashed the frame's magic along with the descriptor, so strict readers refuse the frame.
    """
    flags = frame[4] if len(frame) > 4 else 0
    end = 6 + 8 * (flags >> 3 & 1) + 4 * (flags & 1)
    if len(frame) <= end:
        raise CorruptMessage("an lz4 frame ends inside its header")
    checksum = _xxh32(frame[4:end]) >> 8 & 0xFF
    return frame[:end] + bytes([checksum]) + frame[end + 1 :]


def _xxh32(data: bytes) -> int:
    """XXH32 with seed 0 of fewer than 16 bytes, which is as long as an lz4 frame descriptor gets."""
    p1, p2, p3, p4, p5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    mask = 0xFFFFFFFF
    acc = p5 + len(data)
    at = 0
    while at + 4 <= len(data):
        acc = (acc + int.from_bytes(data[at : at + 4], "little") * p3) & mask
        acc = ((acc << 17 | acc >> 15) & mask) * p4 & mask
        at += 4
    for byte in data[at:]:
        acc = (acc + byte * p5) & mask
        acc = ((acc << 11 | acc >> 21) & mask) * p1 & mask
    acc = (acc ^ acc >> 15) * p2 & mask
    acc = (acc ^ acc >> 13) * p3 & mask
    return acc ^ acc >> 16
