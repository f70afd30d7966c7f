"""Where the records and their fields lie in fetched batches: found for thousands of records at once, not one by one.

A record begins where the one before it ends, so the starts are a chain that has to be followed. Three ways to do that
without a Python step for each record, all exact:

- many batches are followed side by side, one record of each at a time;
- a run of records of one size is followed in one step: if the record at p is s bytes long, one begins at p + s, and if
  that one has the same length prefix, one begins at p + 2 s, and so on until the prefix differs;
- what is left is followed by the loop in `_follow`, which looks at nothing but lengths.

Once the starts are known, every field is read for all records together (`Varints.read`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.records.batch import CONTROL, HEADER_SIZE, Batch, valid_crc
from headrace.records.compression import decompress
from headrace.records.errors import InvalidRecord, WrongChecksum
from headrace.records.varint import read_int

Ints = NDArray[np.int64]
_SIDE_BY_SIDE = 24
"""From so many batches on, following them together is faster than one after the other."""
_RUN = 4
"""After so many records of one size in a row, more of them are looked for in one step."""


class Body(NamedTuple):
    """The records of a batch, uncompressed: bytes `start` to `end` of a buffer."""

    batch: Batch
    start: int
    end: int


@dataclass(slots=True)
class Fields:
    """Every record of some batches; lengths of -1 are nulls. Positions are those of the buffer that was scanned."""

    offset: Ints
    timestamp: Ints
    append_time: NDArray[np.bool_]
    key_start: Ints
    key_length: Ints
    value_start: Ints
    value_length: Ints
    header_count: Ints
    header_start: Ints
    stop: Ints

    def __getitem__(self, rows: Any) -> Fields:
        return Fields(*(getattr(self, name)[rows] for name in Fields.__slots__))

    def __len__(self) -> int:
        return len(self.offset)


def bodies(data: bytes, found: list[Batch], check_crcs: bool) -> tuple[bytes, list[Body]]:
    """The records of batches as bytes of one buffer: the fetched one itself when nothing is compressed."""
    wanted = [batch for batch in found if not batch.attributes & CONTROL and batch.count > 0]
    if check_crcs:
        for batch in wanted:
            if not valid_crc(data, batch):
                raise WrongChecksum(f"the batch at offset {batch.base_offset} is damaged: its checksum is wrong")
    if not any(batch.codec for batch in wanted):
        return data, [Body(b, b.position + HEADER_SIZE, b.position + b.size) for b in wanted]
    view = memoryview(data)
    parts = [decompress(b.codec, view[b.position + HEADER_SIZE : b.position + b.size]) for b in wanted]
    placed, position = [], 0
    for batch, part in zip(wanted, parts, strict=True):
        placed.append(Body(batch, position, position + len(part)))
        position += len(part)
    return b"".join(parts), placed


def scan(data: bytes, found: list[Body]) -> Fields:
    """The fields of every record in `found`; damaged ones raise `InvalidRecord`."""
    varints = Varints(data)
    counts = np.array([body.batch.count for body in found], np.int64)
    starts = record_starts(data, found, varints, counts)
    try:
        return _fields(varints, found, counts, starts)
    except IndexError:
        raise InvalidRecord("a record ends past the end of its batch") from None


def _fields(varints: Varints, found: list[Body], counts: Ints, starts: Ints) -> Fields:
    def each(values: list[int]) -> Ints:
        return np.repeat(np.array(values, np.int64), counts)

    length, at = varints.read(starts)
    stop = at + length
    time_delta, at = varints.read(at + 1)
    offset_delta, at = varints.read(at)
    key_length, key_start = varints.read(at)
    value_length, value_start = varints.read(key_start + np.maximum(key_length, 0))
    header_count, header_start = varints.read(value_start + np.maximum(value_length, 0))
    last_delta = each([body.batch.last_offset_delta for body in found])
    damaged = (
        (np.minimum(np.minimum(key_length, value_length), header_count - 1) < -1)
        | (header_start > stop)
        | ((header_count == 0) & (header_start != stop))
        | (offset_delta < 0)
        | (offset_delta > last_delta)
    )
    if damaged.any():
        raise InvalidRecord(f"record {int(np.argmax(damaged))} of a fetch has lengths that do not fit together")
    timestamp = each([body.batch.base_timestamp for body in found]) + time_delta
    append_time = each([int(body.batch.log_append_time) for body in found]).astype(np.bool_)
    if append_time.any():
        timestamp = np.where(append_time, each([body.batch.max_timestamp for body in found]), timestamp)
    return Fields(
        each([body.batch.base_offset for body in found]) + offset_delta,
        timestamp,
        append_time,
        key_start,
        key_length,
        value_start,
        value_length,
        header_count,
        header_start,
        stop,
    )


class Varints:
    """Kafka's variable-length integers, read at many positions of one buffer at once."""

    def __init__(self, data: bytes) -> None:
        self._bytes = np.frombuffer(data, np.uint8)

    def read(self, at: Ints) -> tuple[Ints, Ints]:
        """The numbers at `at`, and the positions after them; IndexError past the end."""
        raw, after = self._read_raw(at)
        return (raw >> 1) ^ -(raw & 1), after

    def _read_raw(self, at: Ints) -> tuple[Ints, Ints]:
        raw = self._bytes[at].astype(np.int64)
        more = raw >= 0x80
        if not more.any():
            return raw, at + 1
        if more.all():
            # The usual case of a length: two bytes everywhere.
            second = self._bytes[at + 1].astype(np.int64)
            if not (second >= 0x80).any():
                return (raw & 0x7F) | (second << 7), at + 2
        raw &= 0x7F
        width = np.ones(len(at), np.int64)
        for shift in range(7, 70, 7):
            rows = np.flatnonzero(more)
            if not len(rows):
                return raw, at + width
            byte = self._bytes[at[rows] + shift // 7].astype(np.int64)
            raw[rows] |= (byte & 0x7F) << shift
            width[rows] += 1
            more[rows] = byte >= 0x80
        if more.any():
            raise InvalidRecord("a number of a record has more than ten bytes")
        return raw, at + width

    def run(self, at: int, size: int, limit: int, prefix: int) -> int:
        """How many records from `at` on, `size` bytes each and at most `limit`, begin with the same two bytes."""
        rows = self._bytes[at : at + size * limit]
        first = rows[0::size] == (prefix & 0xFF)
        second = rows[1::size] == (prefix >> 8)
        same = first[: len(second)] & second
        return len(same) if same.all() else int(np.argmin(same))


def record_starts(data: bytes, found: list[Body], varints: Varints, counts: Ints) -> Ints:
    """Where each record begins, in order."""
    if len(found) >= _SIDE_BY_SIDE:
        return _side_by_side(found, varints, counts)
    starts: list[Ints] = []
    for body in found:
        try:
            end = _follow(data, body, varints, starts)
        except IndexError:
            end = -1
        if end != body.end:
            raise InvalidRecord(f"the records of the batch at offset {body.batch.base_offset} do not fill it")
    return np.concatenate(starts) if starts else np.empty(0, np.int64)


def _follow(data: bytes, body: Body, varints: Varints, into: list[Ints]) -> int:
    """The starts of one batch's records, appended to `into`; returns where the last one ends."""
    at, end, left = body.start, body.end, body.batch.count
    single: list[int] = []
    add = single.append
    previous = alike = 0
    while left:
        byte = data[at]
        following = data[at + 1]
        if byte < 0x80:
            size = 1 + (byte >> 1)
        elif following < 0x80:
            size = 2 + ((byte & 0x7F | following << 7) >> 1)
        else:
            length, after = read_int(data, at)
            size = after - at + length
        if size < 7 or at + size > end:
            raise InvalidRecord(f"a record of {size} bytes, {end - at} are left in its batch")
        if size == previous:
            alike += 1
            if alike == _RUN and following < 0x80 <= byte:
                alike = 0
                count = varints.run(at, size, min(left, (end - at) // size), byte | following << 8)
                if single:
                    into.append(np.array(single, np.int64))
                    single = []
                    add = single.append
                into.append(np.arange(at, at + count * size, size, dtype=np.int64))
                at += count * size
                left -= count
                continue
        else:
            previous, alike = size, 0
        add(at)
        at += size
        left -= 1
    if single:
        into.append(np.array(single, np.int64))
    return at


def _side_by_side(found: list[Body], varints: Varints, counts: Ints) -> Ints:
    """As `_follow` for each, one record of every batch at a time."""
    firsts = np.cumsum(counts) - counts
    starts = np.empty(int(counts.sum()), np.int64)
    # The longest first: those that have ended are then always at the back.
    order = np.argsort(-counts, kind="stable")
    at = np.array([body.start for body in found], np.int64)[order]
    ends = np.array([body.end for body in found], np.int64)[order]
    place = firsts[order]
    lengths = counts[order]
    alive = np.searchsorted(-lengths, -np.arange(int(lengths[0])), side="left").tolist()
    done = np.empty(len(found), np.int64)
    for step, width in enumerate(alive):
        if width < len(at):
            done[width : len(at)] = at[width:]
            at, place = at[:width], place[:width]
        starts[place + step] = at
        try:
            length, after = varints.read(at)
        except IndexError:
            raise InvalidRecord("a record ends past the end of its batch") from None
        if (length < 0).any():
            raise InvalidRecord("a record of a negative length")
        at = after + length
    done[: len(at)] = at
    if (done != ends).any():
        wrong = found[int(order[int(np.argmax(done != ends))])]
        raise InvalidRecord(f"the records of the batch at offset {wrong.batch.base_offset} do not fill it")
    return starts
