"""What compaction decides: which part of a log is due, and what is left of a batch. `cleaner` does the reading and
writing.

Of every key the last record at least is kept. Offsets never change; a batch that loses nothing stays byte for byte.

- A tombstone (a record without a value) has to stay until consumers have seen it. The first cleaning that keeps it
  stamps a delete horizon (`delete.retention.ms` from then) into its batch, and one after that time drops it. Markers
  of transactions with no batches left go the same way.
- The last batch of each active producer stays, empty if need be, because its sequence numbers are what refuses a
  duplicate; so does the last batch of a cleaning, because it carries the last offset.
- Records of aborted transactions, and records without a key, are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from headrace.records.batch import Batch, Bytes
from headrace.records.record import Record, build, iter_records
from headrace.storage.log import Log
from headrace.storage.offset_map import OffsetMap
from headrace.storage.producer_state import Producer
from headrace.storage.segment import Segment
from headrace.storage.transactions import AbortedTransactions, OpenTransactions


class Plan(NamedTuple):
    """What a cleaning of a log would do, and whether it is due."""

    first_dirty_offset: int
    end_offset: int
    """Nothing at or after it is touched."""
    clean_bytes: int
    dirty_bytes: int
    overdue: bool
    """Whether a record has waited longer than `max.compaction.lag.ms`."""
    min_dirty_ratio: float

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)

    @property
    def due(self) -> bool:
        return self.dirty_bytes > 0 and (self.overdue or self.dirty_ratio >= self.min_dirty_ratio)


def plan(log: Log, clean_offset: int, *, upto: int, now_ms: int) -> Plan:
    """Look at a log that is clean below `clean_offset`.

    `upto` is the high watermark: what may still be truncated is not compacted. Neither are the active segment, open
    transactions, and segments with a record younger than `min.compaction.lag.ms`.
    """
    config = log.config
    active = log.segments.active
    limit = min(upto, active.base_offset, last_stable_offset(log))
    first_dirty = clean_offset
    if not log.log_start_offset <= clean_offset <= log.log_end_offset:
        first_dirty = log.log_start_offset
    end, clean_bytes, dirty_bytes, overdue = first_dirty, 0, 0, False
    longest_wait = max(config.max_compaction_lag_ms, config.min_compaction_lag_ms)
    for segment in log.segments:
        segment_end = log.segments.end_of(segment, log.log_end_offset)
        if segment is not active and segment_end <= first_dirty:
            clean_bytes += segment.size
            continue
        if segment is active or segment_end > limit:
            break
        if config.min_compaction_lag_ms and segment.largest().timestamp > now_ms - config.min_compaction_lag_ms:
            break
        dirty_bytes += segment.size
        end = segment_end
        if longest_wait < now_ms:
            overdue = overdue or 0 < segment.first_timestamp() < now_ms - longest_wait
    return Plan(first_dirty, end, clean_bytes, dirty_bytes, overdue, config.min_cleanable_dirty_ratio)


def last_stable_offset(log: Log) -> int:
    """Where the first open transaction begins, or the log's end."""
    unstable = log.producers.first_unstable_offset()
    return log.log_end_offset if unstable is None else unstable


def grouped(segments: Iterable[Segment], max_bytes: int) -> Iterator[list[Segment]]:
    """Neighbours that fit one segment together: cleaned logs would else be full of small ones."""
    group: list[Segment] = []
    size = 0
    for segment in segments:
        if group and size + segment.size > max_bytes:
            yield group
            group, size = [], 0
        group.append(segment)
        size += segment.size
    if group:
        yield group


def remember(offsets: OffsetMap, buf: Bytes, batch: Batch, from_offset: int) -> None:
    """Note the keys of a dirty batch."""
    for record in iter_records(buf, batch):
        if record.key is not None and record.offset >= from_offset:
            offsets.put(record.key, record.offset)


class Compaction:
    """One cleaning's judgement, batch by batch in offset order."""

    def __init__(
        self,
        offsets: OffsetMap,
        aborted: AbortedTransactions,
        producers: dict[int, Producer],
        *,
        end_offset: int,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._offsets = offsets
        self._aborted = aborted
        self._producers = producers
        self._end_offset = end_offset
        self._now_ms = now_ms
        self._horizon = now_ms + delete_retention_ms
        self._open = OpenTransactions()

    def remainder(self, buf: Bytes, batch: Batch) -> Bytes | None:
        """What is left of a batch: its own bytes when nothing goes, a smaller one, an empty one, or None."""
        marks_nothing = self._open.note(batch)
        original = memoryview(buf)[batch.position : batch.position + batch.size]
        past_horizon = batch.delete_horizon is not None and batch.delete_horizon <= self._now_ms
        kept: Sequence[Record]
        if batch.is_control:
            if not marks_nothing and batch.count:
                return original
            kept = [] if past_horizon else list(iter_records(buf, batch))
            needs_horizon = marks_nothing
        elif batch.base_offset > self._offsets.latest:
            return original
        else:
            kept = [] if batch in self._aborted else self._kept(buf, batch, past_horizon)
            needs_horizon = any(record.value is None for record in kept)
        if not kept:
            return self._emptied(batch) if self._has_to_stay(batch) else None
        if len(kept) == batch.count and (batch.delete_horizon is not None or not needs_horizon):
            return original
        horizon = batch.delete_horizon
        return _rebuilt(batch, kept, self._horizon if horizon is None and needs_horizon else horizon)

    def _kept(self, buf: Bytes, batch: Batch, past_horizon: bool) -> list[Record]:
        last_offset = self._offsets.get
        return [
            record
            for record in iter_records(buf, batch)
            if record.key is not None
            and record.offset >= last_offset(record.key)
            and not (record.value is None and past_horizon)
        ]

    def _has_to_stay(self, batch: Batch) -> bool:
        if batch.next_offset == self._end_offset:
            return True
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            return False
        if producer.batches:
            return batch.last_offset == producer.batches[-1].last_offset
        return batch.is_control and batch.producer_epoch == producer.epoch

    @staticmethod
    def _emptied(batch: Batch) -> bytearray:
        return _rebuilt(batch, (), None)


def _rebuilt(batch: Batch, records: Sequence[Record], delete_horizon: int | None) -> bytearray:
    """The batch with fewer records (or a delete horizon): its offsets, producer, codec and times stay."""
    return build(
        records,
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        codec=batch.codec,
        leader_epoch=batch.leader_epoch,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        log_append_time=batch.max_timestamp if batch.log_append_time else None,
        delete_horizon=delete_horizon,
        transactional=batch.is_transactional,
        control=batch.is_control,
        empty_timestamp=batch.max_timestamp,
    )
