"""What the client hands out: places in a topic, records, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

Headers = Sequence[tuple[str, bytes | None]]


class TopicPartition(NamedTuple):
    """One partition of one topic.

    >>> TopicPartition("orders", 2)
    TopicPartition(topic='orders', partition=2)
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TimestampType(IntEnum):
    """Whose clock a record's timestamp comes from.

    >>> TimestampType(1).name
    'LOG_APPEND_TIME'
    """

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class RecordMetadata(NamedTuple):
    """Where a produced record is now; the offset is -1 when nobody was asked (acks=0).

    >>> RecordMetadata("orders", 0, 41, 1_700_000_000_000).offset
    41
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


class ConsumerRecord(NamedTuple):
    """One record as a consumer sees it; `key` and `value` are what the deserializers made of the bytes.

    >>> ConsumerRecord("orders", 0, 7, 0, 0, b"k", b"v", (), 3).value
    b'v'
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: Any
    value: Any
    headers: Headers
    leader_epoch: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class OffsetAndMetadata(NamedTuple):
    """How far a group has come: the next offset to read, and words of the committer's own.

    >>> OffsetAndMetadata(42).offset
    42
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class OffsetAndTimestamp(NamedTuple):
    """A record found by its time.

    >>> OffsetAndTimestamp(42, 1_700_000_000_000).timestamp
    1700000000000
    """

    offset: int
    timestamp: int
    leader_epoch: int = -1
