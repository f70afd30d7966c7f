"""The log cleaner: compacts the logs of a log dir by what `compaction` decides.

A log's sealed segments are a clean part, which a cleaning has been through, and a dirty part after it. A cleaning
reads the dirty part into an `OffsetMap`, then copies all segments from the first on without the records that a later
one of the same key replaces. It writes `.cleaned` segments, which `Log.replace_segments` puts in place; a crash at
any step leaves that either undone or to be finished when the log is opened. How far each log is clean is in
`cleaner-offset-checkpoint` (Kafka's file): if that is lost or old, more is cleaned than has to be, and nothing else.

A cleaning is a generator that yields the bytes it has just read, so that its caller can share the thread with others
and hold it to a rate. If the log changes under it (truncation, retention), it stops and leaves the log as it is.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import NamedTuple

from headrace.records.batch import HEADER_SIZE, Batch, Bytes, read_header, valid_crc
from headrace.records.errors import RecordError, WrongChecksum
from headrace.storage import checkpoint
from headrace.storage.checkpoint import CheckpointCorrupt, TopicPartition
from headrace.storage.compaction import Compaction, Plan, grouped, last_stable_offset, plan, remember
from headrace.storage.files import Files
from headrace.storage.log import Log
from headrace.storage.offset_map import DEFAULT_BUFFER_BYTES, DEFAULT_LOAD_FACTOR, OffsetMap
from headrace.storage.segment import CLEANED, MAX_POSITION, MAX_RELATIVE_OFFSET, Segment
from headrace.storage.transactions import AbortedTransactions, aborted_transactions

CLEANER_OFFSETS = "cleaner-offset-checkpoint"
_READ_BYTES = 64 * 1024
"""What is read between two yields, unless a batch is larger: some ten milliseconds of work."""
_WRITE_BYTES = 1024 * 1024
_LENGTH_AT = 8
_logger = logging.getLogger(__name__)


class CleaningAborted(Exception):
    """The log changed under a cleaning; nothing was replaced, the next round begins anew."""


class Cleaned(NamedTuple):
    """What a cleaning did. Everything below `next_dirty_offset` is clean now."""

    next_dirty_offset: int
    bytes_read: int
    bytes_written: int


def clean(
    log: Log, what: Plan, offsets: OffsetMap, *, now_ms: int, max_segment_bytes: int = MAX_POSITION
) -> Generator[int, None, Cleaned]:
    """Compact a log as planned; yields the bytes read since the last time. `offsets` is a new map.

    Raises `CleaningAborted` when the log changed meanwhile, a `RecordError` when it holds a damaged batch, OSError when
    the disk fails; the log is intact in each case.
    """
    watch = _Watch(log)
    aborted = yield from aborted_transactions(list(log.segments), last_stable_offset(log), watch.require)
    bytes_read = yield from _fill(log, offsets, what, aborted, watch)
    next_dirty = offsets.latest + 1
    judge = Compaction(
        offsets,
        aborted,
        log.producers.producers,
        end_offset=next_dirty,
        now_ms=now_ms,
        delete_retention_ms=log.config.delete_retention_ms,
    )
    bytes_written = 0
    groups = list(grouped((s for s in log.segments if s.base_offset < next_dirty), log.config.segment_bytes))
    while groups:
        output = _Output(log, groups[0][0].base_offset, max_segment_bytes)
        replaced: list[Segment] = []
        try:
            # A group of which nothing is left goes together with the next one, so that no empty segment stays behind.
            while groups and not output.size:
                replaced += groups[0]
                bytes_read += yield from _copy(groups.pop(0), judge, output, watch)
            output.flush()
            watch.require(replaced)
        except (Exception, GeneratorExit):
            output.discard()
            raise
        log.replace_segments(output.segments, replaced, now_ms)
        bytes_written += output.size
    return Cleaned(next_dirty, bytes_read, bytes_written)


def _copy(group: list[Segment], judge: Compaction, output: _Output, watch: _Watch) -> Generator[int, None, int]:
    """Write what is left of a group's batches."""
    bytes_read = 0
    for segment in group:
        for buf, found in _chunks(segment):
            for batch in found:
                output.add(batch, judge.remainder(buf, batch))
            bytes_read += len(buf)
            yield len(buf)
            watch.require(group)
    return bytes_read


def _fill(
    log: Log, offsets: OffsetMap, what: Plan, aborted: AbortedTransactions, watch: _Watch
) -> Generator[int, None, int]:
    """Read the dirty part into the map, until that is full."""
    bytes_read = 0
    dirty = [
        segment
        for segment in log.segments
        if segment.base_offset < what.end_offset
        and log.segments.end_of(segment, log.log_end_offset) > what.first_dirty_offset
    ]
    for segment in dirty:
        for buf, found in _chunks(segment):
            for batch in found:
                if batch.last_offset < what.first_dirty_offset:
                    continue
                if len(offsets) and not offsets.room_for(batch.count):
                    return bytes_read
                if not batch.is_control and batch not in aborted:
                    remember(offsets, buf, batch, what.first_dirty_offset)
                offsets.latest = batch.last_offset
            bytes_read += len(buf)
            yield len(buf)
            watch.require(dirty)
    offsets.latest = what.end_offset - 1
    return bytes_read


class _Watch:
    """Notices that the log was truncated or lost segments while a cleaning had given way to others."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._sizes = {segment.base_offset: segment.size for segment in log.segments}

    def require(self, segments: Iterable[Segment]) -> None:
        held = self._log.segments
        for segment in segments:
            grown = segment.size - self._sizes[segment.base_offset]
            if not held.holds(segment) or (grown if segment is not held.active else grown < 0):
                raise CleaningAborted(f"{self._log.name}: a segment was cut or deleted while it was cleaned")


def _chunks(segment: Segment) -> Iterator[tuple[bytes, list[Batch]]]:
    """A segment in pieces of whole batches, whose checksums are right; positions count from the piece's beginning."""
    position = 0
    while position < segment.size:
        buf = segment.log.pread(min(_READ_BYTES, segment.size - position), position)
        if len(buf) >= HEADER_SIZE:
            size = int.from_bytes(buf[_LENGTH_AT : _LENGTH_AT + 4], "big") + _LENGTH_AT + 4
            if len(buf) < size <= segment.size - position:
                buf = segment.log.pread(size, position)
        found = []
        at = 0
        while at < len(buf):
            try:
                batch = read_header(buf, at)
            except RecordError:
                if at == 0 or position + len(buf) == segment.size:
                    raise
                break
            if not valid_crc(buf, batch):
                raise WrongChecksum(f"{segment.log.path}: batch at offset {batch.base_offset} has a wrong checksum")
            found.append(batch)
            at += batch.size
        yield buf[:at], found
        position += at


class _Output:
    """The segments a group is cleaned into: one, or more should its batches grow past what a segment can hold."""

    def __init__(self, log: Log, base_offset: int, max_bytes: int) -> None:
        self._log = log
        self._max_bytes = max_bytes
        self._pending = bytearray()
        self._notes: list[tuple[int, int, int, int]] = []
        self.size = 0
        """Bytes taken so far."""
        self.segments: list[Segment] = []
        self._begin(base_offset)

    def _begin(self, base_offset: int) -> None:
        log = self._log
        segment = Segment(log.files, log.folder, base_offset, log.limits, size=None, suffix=CLEANED)
        self.segments.append(segment)
        segment.log.truncate(0)

    def add(self, batch: Batch, data: Bytes | None) -> None:
        """Take what is left of `batch`."""
        if data is None:
            return
        segment = self.segments[-1]
        position = segment.size + len(self._pending)
        too_far = batch.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
        if position and (position + len(data) > self._max_bytes or too_far or segment.full):
            self.flush()
            self._begin(batch.base_offset)
            position = 0
        header = read_header(data)
        self._notes.append((position, header.size, header.last_offset, header.max_timestamp))
        self._pending += data
        self.size += len(data)
        if len(self._pending) >= _WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting, and index it."""
        segment = self.segments[-1]
        if self._pending:
            segment.append(self._pending)
            # Made durable bit by bit, so that nobody has to wait for all of it when the segment is swapped in.
            segment.log.sync()
        for note in self._notes:
            segment.note(*note)
        self._pending = bytearray()
        self._notes.clear()

    def discard(self) -> None:
        for segment in self.segments:
            segment.remove()


class LogCleaner:
    """Compacts the logs of one log dir, the dirtiest first.

    `buffer_bytes` and `load_factor` are `log.cleaner.dedupe.buffer.size` and `log.cleaner.io.buffer.load.factor`.
    """

    def __init__(
        self,
        files: Files,
        folder: str,
        *,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        load_factor: float = DEFAULT_LOAD_FACTOR,
    ) -> None:
        self._files = files
        self._path = os.path.join(folder, CLEANER_OFFSETS)
        self._buffer_bytes = buffer_bytes
        self._load_factor = load_factor
        self.clean_offsets: dict[TopicPartition, int] = {}
        """Up to where each log is clean."""
        self.uncleanable: dict[TopicPartition, str] = {}
        """Logs that a cleaning failed on, and why; they are left alone until they are truncated or opened again."""

    def load(self) -> None:
        """Read the checkpoint. A damaged one is as good as none: every log is dirty then."""
        try:
            self.clean_offsets = checkpoint.read_offsets(self._files, self._path)
        except CheckpointCorrupt as error:
            _logger.warning("%s; all compacted logs here are cleaned anew", error)
            self.clean_offsets = {}

    def dirtiest(
        self, logs: Mapping[TopicPartition, Log], upto: Callable[[TopicPartition], int], now_ms: int
    ) -> tuple[TopicPartition, Plan] | None:
        """The log to clean next, if one is due. `upto` gives a partition's high watermark."""
        plans = [
            (partition, plan(log, self.clean_offsets.get(partition, 0), upto=upto(partition), now_ms=now_ms))
            for partition, log in logs.items()
            if log.config.compact and log.failure is None and partition not in self.uncleanable
        ]
        due = [(partition, what) for partition, what in plans if what.due]
        return max(due, key=lambda entry: entry[1].dirty_ratio, default=None)

    def clean(
        self, partition: TopicPartition, log: Log, what: Plan, now_ms: int
    ) -> Generator[int, None, Cleaned | None]:
        """Clean one log and write the checkpoint; None when that was not possible this time. Yields bytes read."""
        offsets = OffsetMap(self._buffer_bytes, self._load_factor)
        try:
            done = yield from clean(log, what, offsets, now_ms=now_ms)
        except CleaningAborted as error:
            _logger.info("%s", error)
            return None
        except RecordError as error:
            _logger.error("%s cannot be compacted any more: %s", log.folder, error)
            self.uncleanable[partition] = str(error)
            return None
        self.clean_offsets[partition] = done.next_dirty_offset
        self.save()
        return done

    def truncated(self, partition: TopicPartition, offset: int) -> None:
        """The log was cut at `offset`: what comes after it is dirty, and a damaged batch may be gone."""
        self.uncleanable.pop(partition, None)
        if self.clean_offsets.get(partition, 0) > offset:
            self.clean_offsets[partition] = offset
            self.save()

    def forget(self, partition: TopicPartition) -> None:
        """The partition is deleted, or moved to another dir."""
        self.uncleanable.pop(partition, None)
        if self.clean_offsets.pop(partition, None) is not None:
            self.save()

    def save(self) -> None:
        checkpoint.write_offsets(self._files, self._path, self.clean_offsets)
