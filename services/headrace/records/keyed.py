"""Batches of keys and values, made fast: what a coordinator writes, thousands of small ones a second.

The same bytes as `record.build` makes of them, at a fraction of its cost: no record objects, lengths from a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from crc32c import crc32c

from headrace.records import varint
from headrace.records.batch import NO_LEADER_EPOCH

_UNCHECKED = Struct(">qiibI")
"""Base offset, length, leader epoch, magic, checksum of the rest."""
_CHECKED = Struct(">hiqqqhii")
"""Attributes, last offset delta, base and max timestamp, producer id and epoch, base sequence, count."""
_BEFORE_CHECKED = 9
"""Bytes that the length counts before the checked part begins."""


def _encoded(value: int) -> bytes:
    out = bytearray()
    varint.write(out, value)
    return bytes(out)


_SHORT = [_encoded(value) for value in range(1024)]


def _varint(value: int) -> bytes:
    return _SHORT[value] if value < 1024 else _encoded(value)


def build_keyed(
    records: Sequence[tuple[bytes, bytes | None]], timestamp: int, producer_id: int, base_sequence: int
) -> bytes:
    """A batch as an idempotent producer of epoch 0 sends it, every record at `timestamp`; no value is a tombstone."""
    parts = []
    for delta, (key, value) in enumerate(records):
        after_key = b"\x01\x00" if value is None else _varint(len(value)) + value + b"\x00"
        body = b"\x00\x00" + _varint(delta) + _varint(len(key)) + key + after_key
        parts.append(_varint(len(body)) + body)
    count = len(records)
    header = _CHECKED.pack(0, count - 1, timestamp, timestamp, producer_id, 0, base_sequence, count)
    checked = header + b"".join(parts)
    return _UNCHECKED.pack(0, len(checked) + _BEFORE_CHECKED, NO_LEADER_EPOCH, 2, crc32c(checked)) + checked
