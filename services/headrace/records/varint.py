"""Kafka's variable-length integers: zigzag (small negatives stay short), seven bits a byte, lowest first.

A varint is an int32 in at most 5 bytes, a varlong an int64 in at most 10. Reading returns the value and the position
after it; running off the end of the buffer is an IndexError, which `record` turns into the error of the record it was
reading.
"""

from __future__ import annotations

from headrace.records.errors import InvalidRecord


def write(out: bytearray, value: int) -> None:
    """Append `value` (an int32 or an int64: the bytes are the same).

    >>> out = bytearray(); write(out, -1); write(out, 300); out.hex()
    '01d804'
    """
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def size(value: int) -> int:
    """How many bytes `write` takes.

    >>> size(0), size(-64), size(64)
    (1, 1, 2)
    """
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    return max(1, (rest.bit_length() + 6) // 7)


def read_int(buf: bytes | memoryview, position: int) -> tuple[int, int]:
    """The int32 at `position`, and where it ends."""
    byte = buf[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    return _read_long_form(buf, position, 32)


def read_long(buf: bytes | memoryview, position: int) -> tuple[int, int]:
    """The int64 at `position`, and where it ends."""
    byte = buf[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    return _read_long_form(buf, position, 64)


def _read_long_form(buf: bytes | memoryview, position: int, bits: int) -> tuple[int, int]:
    raw = shift = 0
    while shift < bits:
        byte = buf[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw >> bits:
                break
            return (raw >> 1) ^ -(raw & 1), position
        shift += 7
    raise InvalidRecord(f"a variable-length integer does not fit {bits} bits")
