"""From a time to a record: what ListOffsets asks.

The time index leads to one batch; only that batch is read and decompressed, to find the record in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from headrace.records.batch import Batch, read_header
from headrace.records.record import Record, iter_records
from headrace.storage.segment import Segment


class Found(NamedTuple):
    """A record's timestamp and offset, and the leader epoch that wrote it."""

    timestamp: int
    offset: int
    leader_epoch: int


def first_at_or_after(segments: Iterable[Segment], timestamp: int, log_start_offset: int) -> Found | None:
    """The first record with at least `timestamp`."""
    for segment in segments:
        batch = segment.find_timestamp(timestamp, log_start_offset)
        while batch is not None:
            for record in _records(segment, batch):
                if record.timestamp >= timestamp and record.offset >= log_start_offset:
                    return Found(record.timestamp, record.offset, batch.leader_epoch)
            # What compaction left of a batch may be older than its max timestamp says.
            batch = segment.find_timestamp(timestamp, batch.last_offset + 1)
    return None


def largest(segments: Iterable[Segment], log_start_offset: int) -> Found | None:
    """The first record with the largest timestamp of all."""
    best = max(segments, key=lambda segment: segment.largest().timestamp)
    timestamp = best.largest().timestamp
    return None if timestamp < 0 else first_at_or_after([best], timestamp, log_start_offset)


def _records(segment: Segment, batch: Batch) -> Iterable[Record]:
    if batch.count == 1 or batch.log_append_time:
        # Its header says it all.
        return [Record(batch.base_offset, batch.max_timestamp, None, None)] if batch.count else []
    data = segment.read_batch(batch)
    return iter_records(data, read_header(data))
