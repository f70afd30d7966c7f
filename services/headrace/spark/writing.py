"""How a row is written exactly once, though its task may run twice, at once, or again after a crash.

Every task of a query writes as an idempotent producer that nobody has to hand out: its **id** is made from the query's
id and the number of the task, its **epoch** is the number of the micro-batch, and the **sequence** counts the rows
it has for a partition. Brokers remember these, on every replica, and so

- a task that runs again asks each partition how far its producer has come in this micro-batch. Nothing: it writes.
  Something: those rows are read back and left out, whichever they are, because after a shuffle the second run may have
  them in another order;
- of two attempts that run at the same time only one can write the next sequence, and the other one fails;
- an attempt of an older micro-batch has an older epoch and is refused.

Ids made here have bit 62 set; those that controllers hand out count from 0 and never come near. An epoch has 15 bits:
after 32768 micro-batches the query goes on under another id.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.client.batch_builder import BatchBuilder, record_size
from headrace.client.partitioners import partition_for_key
from headrace.client.types import TopicPartition
from headrace.config import InvalidConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.records.batch import batches
from headrace.records.record import Header, iter_records

_EPOCH_BITS = 15
_OURS = 1 << 62


class Identity(NamedTuple):
    """A task's producer."""

    producer_id: int
    epoch: int


def identity(query_id: str, batch_id: int, task: int) -> Identity:
    """The producer of one task of one micro-batch.

    >>> identity("q", 3, 0) == identity("q", 3, 0), identity("q", 3, 0) == identity("q", 3, 1)
    (True, False)
    """
    generation = batch_id >> _EPOCH_BITS
    digest = hashlib.sha256(f"{query_id}/{task}/{generation}".encode()).digest()
    number = int.from_bytes(digest[:8], "big") & (_OURS - 1)
    return Identity(_OURS | number, batch_id & ((1 << _EPOCH_BITS) - 1))


class Row(NamedTuple):
    """A record to write; `partition` is None where the key, or the task, decides."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()

    def fingerprint(self) -> bytes:
        """The same for equal records."""
        return fingerprint(self.key, self.value, self.headers)


def fingerprint(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in (key, value, *(part for header in headers for part in header)):
        if part is None:
            digest.update(b"\0")
        else:
            raw = part if isinstance(part, bytes) else part.encode("utf-8", "surrogateescape")
            digest.update(b"\1%d:" % len(raw) + raw)
    return digest.digest()


def place(row: Row, partitions: int, task: int) -> TopicPartition:
    """Where a row goes: never a matter of chance or of order, so that a second run puts it there as well."""
    if row.partition is not None:
        if not 0 <= row.partition < partitions:
            raise InvalidConfig(
                f"a row asks for partition {row.partition} of {row.topic}, which has 0 to {partitions - 1}"
            )
        return TopicPartition(row.topic, row.partition)
    index = task % partitions if row.key is None else partition_for_key(row.key, partitions)
    return TopicPartition(row.topic, index)


def fingerprints(data: bytes, who: Identity) -> tuple[list[bytes], int]:
    """The records in `data` that `who` wrote, and the smallest sequence among them (-1: none)."""
    found: list[bytes] = []
    lowest = -1
    for batch in batches(data):
        if batch.producer_id == who.producer_id and batch.producer_epoch == who.epoch:
            found += [fingerprint(r.key, r.value, r.headers) for r in iter_records(data, batch)]
            lowest = batch.base_sequence if lowest < 0 else min(lowest, batch.base_sequence)
    return found, lowest


class Written(NamedTuple):
    """What a partition has of a task: how many records, and the fingerprints of those that could be read back.

    Some cannot when retention or compaction was faster than the second attempt.
    """

    total: int
    found: Sequence[bytes]


class Sealed(NamedTuple):
    """A batch on its way: bytes, and the sequences of its first record and of the one after its last."""

    partition: TopicPartition
    data: bytes
    sequence: int
    next_sequence: int


@dataclass(slots=True)
class PartitionBatches:
    """One partition's part of a task: leaves out what is there, and cuts the rest into batches."""

    partition: TopicPartition
    who: Identity
    codec: int
    batch_bytes: int
    sequence: int = 0
    there: Counter[bytes] = field(default_factory=Counter)
    unread: int = 0
    """Rows that are there but could not be read back: the first ones are taken for them."""
    skipped: int = 0
    _builder: BatchBuilder = field(default_factory=BatchBuilder)

    def resume(self, written: Written) -> None:
        """What an earlier attempt has written of this task already."""
        self.sequence = written.total
        if len(written.found) == written.total:
            self.there = Counter(written.found)
        else:
            self.unread = written.total

    def add(self, row: Row, timestamp: int) -> Sealed | None:
        """Takes a row; the answer is a batch that is full without it."""
        if self.unread:
            self.unread -= 1
            self.skipped += 1
            return None
        if self.there:
            seen = row.fingerprint()
            if self.there[seen] > 0:
                self.there[seen] -= 1
                self.skipped += 1
                return None
        full = None
        if self._builder.count and self._builder.size + record_size(row.key, row.value, row.headers) > self.batch_bytes:
            full = self.seal()
        self._builder.append(timestamp, row.key, row.value, row.headers)
        return full

    def seal(self) -> Sealed | None:
        """What is not sent yet, as a batch."""
        builder, self._builder = self._builder, BatchBuilder()
        if not builder.count:
            return None
        first, self.sequence = self.sequence, self.sequence + builder.count
        data = bytes(builder.seal(self.codec, self.who.producer_id, self.who.epoch, first & 0x7FFFFFFF))
        return Sealed(self.partition, data, first, self.sequence)

    def finish(self) -> None:
        """After the last row: an earlier attempt must not have written what this one does not have."""
        strange = sum(count for count in self.there.values() if count > 0)
        if strange:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"{strange} records of {self.partition} were written by an earlier attempt of this task, which had "
                "other rows: make the query deterministic (no rand, uuid or current_timestamp in what is written). If "
                "its source has lost records since (failOnDataLoss false), set failOnChangedRows to false until this "
                "micro-batch is done: what is written stays, and what is new is added",
            )


def fenced(partition: TopicPartition, mine: int, newest: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"{partition}: micro-batch {newest} of this query is being written already, this is an attempt of {mine}",
    )
