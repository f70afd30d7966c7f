"""Fetched record batches into Arrow columns, exactly as Spark's schema asks for them.

Keys and values lie in the fetched bytes between other fields. The bytes are taken as one Arrow array whose elements
are key, gap, value, gap, key ..., which costs no copy, and Arrow then takes out the keys and the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.records.batch import Batch, batches
from headrace.records.errors import InvalidRecord
from headrace.records.record import read_headers
from headrace.spark.scan import Fields, Ints, bodies, scan

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS,
}
_MOST_BYTES = 16 << 20
"""Compressed batches are decompressed up to about this much at a time: the bound on what a task holds."""
_MAX_POSITION = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records of a partition: offsets from `start` up to `end`, and times (in ms) where they are limited."""

    start: int
    end: int
    from_time: int | None = None
    to_time: int | None = None


class Columns:
    """Decodes what was fetched from one partition."""

    def __init__(self, names: Sequence[str], topic: str, partition: int, check_crcs: bool = True) -> None:
        self._names = tuple(names)
        self._topic = topic
        self._partition = partition
        self._check_crcs = check_crcs
        self.schema = pa.schema([pa.field(name, TYPES[name]) for name in names])

    def decode(self, data: bytes, wanted: Wanted) -> Iterator[pa.RecordBatch]:
        """The wanted records of whole batches, as one Arrow batch or a few."""
        found = [batch for batch in batches(data) if _overlaps(batch, wanted)]
        for group in _groups(found):
            buffer, placed = bodies(data, group, self._check_crcs)
            if not placed:
                continue
            fields = _narrowed(scan(buffer, placed), wanted)
            if len(fields):
                arrays = [self._column(name, buffer, fields) for name in self._names]
                yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _column(self, name: str, buffer: bytes, fields: Fields) -> pa.Array:
        count = len(fields)
        match name:
            case "key":
                return _binary(buffer, fields.key_start, fields.key_length)
            case "value":
                return _binary(buffer, fields.value_start, fields.value_length)
            case "topic":
                return _repeated(self._topic.encode(), count)
            case "partition":
                return pa.array(np.full(count, self._partition, np.int32))
            case "offset":
                return pa.array(fields.offset)
            case "timestamp":
                return _timestamps(fields.timestamp)
            case "timestampType":
                return pa.array(fields.append_time.astype(np.int32))
            case _:
                return _headers(buffer, fields)


def _overlaps(batch: Batch, wanted: Wanted) -> bool:
    if batch.next_offset <= wanted.start or batch.base_offset >= wanted.end:
        return False
    return wanted.from_time is None or batch.max_timestamp >= wanted.from_time


def _groups(found: list[Batch]) -> Iterator[list[Batch]]:
    """Batches to decode together: all of them, unless they are compressed and may grow."""
    if not any(batch.codec for batch in found):
        if found:
            yield found
        return
    group: list[Batch] = []
    size = 0
    for batch in found:
        group.append(batch)
        size += batch.size * (8 if batch.codec else 1)
        if size >= _MOST_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _narrowed(fields: Fields, wanted: Wanted) -> Fields:
    offsets = fields.offset
    if (np.diff(offsets) <= 0).any():
        raise InvalidRecord("the offsets of fetched records do not grow")
    if offsets[0] < wanted.start or offsets[-1] >= wanted.end:
        low, high = np.searchsorted(offsets, [wanted.start, wanted.end])
        fields = fields[low:high]
    if wanted.from_time is not None:
        fields = fields[fields.timestamp >= wanted.from_time]
    if wanted.to_time is not None:
        fields = fields[fields.timestamp < wanted.to_time]
    return fields


def _binary(buffer: bytes, starts: Ints, lengths: Ints) -> pa.Array:
    """The pieces of `buffer` at `starts`; a length of -1 is a null."""
    count = len(starts)
    nulls = lengths < 0
    missing = int(nulls.sum())
    if missing == count:
        return pa.nulls(count, pa.binary())
    if len(buffer) > _MAX_POSITION:
        raise InvalidRecord(f"{len(buffer)} bytes of records in one answer: lower headrace.fetch.max.bytes")
    edges = np.empty((count, 2), np.int32)
    edges[:, 0] = starts
    edges[:, 1] = starts + lengths if not missing else starts + np.maximum(lengths, 0)
    # Element 2 i is the piece, 2 i + 1 the gap up to the next one; the last gap is left out.
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(edges), pa.py_buffer(buffer)])
    taken = pieces.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))
    if not missing:
        return taken
    _, offsets, content = taken.buffers()
    valid = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), count, [valid, offsets, content], null_count=missing)


def _repeated(text: bytes, count: int) -> pa.Array:
    offsets = np.arange(0, (count + 1) * len(text), max(1, len(text)), dtype=np.int32)[: count + 1]
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text * count)])


def _timestamps(milliseconds: Ints) -> pa.Array:
    return pa.array(milliseconds * 1000).view(TYPES["timestamp"])


def _headers(buffer: bytes, fields: Fields) -> pa.Array:
    """Records with headers are rare enough to be read one by one; those without become empty lists, as in Spark."""
    rows: list[list[dict[str, object]]] = [[] for _ in range(len(fields))]
    for row in np.flatnonzero(fields.header_count).tolist():
        start, count, stop = (int(each[row]) for each in (fields.header_start, fields.header_count, fields.stop))
        try:
            found = read_headers(buffer, start, count, stop)
        except IndexError:
            raise InvalidRecord("a header ends past the end of its batch") from None
        rows[row] = [{"key": _text(key), "value": value} for key, value in found]
    return pa.array(rows, HEADERS)


def _text(key: str) -> str:
    """Spark's strings are UTF-8: bytes of a header's key that are not show as the replacement character."""
    return key.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
