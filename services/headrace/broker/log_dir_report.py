"""What lies in the log directories, for DescribeLogDirs of both protocols."""

from __future__ import annotations

import os
import uuid
from typing import NamedTuple

from headrace.broker.broker import Broker
from headrace.errors import ErrorCode, KafkaError


class ReplicaReport(NamedTuple):
    """One replica: how large it is, and how far its end is behind the high watermark."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    size: int
    offset_lag: int
    is_future: bool = False
    """It is a copy on its way into this directory."""


class LogDirReport(NamedTuple):
    """One directory, with the size of its volume (-1: unknown)."""

    path: str
    error: KafkaError | None
    total_bytes: int
    usable_bytes: int
    replicas: list[ReplicaReport]


def log_dir_report(broker: Broker) -> list[LogDirReport]:
    held: dict[str, list[ReplicaReport]] = {}
    for p in broker.replicas.partitions():
        lag = max(0, p.high_watermark - p.log.log_end_offset)
        report = ReplicaReport(p.topic, p.topic_id, p.index, p.log.size, lag)
        held.setdefault(os.path.dirname(p.log.folder), []).append(report)
        future = broker.moves.future_of(p)
        if future is not None:
            lag = max(0, p.log.log_end_offset - future.log_end_offset)
            copy = ReplicaReport(p.topic, p.topic_id, p.index, future.size, lag, True)
            held.setdefault(os.path.dirname(future.folder), []).append(copy)
    reports = []
    for log_dir in broker.log_dirs.dirs:
        error = None if log_dir.online else KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, log_dir.failure or "")
        total, usable = _volume(log_dir.path)
        reports.append(LogDirReport(log_dir.path, error, total, usable, held.get(log_dir.path, [])))
    return reports


def _volume(path: str) -> tuple[int, int]:
    try:
        found = os.statvfs(path)
    except OSError:
        return -1, -1
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
