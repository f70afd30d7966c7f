"""What a log answers."""

from __future__ import annotations

from typing import NamedTuple

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.files import FileRange

NO_TIME = -1


class AppendInfo(NamedTuple):
    """What an append did. Of a duplicate: where the batch was written the first time."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    """The broker's time, when `message.timestamp.type` is LogAppendTime; else -1."""
    log_start_offset: int
    duplicate: bool
    records: int
    size: int


class ReadInfo(NamedTuple):
    """Whole batches, as they lie in their files. Hold it until they are sent."""

    ranges: list[FileRange]
    size: int

    def read(self) -> bytes:
        return b"".join(part.read() for part in self.ranges)


NOTHING = ReadInfo([], 0)


class StorageError(KafkaError):
    """The disk failed under a log; its log dir goes offline."""

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, f"{path}: {error}")
