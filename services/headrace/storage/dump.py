"""What lies in a partition's files, line by line, in the words of Kafka's DumpLogSegments.

Reads logs of message formats 0, 1 and 2, both indexes, producer snapshots and the leader epoch checkpoint, from a
running or a stopped broker, from Headrace or from Apache Kafka. Indexes are checked against the log beside them.
Damage does not stop a dump: it is a line with `fault` set, and the rest is still read where that is possible.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from headrace.records import legacy
from headrace.records.batch import NO_SEQUENCE, Batch, read_header, valid_crc
from headrace.records.compression import Codec
from headrace.records.errors import RecordError
from headrace.records.record import ControlType, Record, control_type, iter_records, read_marker
from headrace.storage.checkpoint import CheckpointCorrupt
from headrace.storage.files import Files
from headrace.storage.index import IndexCorrupt, OffsetIndex
from headrace.storage.leader_epoch import FILE_NAME as LEADER_EPOCHS
from headrace.storage.leader_epoch import LeaderEpochs
from headrace.storage.producer_state import ProducerState, SnapshotCorrupt
from headrace.storage.segment import CLEANED, DELETED, INDEX, LOG, SNAPSHOT, SWAP, TIME_INDEX
from headrace.storage.time_index import TimeIndex

_MAGIC_AT = 16
_ANY_SIZE = 2**31 - 1


class Line(NamedTuple):
    """One line to print; `fault` when it tells of damage."""

    text: str
    fault: bool = False


class NotALogFile(ValueError):
    """A file whose name is none of those a partition's folder holds."""


def dump(
    files: Files, path: str, *, deep: bool = False, print_data: bool = False, sanity_check: bool = False
) -> Iterator[Line]:
    """The lines for one file.

    `deep` lists the records of a log and not its batches alone, `print_data` adds their keys and values,
    `sanity_check` looks at an index's structure instead of printing it.
    """
    name = os.path.basename(path)
    suffix = _suffix(name)
    yield Line(f"Dumping {path}")
    if suffix == LOG:
        yield from _dump_log(files, path, deep=deep or print_data, print_data=print_data)
    elif suffix == INDEX and not files.open(path).size():
        yield Line(f"{path} is empty.")
    elif suffix in (INDEX, TIME_INDEX):
        dumped = _check_index(files, path) if sanity_check else _dump_index(files, path)
        yield from dumped
    elif suffix == SNAPSHOT:
        yield from _dump_snapshot(files, path)
    else:
        yield from _dump_epochs(files, path)


def _suffix(name: str) -> str:
    if name == LEADER_EPOCHS:
        return LEADER_EPOCHS
    for renamed in (DELETED, CLEANED, SWAP):
        name = name.removesuffix(renamed)
    stem, suffix = os.path.splitext(name)
    if suffix not in (LOG, INDEX, TIME_INDEX, SNAPSHOT) or not stem.isdigit():
        raise NotALogFile(
            f"{name}: give files named <offset>{LOG}, {INDEX}, {TIME_INDEX} or {SNAPSHOT}, or {LEADER_EPOCHS}"
        )
    return suffix


def _base_offset(path: str) -> int:
    return int(os.path.basename(path).split(".", 1)[0])


# -- logs ------------------------------------------------------------------------------------------------------------


def _dump_log(files: Files, path: str, *, deep: bool, print_data: bool) -> Iterator[Line]:
    yield Line(f"Log starting offset: {_base_offset(path)}")
    offsets = _Offsets()
    with memoryview(files.open(path).map()) as view:
        position = 0
        while position < len(view):
            try:
                found = _entry_at(view, position)
            except RecordError as error:
                yield Line(f"Found {len(view) - position} invalid bytes at the end of {path}: {error.message}", True)
                break
            if isinstance(found, Batch):
                yield from _batch_lines(view, found, offsets, deep=deep, print_data=print_data)
            else:
                yield from _message_lines(view, found, offsets, deep=deep, print_data=print_data)
            position += found.size
    if offsets.jumps:
        yield Line(f"Non-consecutive offsets in {path}", offsets.backwards)
        for before, after in offsets.jumps:
            yield Line(f"  {before} is followed by {after}", after <= before)


class _Offsets:
    """Where the offsets of a log's records do not follow each other: compaction leaves gaps, only damage goes back."""

    def __init__(self) -> None:
        self._last: int | None = None
        self.jumps: list[tuple[int, int]] = []

    def note(self, offset: int) -> None:
        if self._last is not None and offset != self._last + 1:
            self.jumps.append((self._last, offset))
        self._last = offset

    @property
    def backwards(self) -> bool:
        return any(after <= before for before, after in self.jumps)


def _entry_at(view: memoryview, position: int) -> Batch | legacy.Message:
    if position + _MAGIC_AT < len(view) and view[position + _MAGIC_AT] in (0, 1):
        return legacy.read_message(view, position)
    return read_header(view, position)


def _batch_lines(view: memoryview, batch: Batch, offsets: _Offsets, *, deep: bool, print_data: bool) -> Iterator[Line]:
    valid = valid_crc(view, batch)
    horizon = _optional_long(batch.delete_horizon)
    yield Line(
        f"baseOffset: {batch.base_offset} lastOffset: {batch.last_offset} count: {batch.count}"
        f" baseSequence: {batch.base_sequence} lastSequence: {batch.last_sequence}"
        f" producerId: {batch.producer_id} producerEpoch: {batch.producer_epoch}"
        f" partitionLeaderEpoch: {batch.leader_epoch} isTransactional: {_bool(batch.is_transactional)}"
        f" isControl: {_bool(batch.is_control)} deleteHorizonMs: {horizon} position: {batch.position}"
        f" {_time_name(batch)}: {batch.max_timestamp} size: {batch.size} magic: {batch.magic}"
        f" compresscodec: {_codec_name(batch.codec)} crc: {batch.crc} isvalid: {_bool(valid)}",
        not valid,
    )
    if not deep:
        return
    try:
        for record in iter_records(view, batch):
            offsets.note(record.offset)
            yield Line(_record_text(batch, record, print_data=print_data))
    except RecordError as error:
        yield Line(f"| {error}", True)


def _record_text(batch: Batch, record: Record, *, print_data: bool) -> str:
    sequence = NO_SEQUENCE
    if batch.base_sequence >= 0:
        sequence = (batch.base_sequence + record.offset - batch.base_offset) & 0x7FFFFFFF
    keys = ",".join(_text(key.encode("utf-8", "surrogateescape")) for key, _ in record.headers)
    text = (
        f"| offset: {record.offset} {_time_name(batch)}: {record.timestamp} keySize: {_size(record.key)}"
        f" valueSize: {_size(record.value)} sequence: {sequence} headerKeys: [{keys}]"
    )
    if batch.is_control:
        return text + _control_text(record)
    return text + _data_text(record) if print_data else text


def _control_text(record: Record) -> str:
    kind = control_type(record)
    if kind in (ControlType.ABORT, ControlType.COMMIT):
        marker = read_marker(record)
        return f" endTxnMarker: {marker.type.name} coordinatorEpoch: {marker.coordinator_epoch}"
    return f" controlType: {'UNKNOWN(-1)' if kind is None else f'{kind.name}({kind})'}"


def _message_lines(
    view: memoryview, message: legacy.Message, offsets: _Offsets, *, deep: bool, print_data: bool
) -> Iterator[Line]:
    valid = legacy.valid_crc(view, message)
    yield Line(
        f"offset: {message.offset} position: {message.position} {_time_name(message)}: {message.timestamp}"
        f" size: {message.size} magic: {message.magic} compresscodec: {_codec_name(message.codec)}"
        f" crc: {message.crc} isvalid: {_bool(valid)}",
        not valid,
    )
    if not deep:
        return
    try:
        for inner in legacy.unwrap(message):
            offsets.note(inner.offset)
            text = (
                f"| offset: {inner.offset} {_time_name(message)}: {inner.timestamp} keySize: {_size(inner.key)}"
                f" valueSize: {_size(inner.value)} isValid: true crc: {inner.crc}"
            )
            yield Line(text + _data_text(inner) if print_data else text)
    except RecordError as error:
        yield Line(f"| {error}", True)


def _data_text(record: Record | legacy.Message) -> str:
    key = "" if record.key is None else f" key: {_text(record.key)}"
    return key if record.value is None else f"{key} payload: {_text(record.value)}"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _optional_long(value: int | None) -> str:
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def _codec_name(codec: int) -> str:
    return Codec(codec).name.lower() if codec <= Codec.ZSTD else f"unknown({codec})"


def _time_name(entry: Batch | legacy.Message) -> str:
    if entry.magic == 0:
        return "NoTimestampType"
    return "LogAppendTime" if entry.log_append_time else "CreateTime"


# -- indexes ---------------------------------------------------------------------------------------------------------


def _open_index(files: Files, path: str) -> OffsetIndex | TimeIndex:
    kind = OffsetIndex if _suffix(os.path.basename(path)) == INDEX else TimeIndex
    return kind(files.open(path), _base_offset(path), _ANY_SIZE, fresh=False)


def _beside(path: str, suffix: str) -> str:
    """The file of the same segment with another suffix, renamed in the same way (`.deleted`, `.swap`)."""
    return path.replace(_suffix(os.path.basename(path)), suffix)


def _check_index(files: Files, path: str) -> Iterator[Line]:
    index = _open_index(files, path)
    try:
        if isinstance(index, OffsetIndex):
            log = _beside(path, LOG)
            index.check(files.open(log).size() if files.exists(log) else _ANY_SIZE)
        else:
            index.check()
    except IndexCorrupt as error:
        yield Line(str(error), True)
    else:
        yield Line(f"{path} passed sanity check.")


def _dump_index(files: Files, path: str) -> Iterator[Line]:
    index = _open_index(files, path)
    log = _beside(path, LOG)
    if len(index.buffer()) % index.entry_size:
        yield Line(f"{path}: its size is not a whole number of {index.entry_size}-byte entries", True)
    if not files.exists(log):
        yield Line(f"{log} is not there to check the index against", True)
    with memoryview(files.open(log).map() if files.exists(log) else b"") as view:
        if isinstance(index, OffsetIndex):
            yield from _offset_lines(index, view, path)
        else:
            yield from _time_lines(index, view, path)


def _offset_lines(index: OffsetIndex, view: memoryview, path: str) -> Iterator[Line]:
    mismatches = []
    for number in range(len(index)):
        offset, position = index.entry(number)
        if offset == index.base_offset and number:
            # Kafka gives a growing index its full size at once: zeros to the end.
            break
        yield Line(f"offset: {offset} position: {position}")
        batch = _batch_at(view, position)
        last = None if batch is None else batch.last_offset
        if view and last != offset:
            mismatches.append(Line(f"  Index offset: {offset}, log offset: {'none' if last is None else last}", True))
    if mismatches:
        yield Line(f"Mismatches in :{path}", True)
        yield from mismatches


def _time_lines(index: TimeIndex, view: memoryview, path: str) -> Iterator[Line]:
    wrong, unordered, missing = [], [], []
    previous = -1
    batches = _batches(view)
    batch = next(batches, None)
    for number in range(len(index)):
        timestamp, offset = index.entry(number)
        if number and offset == index.base_offset:
            break
        yield Line(f"timestamp: {timestamp} offset: {offset}")
        if number and timestamp <= previous:
            text = f"  Index timestamp: {timestamp}, Previously indexed timestamp: {previous}"
            unordered.append(Line(text, True))
        previous = timestamp
        while batch is not None and batch.last_offset < offset:
            batch = next(batches, None)
        if not view:
            continue
        if batch is None or batch.last_offset != offset:
            found = "none" if batch is None else batch.last_offset
            missing.append(Line(f"  Indexed offset: {offset}, found log offset: {found}", True))
        elif batch.max_timestamp != timestamp:
            text = f"  Index timestamp: {timestamp}, log timestamp: {batch.max_timestamp}"
            wrong.append(Line(text, True))
    for title, lines in (
        ("Found timestamp mismatch in", wrong),
        ("Found out of order timestamp in", unordered),
        ("The following indexed offsets are not found in", missing),
    ):
        if lines:
            yield Line(f"{title} :{path}", True)
            yield from lines


class _Found(NamedTuple):
    """What an index says of a batch, in any message format."""

    last_offset: int
    max_timestamp: int
    size: int


def _batch_at(view: memoryview, position: int) -> _Found | None:
    if not 0 <= position < len(view):
        return None
    try:
        found = _entry_at(view, position)
    except RecordError:
        return None
    if isinstance(found, Batch):
        return _Found(found.last_offset, found.max_timestamp, found.size)
    return _Found(found.offset, found.timestamp, found.size)


def _batches(view: memoryview) -> Iterator[_Found]:
    position = 0
    while (found := _batch_at(view, position)) is not None:
        yield found
        position += found.size


# -- the small files -------------------------------------------------------------------------------------------------


def _dump_snapshot(files: Files, path: str) -> Iterator[Line]:
    try:
        state = ProducerState.decode(files.read(path), 0)
    except SnapshotCorrupt as error:
        yield Line(f"{path}: {error}", True)
        return
    for producer_id, producer in state.producers.items():
        start = producer.transaction_start
        text = (
            f"producerId: {producer_id} producerEpoch: {producer.epoch} coordinatorEpoch: {producer.coordinator_epoch}"
            f" currentTxnFirstOffset: {_optional_long(start if start >= 0 else None)}"
            f" lastTimestamp: {producer.timestamp}"
        )
        if producer.batches:
            last = producer.batches[-1]
            text += (
                f" firstSequence: {last.first_sequence} lastSequence: {last.last_sequence}"
                f" lastOffset: {last.last_offset} offsetDelta: {last.last_offset - last.first_offset}"
                f" timestamp: {last.timestamp}"
            )
        yield Line(text)


def _dump_epochs(files: Files, path: str) -> Iterator[Line]:
    try:
        entries = LeaderEpochs.load(files, path).entries()
    except CheckpointCorrupt as error:
        yield Line(str(error), True)
        return
    for epoch, start in entries:
        yield Line(f"epoch: {epoch} startOffset: {start}")
