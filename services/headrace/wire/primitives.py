"""The protocol's primitive types, read from a memoryview and written to a bytearray.

A reader takes the buffer and a position and returns the value and the next position. What does not fit raises
`MalformedRequest`: a length is checked before a slice is taken, since a slice past the end is silently shorter, and an
array's length before a loop is entered, since every element takes at least one byte.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from uuid import UUID

from headrace.wire.errors import MalformedRequest

INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")
ZERO_UUID = UUID(int=0)


@lru_cache(maxsize=16384)
def uuid_of(raw: bytes) -> UUID:
    """The UUID of 16 bytes; the same few topic ids come in every request, and a UUID is dear to make."""
    return UUID(bytes=raw)


def read_uvarint(buffer: memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits."""
    try:
        byte = buffer[position]
        position += 1
        if byte < 0x80:
            return byte, position
        value = byte & 0x7F
        shift = 7
        while True:
            byte = buffer[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 28:
                raise MalformedRequest("a varint is longer than 5 bytes")
    except IndexError:
        raise MalformedRequest("the request ends inside a varint") from None
    if value > 0xFFFFFFFF:
        raise MalformedRequest("a varint is larger than 32 bits")
    return value, position


def skip_tags(buffer: memoryview, position: int) -> int:
    """The position after a tag section nobody here asks for."""
    try:
        if not buffer[position]:
            return position + 1
    except IndexError:
        raise MalformedRequest("the request ends where its tags should be") from None
    return read_tags(buffer, position)[1]


def read_tags(buffer: memoryview, position: int) -> tuple[list[tuple[int, int, int]], int]:
    """The tags of a section as (tag, start, end), and where the section ends."""
    count, position = read_uvarint(buffer, position)
    if count > len(buffer) - position:
        raise MalformedRequest(f"{count} tags in {len(buffer) - position} bytes")
    tags = []
    for _ in range(count):
        tag, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        end = position + size
        if end > len(buffer):
            raise MalformedRequest(f"a tag of {size} bytes does not fit in the request")
        tags.append((tag, position, end))
        position = end
    return tags, position


def read_length(buffer: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    """The length of an array or of bytes, -1 for null."""
    if flexible:
        value, position = read_uvarint(buffer, position)
        value -= 1
    else:
        try:
            value = INT32.unpack_from(buffer, position)[0]
        except struct.error:
            raise MalformedRequest("the request ends inside a length") from None
        position += 4
    if value > len(buffer) - position or value < -1:
        raise MalformedRequest(f"a length of {value} with {len(buffer) - position} bytes left")
    return value, position


def read_array_length(buffer: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    """The length of an array that may not be null."""
    value, position = read_length(buffer, position, flexible)
    if value < 0:
        raise MalformedRequest("an array is null that may not be")
    return value, position


def read_nullable_string(buffer: memoryview, position: int, flexible: bool) -> tuple[str | None, int]:
    """A string or null."""
    if flexible:
        size, position = read_uvarint(buffer, position)
        size -= 1
    else:
        try:
            size = INT16.unpack_from(buffer, position)[0]
        except struct.error:
            raise MalformedRequest("the request ends inside a string's length") from None
        position += 2
    if size < 0:
        if size != -1:
            raise MalformedRequest(f"a string of {size} bytes")
        return None, position
    end = position + size
    if end > len(buffer):
        raise MalformedRequest(f"a string of {size} bytes with {len(buffer) - position} left")
    try:
        return str(buffer[position:end], "utf-8"), end
    except UnicodeDecodeError:
        raise MalformedRequest("a string is not UTF-8") from None


def read_string(buffer: memoryview, position: int, flexible: bool) -> tuple[str, int]:
    """A string."""
    text, position = read_nullable_string(buffer, position, flexible)
    if text is None:
        raise MalformedRequest("a string is null that may not be")
    return text, position


def read_uuid(buffer: memoryview, position: int) -> tuple[UUID, int]:
    """A topic or directory id."""
    raw = bytes(buffer[position : position + 16])
    if len(raw) != 16:
        raise MalformedRequest("the request ends inside a uuid")
    return uuid_of(raw), position + 16


def write_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write_length(out: bytearray, value: int, flexible: bool) -> None:
    """Append the length of an array or of bytes, -1 for null."""
    if flexible:
        write_uvarint(out, value + 1)
    else:
        out += INT32.pack(value)


def write_string(out: bytearray, text: str | None, flexible: bool) -> None:
    """Append a string or null."""
    if text is None:
        out += b"\0" if flexible else b"\xff\xff"
        return
    raw = text.encode()
    if flexible:
        write_uvarint(out, len(raw) + 1)
    elif len(raw) > 0x7FFF:
        raise ValueError(f"a string of {len(raw)} bytes is longer than the protocol allows (32767)")
    else:
        out += INT16.pack(len(raw))
    out += raw


def write_tag(out: bytearray, tag: int, value: bytes | bytearray) -> None:
    """Append one tagged field."""
    write_uvarint(out, tag)
    write_uvarint(out, len(value))
    out += value
