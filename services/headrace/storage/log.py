"""The log of one partition: batches in, file ranges out.

Three sets of bytes lie in the partition's folder: the segments, the leader epochs and the producers' state. `Log` keeps
them in step: an append is judged completely (`batch.check`, sequence numbers) before anything is touched, then written
with one call, then indexed. A write that fails leaves the log as it was and takes it offline: every later call raises
KAFKA_STORAGE_ERROR, and `on_failure` tells the log dir.

`recovery.open_log` makes one. No threads and no clock in here: the caller gives the time, and calls from one thread.
Only `Flush.run` may run on a worker thread, between `begin_flush` and `finish_flush`.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from headrace.errors import ErrorCode, KafkaError
from headrace.records.batch import Batch, batches, check, intact, stamp, stamp_log_append_time
from headrace.records.errors import CorruptMessage
from headrace.records.record import check_deep, in_codec
from headrace.storage import timestamps
from headrace.storage.config import MAX_LONG, LogConfig
from headrace.storage.deletion import Deletions
from headrace.storage.failure import Fallible, Guard
from headrace.storage.files import File, Files
from headrace.storage.flush import Flush
from headrace.storage.leader_epoch import LeaderEpochs
from headrace.storage.positions import MOST_RECENT, Positions
from headrace.storage.producer_state import ProducerState
from headrace.storage.results import NO_TIME, NOTHING, AppendInfo, ReadInfo
from headrace.storage.retention import SegmentView, deletable
from headrace.storage.segment import (
    CLEANED,
    MAX_POSITION,
    MAX_RELATIVE_OFFSET,
    SWAP,
    Limits,
    Segment,
)
from headrace.storage.segments import Segments
from headrace.storage.snapshots import MARK_BATCHES, Snapshots

PRODUCER_ID_EXPIRATION_MS = 86_400_000
_logger = logging.getLogger(__name__)
_new_tuple = tuple.__new__


class Log(Fallible):
    """See the module's docstring. `log_start_offset`, `log_end_offset` and `recovery_point` are read freely."""

    def __init__(
        self,
        files: Files,
        folder: str,
        config: LogConfig,
        segments: Segments,
        epochs: LeaderEpochs,
        producers: ProducerState,
        snapshots: Snapshots,
        *,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        roll_jitter: float = 0.0,
    ) -> None:
        super().__init__()
        self.files = files
        self.folder = folder
        self.config = config
        self.segments = segments
        self.epochs = epochs
        self.producers = producers
        self.snapshots = snapshots
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.recovery_point = recovery_point
        self.on_checkpoint_stale: Callable[[], None] | None = None
        """Called when the recovery point on disk must not stay above the log's any longer (see `_roll`)."""
        self.checkpoint_stale = False
        self.cut_by_recovery = False
        self.flushed_ms = NO_TIME
        self._roll_jitter = roll_jitter
        """Which part of `segment.jitter.ms` this log takes, from 0 to 1."""
        self._created_ms = NO_TIME
        self._roll_at = 0
        """See `_next_roll`; 0 when it has to be computed."""
        self._roll_bytes = min(config.segment_bytes, MAX_POSITION)
        self._names_changed = True
        self._newborn: tuple[File, ...] = ()
        self._positions = Positions(segments)
        self._unmarked = 0
        """Batches since the producers' state was kept (`Snapshots.mark`)."""
        self._truncations = 0
        self._sealed: list[Segment] = []
        """Segments sealed since the last flush: their indexes are not durable, even where their records are."""
        self._deletions = Deletions()

    @property
    def name(self) -> str:
        """The folder's name: `<topic>-<partition>`."""
        return os.path.basename(self.folder)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def begins_with(self, *files: File) -> None:
        """The log is new: its first flush makes these files and the folder's own name durable, too."""
        self._newborn = files

    @property
    def truncations(self) -> int:
        """How often it was cut: who copies it has to begin anew then."""
        return self._truncations

    def inherit(self, other: Log) -> None:
        """Take over from a log with the same records what batches alone do not tell."""
        for epoch, start in other.epochs.entries():
            self.epochs.assign(epoch, start)
        self.producers = other.producers
        self.log_start_offset = max(self.log_start_offset, other.log_start_offset)

    @property
    def latest_epoch(self) -> int:
        return self.epochs.latest

    # -- append --------------------------------------------------------------------------------------------------

    def append_as_leader(
        self, buf: memoryview, leader_epoch: int, now_ms: int, *, from_client: bool = True
    ) -> AppendInfo:
        """Validate, give offsets, write. `buf` is stamped in place.

        `from_client=False` is for the broker's own batches (transaction markers), which clients may not write.
        """
        config = self.config
        if not from_client:
            found = intact(buf)
        elif config.log_append_time:
            found = check(buf, max_message_bytes=config.max_message_bytes)
        else:
            found = check(
                buf,
                max_message_bytes=config.max_message_bytes,
                now_ms=now_ms,
                before_max_ms=config.timestamp_before_max_ms,
                after_max_ms=config.timestamp_after_max_ms,
            )
        if config.compact and from_client:
            for batch in found:
                check_deep(buf, batch, key_required=True)
        size = len(buf)
        if size > config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{size} bytes of batches do not fit a segment: segment.bytes is {config.segment_bytes}",
            )
        if found[0].producer_id >= 0 or len(found) > 1:
            duplicate = self.producers.check_all(found)
            if duplicate is not None:
                return AppendInfo(
                    duplicate.first_offset,
                    duplicate.last_offset,
                    duplicate.timestamp if config.log_append_time else NO_TIME,
                    self.log_start_offset,
                    True,
                    0,
                    0,
                )
        if config.codec is not None:
            buf = in_codec(buf, found, config.codec)
            size, found = len(buf), batches(buf)
        if config.log_append_time:
            found = [stamp_log_append_time(buf, batch, now_ms) for batch in found]
        first = offset = self.log_end_offset
        bases = []
        for batch in found:
            stamp(buf, batch.position, offset, leader_epoch)
            bases.append(offset)
            offset += batch.last_offset_delta + 1
        self._write(buf, found, bases, offset, now_ms)
        if leader_epoch > self.epochs.latest:
            self.epochs.assign(leader_epoch, first)
        append_time = now_ms if config.log_append_time else NO_TIME
        # One call instead of the two of AppendInfo(...): this is the hot path.
        return _new_tuple(
            AppendInfo, (first, offset - 1, append_time, self.log_start_offset, False, offset - first, size)
        )

    def append_as_follower(self, buf: memoryview, now_ms: int = NO_TIME) -> AppendInfo:
        """Write what the leader sent: whole batches that carry their offsets, from the log's end on.

        Offsets may have gaps, where the leader's log is compacted.
        """
        found = intact(buf)
        expected = self.log_end_offset
        for batch in found:
            if batch.base_offset < expected:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{self.name}: a batch at {batch.base_offset} where the log continues at {expected}:"
                    " truncate to where the leader's log agrees, then fetch again",
                )
            expected = batch.next_offset
        self._write(buf, found, [batch.base_offset for batch in found], expected, now_ms)
        for batch in found:
            if batch.leader_epoch > self.epochs.latest:
                self.epochs.assign(batch.leader_epoch, batch.base_offset)
        first = found[0].base_offset
        count = sum(batch.count for batch in found)
        return AppendInfo(first, expected - 1, NO_TIME, self.log_start_offset, False, count, len(buf))

    def _write(self, buf: memoryview, found: list[Batch], bases: list[int], end_offset: int, now_ms: int) -> None:
        """Write batches that begin at the offsets `bases`, and remember all there is to remember of them."""
        if self.failure is not None:
            raise self.failure
        segment = self.segments.active
        start = segment.size
        try:
            if not start:
                self._created_ms = now_ms
                if end_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
                    segment = self._roll(bases[0])
            elif (
                start + len(buf) > self._roll_bytes
                or found[-1].max_timestamp > (self._roll_at or self._next_roll())
                or segment.full
                or end_offset - segment.base_offset > MAX_RELATIVE_OFFSET
            ):
                segment = self._roll(max(self.log_end_offset, bases[0]))
                start = 0
            segment.append(buf)
            recent = self._positions.recent
            for number, batch in enumerate(found):
                offset = bases[number]
                position = start + batch.position
                segment.note(position, batch.size, offset + batch.last_offset_delta, batch.max_timestamp)
                recent[offset] = (segment, position)
                if batch.producer_id >= 0:
                    self.producers.update(batch, offset)
            if len(recent) > MOST_RECENT:
                self._positions.trim()
            self.log_end_offset = end_offset
            self._unmarked += len(found)
            if self._unmarked >= MARK_BATCHES and self.snapshots.mark(self.producers, end_offset, self._unmarked):
                self._unmarked = 0
        except OSError as error:
            raise self.failed(error) from error

    # -- roll ----------------------------------------------------------------------------------------------------

    def _next_roll(self) -> int:
        """The largest timestamp that still goes into the active segment: `segment.ms` after that of its first batch."""
        first = self.segments.active.first_timestamp()
        self._roll_at = first + self._segment_ms() if first >= 0 else MAX_LONG
        return self._roll_at

    def _segment_ms(self) -> int:
        return self.config.segment_ms - int(self.config.segment_jitter_ms * self._roll_jitter)

    def maybe_roll(self, now_ms: int) -> bool:
        """Begin a new segment if the active one has reached `segment.ms` by the clock; for logs without traffic."""
        with Guard(self):
            active = self.segments.active
            begin = active.first_timestamp() if active.size else NO_TIME
            begin = self._created_ms if begin < 0 else begin
            if not active.size or begin < 0 or now_ms - begin <= self._segment_ms():
                return False
            self._roll(self.log_end_offset)
            return True

    def roll(self) -> Segment:
        """Begin a new segment now, unless the active one is empty."""
        with Guard(self):
            return self._roll(self.log_end_offset)

    def _roll(self, base_offset: int) -> Segment:
        active = self.segments.active
        if not active.size and active.base_offset == base_offset:
            return active
        if self.checkpoint_stale and self.on_checkpoint_stale is not None:
            # The log was cut below the recovery point on disk. Recovery reads the last segment in any case; the one
            # that is about to be sealed it would skip, although what was written after the cut is not durable.
            self.on_checkpoint_stale()
        active.seal()
        self._sealed.append(active)
        self.epochs.save()
        self.snapshots.take(self.producers, base_offset)
        if active.size:
            segment = self._new_segment(base_offset)
        else:
            self.segments.discard(active)
            segment = self._new_segment(base_offset)
            active.remove()
        return segment

    def _new_segment(self, base_offset: int) -> Segment:
        segment = Segment(self.files, self.folder, base_offset, self.limits, size=None)
        segment.log.truncate(0)
        self._names_changed = True
        self._roll_at = 0
        self.segments.add(segment)
        return segment

    @property
    def limits(self) -> Limits:
        return Limits(self.config.index_interval_bytes, self.config.segment_index_bytes)

    # -- read ----------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, upto: int, min_one_batch: bool = True) -> ReadInfo:
        """Whole batches from the one that holds `offset` on, all of them below `upto` (high watermark or log end).

        At most `max_bytes`, but one batch at least with `min_one_batch`. The first batch may begin before `offset`.
        """
        if self.failure is not None:
            raise self.failure
        end_offset = self.log_end_offset
        if offset < self.log_start_offset or offset > end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.name} has offsets from {self.log_start_offset} to {end_offset}, not {offset}",
            )
        upto = min(upto, end_offset)
        if offset >= upto:
            return NOTHING
        try:
            return self._positions.read(offset, max_bytes, upto, end_offset, at_least_one=min_one_batch)
        except CorruptMessage as error:
            # Not the index, which is mended: the disk has not kept what was written to it. That is its failure like any
            # other, and whoever holds another replica serves on.
            raise self.failed(OSError(errno.EIO, str(error))) from error
        except OSError as error:
            raise self.failed(error) from error

    def offset_for_timestamp(self, timestamp: int) -> timestamps.Found | None:
        """The first record at or after `timestamp`, if there is one."""
        with Guard(self):
            return timestamps.first_at_or_after(self.segments, timestamp, self.log_start_offset)

    def offset_of_max_timestamp(self) -> timestamps.Found | None:
        """The record with the largest timestamp (ListOffsets with -3), if any carries one."""
        with Guard(self):
            return timestamps.largest(self.segments, self.log_start_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) as OffsetForLeaderEpoch answers; (-1, -1) when `epoch` is not known."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    # -- truncate ------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Cut the log so that it ends at `offset` (or at the beginning of the batch that holds it).

        True if anything was cut. An offset before the first segment empties the log and begins it there.
        """
        if offset >= self.log_end_offset:
            return False
        if offset < self.segments.first.base_offset:
            self.truncate_fully(offset)
            return True
        with Guard(self):
            last = self.segments.floor(offset)
            cut = next(last.headers(last.locate(offset)), None)
            end = offset if cut is None else min(offset, max(cut.base_offset, last.base_offset))
            start = min(self.log_start_offset, offset)
            if end < start:
                self.truncate_fully(start)
                return True
            self._lower_recovery_point(end)
            self._positions.forget()
            # From the last to the first, so that a crash in between leaves a prefix of the log; and for good, before
            # other records are written under the same offsets.
            if last is not self.segments.active:
                for segment in reversed(list(self.segments)):
                    if segment.base_offset > last.base_offset:
                        self.segments.discard(segment)
                        segment.remove()
                self.files.sync_dir(self.folder)
            last.truncate_to(offset)
            self.log_end_offset = end
            self.log_start_offset = start
            self._names_changed = True
            self._created_ms = NO_TIME
            self._roll_at = 0
            # Not saved here: recovery reads the active segment's epochs from its batches.
            self.epochs.truncate_from(end)
            self.snapshots.rewind(self.producers, self.segments, end)
            return True

    def truncate_fully(self, start_offset: int) -> None:
        """Drop everything and begin anew at `start_offset`."""
        with Guard(self):
            self._lower_recovery_point(min(start_offset, self.log_start_offset))
            self._positions.forget()
            for segment in reversed(list(self.segments)):
                self.segments.discard(segment)
                segment.remove()
            self._new_segment(start_offset)
            self.log_start_offset = self.log_end_offset = self.recovery_point = start_offset
            self.epochs.clear()
            self.epochs.save()
            self.producers.clear()
            self.snapshots.remove_all()
            self.snapshots.take(self.producers, start_offset)

    def _lower_recovery_point(self, offset: int) -> None:
        self._truncations += 1
        if offset < self.recovery_point:
            self.recovery_point = offset
            self.checkpoint_stale = True

    # -- retention -----------------------------------------------------------------------------------------------

    def delete_records_before(self, offset: int) -> int:
        """Move the log's start up to `offset` (DeleteRecords); the files go with the next `retain`. The new start."""
        if offset > self.log_end_offset or offset < 0:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.name} ends at {self.log_end_offset}: records before {offset} cannot be deleted",
            )
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.epochs.begin_at(offset)
        return self.log_start_offset

    def retain(self, now_ms: int, high_watermark: int | None = None) -> int:
        """Rename segments that are past retention to `.deleted`.

        Returns how many segments were renamed. Call it every `log.retention.check.interval.ms`.
        """
        with Guard(self):
            segments, end = list(self.segments), self.log_end_offset
            ends = [segment.base_offset for segment in segments[1:]] + [end]
            # Looked at one by one: the first that stays ends the search, and the others' indexes are not opened.
            views = (SegmentView(e, s.size, s.largest().timestamp) for e, s in zip(ends, segments, strict=True))
            count = deletable(
                views,
                self.config,
                log_size=self.size,
                now_ms=now_ms,
                log_start_offset=self.log_start_offset,
                high_watermark=end if high_watermark is None else high_watermark,
            )
            if count:
                if count == len(segments):
                    self._roll(end)
                self.log_start_offset = max(self.log_start_offset, ends[count - 1])
                self.epochs.begin_at(self.log_start_offset)
                self._delete(segments[:count], now_ms)
            return count

    def _delete(self, segments: Sequence[Segment], now_ms: int) -> None:
        """First step: out of the log and renamed, oldest first."""
        self._positions.forget()
        for segment in segments:
            self.segments.discard(segment)
        self._deletions.begin(segments, now_ms + self.config.file_delete_delay_ms)
        for segment in segments:
            self.snapshots.remove(segment.base_offset)
        self._names_changed = True

    def next_removal_ms(self) -> int | None:
        """When `begin_removals` has something to do next."""
        return self._deletions.next_due_ms()

    def begin_removals(self, now_ms: int) -> list[Callable[[], None]]:
        """Second step: what removes the files whose `file.delete.delay.ms` is over, for a worker thread, as the kernel
        takes a tenth of a second for a large one; say `failed` when that fails."""
        due = self._deletions.take_due(now_ms)
        for segment in due:
            segment.close()
        return [partial(self.files.remove, part.path) for segment in due for part in segment.parts()]

    def replace_segments(self, new: Sequence[Segment], old: Iterable[Segment], now_ms: int) -> None:
        """Put cleaned segments (written with the suffix `.cleaned`) in the place of the ones they were made from.

        The new ones are made durable, renamed to `.swap` from the last to the first, then the old ones are renamed to
        `.deleted` and the new ones lose their suffix. Opening the log after a crash undoes this while a `.cleaned` is
        left, and finishes it afterwards.
        """
        with Guard(self):
            for segment in new:
                segment.seal()
                segment.sync()
            for segment in reversed(new):
                segment.rename(CLEANED, SWAP)
            self.files.sync_dir(self.folder)
            replaced = list(old)
            kept = {segment.base_offset for segment in new}
            self._positions.forget()
            for segment in replaced:
                self.segments.discard(segment)
            self._deletions.begin(replaced, now_ms + self.config.file_delete_delay_ms)
            for segment in replaced:
                if segment.base_offset not in kept:
                    self.snapshots.remove(segment.base_offset)
            for segment in new:
                segment.rename(SWAP, "")
                self.segments.add(segment)
            self.files.sync_dir(self.folder)

    # -- flush, close --------------------------------------------------------------------------------------------

    def begin_flush(self) -> Flush:
        """What has to be synced for everything written so far to be durable. Then `run` it, then `finish_flush`."""
        with Guard(self):
            self.epochs.save()
            end, active = self.log_end_offset, self.segments.active
            unsynced = {s: None for s in self.segments if self.segments.end_of(s, end) > self.recovery_point}
            unsynced.update(dict.fromkeys(self._sealed))
            whole = [segment for segment in unsynced if segment is not active or active in self._sealed]
            self._sealed.clear()
            parts = [part for segment in whole for part in segment.parts()]
            parts += [active.log, *self.snapshots.take_unsynced()]
            parts += self._newborn
            folders = [self.folder] if self._names_changed else []
            if self._newborn:
                folders.append(os.path.dirname(self.folder))
            self._names_changed = False
            self._newborn = ()
            return Flush(self.files, folders, parts, self.log_end_offset, self._truncations)

    @property
    def sealed_unsynced(self) -> bool:
        """Whether a sealed segment is not durable yet: recovery would have to read it."""
        return bool(self._sealed)

    def sync_with_next_flush(self, segments: Iterable[Segment]) -> None:
        """Have sealed segments synced although they lie below the recovery point."""
        self._sealed.extend(segments)

    def finish_flush(self, flush: Flush, now_ms: int = NO_TIME) -> None:
        """Move the recovery point, unless the log was truncated meanwhile: what came after the cut is not durable."""
        self.flushed_ms = now_ms
        if flush.truncations == self._truncations:
            self.recovery_point = max(self.recovery_point, flush.upto)

    def flush_due(self, now_ms: int) -> bool:
        """Whether `flush.messages` or `flush.ms` ask for a flush."""
        waiting = self.log_end_offset - self.recovery_point
        return waiting >= self.config.flush_messages or (
            waiting > 0 and now_ms - max(self.flushed_ms, 0) >= self.config.flush_ms
        )

    def flush(self, now_ms: int = NO_TIME) -> int:
        """Make everything written so far durable, here and now. Returns the recovery point."""
        if self.recovery_point < self.log_end_offset or self._names_changed:
            with Guard(self):
                flush = self.begin_flush()
                flush.run()
                self.finish_flush(flush, now_ms)
        return self.recovery_point

    def expire_producers(self, now_ms: int, expiration_ms: int = PRODUCER_ID_EXPIRATION_MS) -> None:
        """Forget producer ids without a write for `producer.id.expiration.ms`."""
        self.producers.expire(now_ms, expiration_ms)

    def update_config(self, config: LogConfig) -> None:
        """Take new settings; index settings hold for new segments."""
        self.config = config
        self._roll_bytes = min(config.segment_bytes, MAX_POSITION)
        self._roll_at = 0

    def close(self) -> None:
        """Write out all that a clean start reads instead of the log, make it durable and let go of the files."""
        if self.failure is None:
            flush = self.begin_close()
            with Guard(self):
                flush.run()
            self.finish_flush(flush)
        self.release()

    def begin_close(self) -> Flush:
        """Writes out what a clean start reads; `run` what is returned, then `finish_flush` and `release`."""
        with Guard(self):
            self.segments.active.save_indexes()
            self.snapshots.take(self.producers, self.log_end_offset)
            self._names_changed = True
            self.sync_with_next_flush([self.segments.active])
            return self.begin_flush()

    def release(self) -> None:
        """Let go of the files without writing anything (after a failure, or before the folder is deleted)."""
        for segment in self.segments:
            segment.close()
        self._deletions.release()
