"""A record batch under construction: records are written as they come, so that sealing a batch costs no pass over them.

This is the producer's cost for each record: one lookup for each length, one join, one append to the body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.records import varint
from headrace.records.batch import (
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    stamp_crc,
)
from headrace.records.compression import Codec, compress
from headrace.records.record import Header


def _encoded(value: int) -> bytes:
    out = bytearray()
    varint.write(out, value)
    return bytes(out)


_KNOWN: Final = 4096
_VARINTS: Final = [_encoded(value) for value in range(_KNOWN)]
"""The small ones ready made: lengths, and deltas inside a batch, are nearly always among them."""

_NO_BYTES: Final = _encoded(-1)


class BatchBuilder:
    """The records of one batch; `size` is what it takes uncompressed, header included."""

    __slots__ = ("base_timestamp", "body", "count", "max_timestamp")

    def __init__(self) -> None:
        self.body = bytearray()
        self.count = 0
        self.base_timestamp = -1
        self.max_timestamp = -1

    @property
    def size(self) -> int:
        return HEADER_SIZE + len(self.body)

    def append(self, timestamp: int, key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()) -> None:
        """Adds a record; its offset delta is its place in the batch."""
        count = self.count
        if not count:
            self.base_timestamp = self.max_timestamp = timestamp
            delta = 0
        else:
            delta = timestamp - self.base_timestamp
            if timestamp > self.max_timestamp:
                self.max_timestamp = timestamp
        when = _VARINTS[delta] if 0 <= delta < _KNOWN else _encoded(delta)
        place = _VARINTS[count] if count < _KNOWN else _encoded(count)
        if key is None:
            key_length, key = _NO_BYTES, b""
        else:
            length = len(key)
            key_length = _VARINTS[length] if length < _KNOWN else _encoded(length)
        if value is None:
            value_length, value = _NO_BYTES, b""
        else:
            length = len(value)
            value_length = _VARINTS[length] if length < _KNOWN else _encoded(length)
        tail = _headers(headers) if headers else b"\0"
        length = 1 + len(when) + len(place) + len(key_length) + len(key) + len(value_length) + len(value) + len(tail)
        prefix = _VARINTS[length] if length < _KNOWN else _encoded(length)
        self.body += b"".join((prefix, b"\0", when, place, key_length, key, value_length, value, tail))
        self.count = count + 1

    def seal(
        self,
        codec: int = Codec.NONE,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
    ) -> bytearray:
        """The batch, ready to be sent. May be called again, to go out under another producer epoch and sequence."""
        payload = compress(codec, self.body)
        size = HEADER_SIZE + len(payload)
        out = bytearray(HEADER_SIZE)
        HEADER.pack_into(
            out,
            0,
            0,
            size - LOG_OVERHEAD,
            NO_LEADER_EPOCH,
            2,
            0,
            codec,
            self.count - 1,
            self.base_timestamp,
            self.max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            self.count,
        )
        out += payload
        stamp_crc(out, 0, size)
        return out


def record_size(key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()) -> int:
    """At most how many bytes a record adds to a batch."""
    size = 36 + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        size += 10 + 4 * len(name) + (len(content) if content else 0)
    return size


def _headers(headers: Sequence[Header]) -> bytes:
    out = bytearray(_encoded(len(headers)))
    for name, value in headers:
        encoded = name.encode("utf-8", "surrogateescape")
        out += _encoded(len(encoded))
        out += encoded
        if value is None:
            out += _NO_BYTES
        else:
            out += _encoded(len(value))
            out += value
    return bytes(out)
