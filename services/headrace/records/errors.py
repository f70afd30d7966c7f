"""One named error for each way a batch can be wrong.

The code is what Apache Kafka answers for the same bytes, because clients act on it: CORRUPT_MESSAGE is sent again (the
bytes may have been damaged on the way), MESSAGE_TOO_LARGE makes a producer split its batch, INVALID_RECORD is final.
"""

from __future__ import annotations

from typing import ClassVar

from headrace.errors import ErrorCode, KafkaError


class RecordError(KafkaError):
    """Bytes that are not a batch this log can take."""

    default: ClassVar[ErrorCode] = ErrorCode.INVALID_RECORD

    def __init__(self, message: str, code: ErrorCode | None = None) -> None:
        super().__init__(self.default if code is None else code, message)


class CorruptMessage(RecordError):
    """The bytes contradict themselves: a length that cannot be, or past the end of the buffer."""

    default = ErrorCode.CORRUPT_MESSAGE


class WrongChecksum(CorruptMessage):
    """The CRC in the header is not the CRC of the bytes."""


class WrongMagic(RecordError):
    """A message format other than 2.

    Formats 0 and 1 come from clients that are too old, which sending again does not cure; any other number is damage.
    """

    def __init__(self, magic: int) -> None:
        if magic in (0, 1):
            text = f"message format {magic} is no longer written: use a client of Kafka 0.11 or newer (format 2)"
            super().__init__(text, ErrorCode.INVALID_RECORD)
        else:
            super().__init__(f"no message format has magic {magic}", ErrorCode.CORRUPT_MESSAGE)


class InvalidRecord(RecordError):
    """Whole bytes whose content is not allowed: counts, deltas, producer fields, control batches, missing keys."""


class RecordTooLarge(RecordError):
    """More than `max.message.bytes`, or more than the limit once decompressed."""

    default = ErrorCode.MESSAGE_TOO_LARGE


class UnknownCodec(RecordError):
    """A compression codec that does not exist (5, 6 or 7 in the attributes)."""

    default = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class InvalidTimestamp(RecordError):
    """A timestamp outside what the topic allows, or one that contradicts the others."""

    default = ErrorCode.INVALID_TIMESTAMP
