"""What a log remembers of each producer id, so that a batch sent twice is written once.

The last five batches of a producer are kept: a batch whose first and last sequence match one of them is a duplicate and
is answered with its old offset. One that lies before all of them was written as well, for sequences come without gaps:
DUPLICATE_SEQUENCE_NUMBER, which clients take for success (after a restart only the last batch is known, and a client
that is told OUT_OF_ORDER_SEQUENCE_NUMBER would send it again under a new epoch). Otherwise its sequence must follow the
last one (wrapping from the largest int32 to 0), and a newer epoch must begin at 0. A producer the log does not know (it
expired, or its records are gone) may begin anywhere, as in Kafka.

File `<offset>.snapshot`, Kafka's layout, big-endian: int16 version (1), uint32 CRC-32C of what follows, int32 count,
then per producer: int64 id, int16 epoch, int32 last sequence, int64 last offset, int32 offset delta (of its last
batch), int64 timestamp, int32 coordinator epoch, int64 first offset of its open transaction (-1: none). It is the
state of the log up to (not including) the offset in its name; one is written when a segment begins and at a clean stop.

When the log is cut, the state is taken back in memory (`rewind`): a new leader waits for followers that cut their logs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from headrace.errors import ErrorCode, KafkaError
from headrace.records.batch import CONTROL, NO_PRODUCER_ID, NO_SEQUENCE, TRANSACTIONAL, Batch

REMEMBERED = 5
_HEADER = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_CHECKED_FROM = 6
_MAX_SEQUENCE = 0x7FFFFFFF


class SnapshotCorrupt(ValueError):
    """A snapshot file that cannot be used; an older one, or the log, tells the same."""


class Remembered(NamedTuple):
    """One batch of a producer: sequences and offsets, both inclusive."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class Producer:
    """One producer id's state in one partition."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "since", "timestamp", "transaction_start", "unlisted")

    def __init__(self, epoch: int, since: int = -1) -> None:
        self.epoch = epoch
        self.since = since
        """Offset of the batch with which it became known; -1 when a snapshot knew it."""
        self.batches: list[Remembered] = []
        self.timestamp = -1
        self.coordinator_epoch = -1
        self.transaction_start = -1
        """First offset of the open transaction, or -1."""
        self.unlisted = -1
        """Offset of the last thing it wrote that is not in `batches` (a marker, a batch without a sequence), or -1."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class ProducerState:
    """Every producer id of a log. `check` judges a batch, `update` remembers it once it is written."""

    __slots__ = ("producers",)

    def __init__(self) -> None:
        self.producers: dict[int, Producer] = {}

    def check_all(self, batches: list[Batch]) -> Remembered | None:
        """Judge the batches of one append: the remembered batch if it is a duplicate, None if all may be written.

        Raises INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER or DUPLICATE_SEQUENCE_NUMBER. Batches of one
        producer in the same append must follow each other too.
        """
        if len(batches) == 1:
            return self._check(batches[0]) if batches[0].producer_id != NO_PRODUCER_ID else None
        latest: dict[int, Batch] = {}
        for batch in batches:
            producer_id = batch.producer_id
            if producer_id == NO_PRODUCER_ID:
                continue
            before = latest.get(producer_id)
            if before is not None and before.producer_epoch == batch.producer_epoch:
                _check_sequence(batch, before.last_sequence)
            else:
                duplicate = self._check(batch)
                if duplicate is not None:
                    return duplicate
            latest[producer_id] = batch
        return None

    def _check(self, batch: Batch) -> Remembered | None:
        producer = self.producers.get(batch.producer_id)
        if producer is None:
            return None
        if batch.producer_epoch != producer.epoch:
            if batch.producer_epoch < producer.epoch:
                raise KafkaError(
                    ErrorCode.INVALID_PRODUCER_EPOCH,
                    f"producer {batch.producer_id} has epoch {producer.epoch} now, the batch carries"
                    f" {batch.producer_epoch}: another instance took over, get a new id with InitProducerId",
                )
            if batch.base_sequence > 0:
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {batch.producer_id} begins epoch {batch.producer_epoch} with sequence"
                    f" {batch.base_sequence}: a new epoch begins at 0",
                )
            return None
        if batch.base_sequence == NO_SEQUENCE:
            return None
        first = batch.base_sequence
        if producer.batches and first == (producer.batches[-1].last_sequence + 1) & _MAX_SEQUENCE:
            return None
        last = batch.last_sequence
        for remembered in producer.batches:
            if remembered.first_sequence == first and remembered.last_sequence == last:
                return remembered
        if producer.batches:
            if (producer.batches[0].first_sequence - 1 - last) & _MAX_SEQUENCE < _MAX_SEQUENCE // 2:
                raise KafkaError(
                    ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
                    f"sequences {first} to {last} of producer {batch.producer_id} were written before; their offsets"
                    " are not remembered",
                )
            _check_sequence(batch, producer.last_sequence)
        elif first != 0:
            # The epoch was raised by a transaction marker and nothing was written under it yet.
            _check_sequence(batch, _MAX_SEQUENCE)
        return None

    def update(self, batch: Batch, first_offset: int) -> None:
        """Remember a batch that was written at `first_offset`."""
        producer = self.producers.get(batch.producer_id)
        if producer is None:
            producer = self.producers[batch.producer_id] = Producer(batch.producer_epoch, first_offset)
        elif producer.epoch != batch.producer_epoch:
            producer.epoch = batch.producer_epoch
            producer.batches.clear()
        timestamp = producer.timestamp = batch.max_timestamp
        if batch.attributes & (CONTROL | TRANSACTIONAL):
            if batch.is_control:
                producer.transaction_start = -1
                producer.unlisted = first_offset
                # Which epoch stands inside of the marker. Snapshots have to say that there was one.
                producer.coordinator_epoch = max(producer.coordinator_epoch, 0)
                return
            if producer.transaction_start < 0:
                producer.transaction_start = first_offset
        sequence = batch.base_sequence
        if sequence != NO_SEQUENCE:
            remembered = producer.batches
            if len(remembered) == REMEMBERED:
                del remembered[0]
            delta = batch.last_offset_delta
            last = (sequence + delta) & _MAX_SEQUENCE
            remembered.append(Remembered(sequence, last, first_offset, first_offset + delta, timestamp))
        else:
            producer.unlisted = first_offset

    def rewind(self, end: int) -> set[int]:
        """Forget what was written from `end` on, as the log is cut there.

        Returns the producers of which no remembered batch is left: only the log tells what they wrote before.
        """
        unsure = set()
        for producer_id, producer in list(self.producers.items()):
            batches = producer.batches
            if producer.unlisted < end and (not batches or batches[-1].first_offset < end):
                continue
            if producer.since >= end:
                del self.producers[producer_id]
                continue
            while batches and batches[-1].first_offset >= end:
                batches.pop()
            if not batches or producer.unlisted > batches[-1].first_offset:
                unsure.add(producer_id)
                continue
            producer.timestamp = batches[-1].timestamp
            if producer.transaction_start >= end:
                producer.transaction_start = -1
        return unsure

    def first_unstable_offset(self) -> int | None:
        """Where the oldest open transaction begins."""
        return min((p.transaction_start for p in self.producers.values() if p.transaction_start >= 0), default=None)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers without a write for `expiration_ms` and without an open transaction."""
        stale = [
            producer_id
            for producer_id, producer in self.producers.items()
            if producer.transaction_start < 0 and now_ms - producer.timestamp >= expiration_ms
        ]
        for producer_id in stale:
            del self.producers[producer_id]

    def clear(self) -> None:
        self.producers.clear()

    def encode(self) -> bytes:
        """The content of a snapshot file."""
        body = b"".join(self._entries())
        count = struct.pack(">i", len(body) // _ENTRY.size)
        return struct.pack(">hI", 1, crc32c(count + body)) + count + body

    def _entries(self) -> Iterator[bytes]:
        for producer_id, producer in self.producers.items():
            last = producer.batches[-1] if producer.batches else Remembered(-1, -1, -1, -1, -1)
            delta = last.last_offset - last.first_offset
            yield _ENTRY.pack(
                producer_id,
                producer.epoch,
                last.last_sequence,
                last.last_offset,
                delta,
                producer.timestamp,
                producer.coordinator_epoch,
                producer.transaction_start,
            )

    @classmethod
    def decode(cls, data: bytes, upto: int) -> ProducerState:
        """The state in a snapshot of the log up to `upto`; `SnapshotCorrupt` when the bytes are not one."""
        if len(data) < _HEADER.size:
            raise SnapshotCorrupt(f"{len(data)} bytes are too few for a producer snapshot")
        version, crc, count = _HEADER.unpack_from(data)
        if version != 1:
            raise SnapshotCorrupt(f"producer snapshot of version {version}, only 1 is known")
        if crc32c(memoryview(data)[_CHECKED_FROM:]) != crc or len(data) != _HEADER.size + count * _ENTRY.size:
            raise SnapshotCorrupt("producer snapshot with a wrong checksum or length")
        state = cls()
        for entry in _ENTRY.iter_unpack(memoryview(data)[_HEADER.size :]):
            producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, transaction_start = entry
            producer = state.producers[producer_id] = Producer(epoch)
            producer.timestamp = timestamp
            producer.coordinator_epoch = coordinator_epoch
            producer.transaction_start = transaction_start
            if sequence != NO_SEQUENCE:
                first = (sequence - delta) & _MAX_SEQUENCE
                producer.batches.append(Remembered(first, sequence, offset - delta, offset, timestamp))
            if sequence == NO_SEQUENCE or coordinator_epoch >= 0:
                # It may have written a marker, anywhere up to here.
                producer.unlisted = upto - 1
        return state


def _check_sequence(batch: Batch, last: int) -> None:
    expected = (last + 1) & _MAX_SEQUENCE
    if batch.base_sequence != expected:
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {batch.producer_id} sent sequence {batch.base_sequence} where {expected} comes next:"
            " a batch before it is missing",
        )
