"""What is asked of the replicas and what they answer, as plain values."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import NamedTuple

from headrace.broker.partition import EpochEnd
from headrace.broker.reader import CONSUMER, Key, Place
from headrace.errors import KafkaError
from headrace.storage.files import FileRange


class Produced(NamedTuple):
    """What became of one partition's batches."""

    topic: str | uuid.UUID
    partition: int
    error: KafkaError | None
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1


class Fetched(NamedTuple):
    """What one partition gave to a reader."""

    place: Place
    error: KafkaError | None
    ranges: list[FileRange]
    size: int = 0
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging: EpochEnd | None = None
    preferred_replica: int = -1

    @property
    def key(self) -> Key:
        return self.place.key


class FetchLimits(NamedTuple):
    """How much a reader wants, and how long it will wait for it."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    replica_id: int = CONSUMER
    broker_epoch: int = -1
    rack: str = ""
    read_committed: bool = False


ProduceReply = Callable[[list[Produced]], None]
FetchReply = Callable[[list[Fetched]], None]
