"""Which segments are too old, too many or before the log's start. Decisions only: `Log.retain` acts on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from headrace.storage.config import LogConfig


class SegmentView(NamedTuple):
    """What retention looks at: `end_offset` is the first offset of the next segment, `largest_timestamp` is -1 when no
    record in the segment carries one."""

    end_offset: int
    size: int
    largest_timestamp: int


def deletable(
    segments: Iterable[SegmentView],
    config: LogConfig,
    *,
    log_size: int,
    now_ms: int,
    log_start_offset: int,
    high_watermark: int,
) -> int:
    """How many of the oldest segments may go.

    Segments go from the oldest on without gaps, never beyond the high watermark (the followers need the rest), and with
    `cleanup.policy=compact` alone only those before the log start offset. All of them may be named, the active one too:
    the log begins a new segment before it lets the last one go. A segment without timestamps does not age.
    """
    excess = -1
    if config.delete and config.retention_bytes >= 0:
        excess = log_size - config.retention_bytes
    count = 0
    for segment in segments:
        if segment.end_offset > high_watermark or not segment.size:
            break
        before_start = segment.end_offset <= log_start_offset
        too_old = (
            config.delete and config.retention_ms >= 0 and 0 <= segment.largest_timestamp < now_ms - config.retention_ms
        )
        too_many = excess >= segment.size
        if not (before_start or too_old or too_many):
            break
        excess -= segment.size
        count += 1
    return count
