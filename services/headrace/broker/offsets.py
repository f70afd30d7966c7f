"""Questions about offsets: by time, by leader epoch, and where the log shall start. Shared by both protocols."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from headrace.broker.partition import EpochEnd
from headrace.broker.replica_manager import ReplicaManager
from headrace.errors import ErrorCode, KafkaError

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
HIGH_WATERMARK = -1


class OffsetFound(NamedTuple):
    """An offset with the timestamp and leader epoch of its record; -1 where there is none."""

    offset: int = -1
    timestamp: int = -1
    leader_epoch: int = -1


def list_offset(
    replicas: ReplicaManager,
    topic: str | uuid.UUID,
    index: int,
    timestamp: int,
    leader_epoch: int,
    *,
    replica: bool = False,
) -> OffsetFound:
    """The first offset whose record is not older than `timestamp`, or one end of the log for its negative values."""
    partition = replicas.get(topic, index)
    partition.check_epoch(leader_epoch)
    log = partition.log
    end = log.log_end_offset if replica else partition.high_watermark
    if not replica and end < partition.epoch_start and (timestamp == LATEST or timestamp >= 0):
        raise KafkaError(
            ErrorCode.OFFSET_NOT_AVAILABLE,
            f"{partition!r} has a new leader that does not know yet how far its followers are: try again",
        )
    if timestamp == LATEST:
        return OffsetFound(end, -1, partition.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return OffsetFound(log.log_start_offset, -1, log.epochs.epoch_at(log.log_start_offset))
    if timestamp == LATEST_TIERED:
        return OffsetFound()
    if timestamp < MAX_TIMESTAMP:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{timestamp} is neither a time nor one of -1 to -5")
    found = log.offset_of_max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp)
    if found is None or found.offset >= end:
        return OffsetFound()
    return OffsetFound(found.offset, found.timestamp, found.leader_epoch)


def epoch_end(
    replicas: ReplicaManager, topic: str | uuid.UUID, index: int, current_leader_epoch: int, leader_epoch: int
) -> EpochEnd:
    """Where `leader_epoch` ended in the leader's log."""
    partition = replicas.get(topic, index)
    partition.check_epoch(current_leader_epoch)
    return partition.epoch_end(leader_epoch)


def delete_records(replicas: ReplicaManager, topic: str | uuid.UUID, index: int, offset: int) -> int:
    """Lets the log start at `offset` (-1: the high watermark); returns where it starts now."""
    partition = replicas.get(topic, index)
    partition.check_epoch(-1)
    if not partition.log.config.delete:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{partition!r} is compacted: set cleanup.policy=compact,delete")
    target = partition.high_watermark if offset == HIGH_WATERMARK else offset
    if not partition.log.log_start_offset <= target <= partition.high_watermark:
        if 0 <= target < partition.log.log_start_offset:
            return partition.log.log_start_offset
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition!r} holds offsets {partition.log.log_start_offset} to {partition.high_watermark}, not {offset}",
        )
    partition.log.delete_records_before(target)
    replicas.trimmed(partition)
    return partition.log.log_start_offset
