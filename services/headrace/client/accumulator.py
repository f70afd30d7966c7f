"""Batches on their way, partition by partition: what may be sent when, in which order, and what follows an answer.

No I/O and no clock of its own: every question comes with the time. Rules that hold whatever happens:

- batches of a partition leave in the order they were filled, and are sent again in that order;
- once one of them fails, nothing of that partition leaves before everything in flight was answered; then what failed
  is sent again first. With idempotence nothing new leaves before all of that has arrived: brokers recognise only the
  last five batches, and newer ones would push a repetition out of their memory;
- with idempotence each batch has a sequence number that repetitions keep. Only when a broker says of the first batch in
  line that its number cannot follow (OUT_OF_ORDER_SEQUENCE_NUMBER: so it is not in the log) is the line numbered anew,
  under a new epoch. A batch that may be in the log is never given another number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.client.batch_builder import BatchBuilder
from headrace.client.types import RecordMetadata, TopicPartition
from headrace.errors import ErrorCode, KafkaError
from headrace.records.batch import read_header
from headrace.records.compression import Codec
from headrace.records.record import Header, iter_records

NO_SEQUENCE = -1
REMEMBERED = 5
"""Batches of a producer in which a broker finds a duplicate: no more of a partition may be in flight."""
BACKLOG_FACTOR = 16
"""How many times `batch.size` a batch may have that fills up behind others."""

_SEQUENCES = 2**31
_LOST_SEQUENCE = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)
_NOT_APPENDED = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
)
"""After these the batch is certainly not in the log, so those behind it cannot be either."""


class BufferFull(KafkaError):
    """The buffer (`buffer.memory`) has no room: wait for `Producer.room`, or use `send`, which waits by itself.

    >>> BufferFull(1024, 2048).code.name
    'REQUEST_TIMED_OUT'
    """

    def __init__(self, size: int, memory: int) -> None:
        super().__init__(
            ErrorCode.REQUEST_TIMED_OUT,
            f"no room for a record of {size} bytes: buffer_memory is {memory}, and the brokers do not keep up",
        )


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that the accumulator follows; times in seconds."""

    batch_size: int = 16_384
    linger: float = 0.005
    buffer_memory: int = 32 << 20
    max_request_size: int = 1 << 20
    codec: int = Codec.NONE
    retries: int = 2**31 - 1
    delivery_timeout: float = 120.0
    backoff: Callable[[int], float] = lambda attempts: 0.1


class ProducerBatch:
    """Records that travel together, and who waits for them."""

    __slots__ = (
        "attempts",
        "builder",
        "created",
        "expired",
        "memory",
        "not_before",
        "partition",
        "sealed",
        "sequence",
        "waiting",
    )

    def __init__(self, partition: TopicPartition, created: float) -> None:
        self.partition = partition
        self.builder = BatchBuilder()
        self.created = created
        self.memory = 0
        self.waiting: list[tuple[Any, int]] = []
        """A future, or None, with the timestamp of its record: one entry a record."""
        self.attempts = 0
        self.not_before = 0.0
        self.sequence = NO_SEQUENCE
        self.sealed: bytearray | None = None
        self.expired = False
        """Whoever waits was told that it is too late; the batch keeps its place until the broker has answered."""

    def __repr__(self) -> str:
        return f"<batch of {self.builder.count} for {self.partition}, sequence {self.sequence}>"


class PartitionQueue:
    """The line of one partition: what waits, what is to be sent again, what is in flight."""

    __slots__ = (
        "blocked",
        "epoch",
        "in_flight",
        "known",
        "next_sequence",
        "partition",
        "pending",
        "renumber",
        "retries",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.pending: deque[ProducerBatch] = deque()
        self.retries: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self.blocked = False
        """Something failed while other batches were in flight: wait until all of them are answered."""
        self.known = False
        """Whether a broker has acknowledged a batch with a sequence. Before that it takes any sequence as the first, so
        a second batch in flight could overtake one that is refused."""
        self.renumber = False
        self.epoch = 0
        self.next_sequence = 0

    def __len__(self) -> int:
        return len(self.pending) + len(self.retries) + len(self.in_flight)

    def first_in_line(self, batch: ProducerBatch) -> bool:
        """Whether no batch that is older than this one waits for its answer or its repetition."""
        return not any(_before(other, batch) for other in (*self.in_flight, *self.retries) if other is not batch)

    def unblock(self) -> None:
        """Called when a batch left the flight: the rest may go on once nothing is in flight."""
        if self.in_flight:
            return
        self.blocked = False
        if self.renumber:
            self.renumber = False
            self.epoch += 1
            self.next_sequence = 0
            for batch in self.retries:
                batch.sequence = self.next_sequence
                batch.sealed = None
                self.next_sequence = (self.next_sequence + batch.builder.count) % _SEQUENCES


def _before(one: ProducerBatch, other: ProducerBatch) -> bool:
    """Whether `one` was filled before `other`; sequences wrap, so their distance counts."""
    if one.sequence == NO_SEQUENCE:
        return one.created < other.created
    return 0 < (other.sequence - one.sequence) % _SEQUENCES < _SEQUENCES // 2


class Accumulator:
    """Every partition's line, and the memory they share."""

    def __init__(self, rules: Rules, producer_id: int | None = None) -> None:
        self.rules = rules
        self.producer_id = producer_id
        """The idempotent producer's id; None without idempotence."""
        self.memory_used = 0
        self.flushing = 0
        """How many callers want everything sent now, whatever linger says."""
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self._active: dict[TopicPartition, PartitionQueue] = {}

    # --- filling

    def append(
        self,
        partition: TopicPartition,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        size: int,
        waiting: Any,
        now: float,
    ) -> bool:
        """Adds a record of at most `size` bytes; True when there is something new for the sender to look at.

        `BufferFull` when there is no room, and then nothing was added.
        """
        rules = self.rules
        if self.memory_used + size > rules.buffer_memory:
            raise BufferFull(size, rules.buffer_memory)
        queue = self.queues.get(partition)
        if queue is None:
            queue = self.queues[partition] = PartitionQueue(partition)
        pending = queue.pending
        news = False
        if pending:
            batch = pending[-1]
            if len(batch.builder.body) + size > self._limit(queue) and batch.builder.count:
                news = len(pending) == 1
                batch = ProducerBatch(partition, now)
                pending.append(batch)
        else:
            news = True
            self._active[partition] = queue
            batch = ProducerBatch(partition, now)
            pending.append(batch)
        batch.builder.append(timestamp, key, value, headers)
        batch.waiting.append((waiting, timestamp))
        batch.memory += size
        self.memory_used += size
        return news

    def _limit(self, queue: PartitionQueue) -> int:
        """How large the open batch may become.

        With idempotence few batches may be in flight, and small ones would then set the pace: while others wait before
        it, the open batch goes on growing.
        """
        size = self.rules.batch_size
        if self.producer_id is None or len(queue.pending) < 2:
            return size
        return max(size, min(size * BACKLOG_FACTOR, self.rules.max_request_size // 2))

    def waiting_batches(self, partition: TopicPartition) -> int:
        """How many batches of a partition are not answered yet."""
        queue = self.queues.get(partition)
        return len(queue) if queue is not None else 0

    def batches(self) -> Iterator[ProducerBatch]:
        """Everything that is not answered yet."""
        for queue in self._active.values():
            yield from queue.in_flight
            yield from queue.retries
            yield from queue.pending

    # --- sending

    def active(self) -> list[TopicPartition]:
        """Partitions with something that is not answered yet."""
        return list(self._active)

    def drain(self, partitions: Iterable[TopicPartition], now: float) -> list[ProducerBatch]:
        """Batches that may leave now, within one request's size, sealed and in flight; partitions take turns.

        Several of one partition may share a request, because a request costs the same however many batches it holds.
        """
        found: list[ProducerBatch] = []
        room = self.rules.max_request_size
        queues = [queue for partition in partitions if (queue := self._active.get(partition)) is not None]
        while queues:
            able = []
            for queue in queues:
                batch = self._ready(queue, now)
                if batch is None or (found and batch.builder.size > room):
                    continue
                (queue.retries if queue.retries else queue.pending).popleft()
                self._seal(queue, batch)
                queue.in_flight.append(batch)
                batch.attempts += 1
                room -= batch.builder.size
                found.append(batch)
                able.append(queue)
            queues = able
        return found

    def _ready(self, queue: PartitionQueue, now: float) -> ProducerBatch | None:
        if queue.blocked or (
            self.producer_id is not None and len(queue.in_flight) >= (REMEMBERED if queue.known else 1)
        ):
            return None
        if queue.retries:
            head = queue.retries[0]
            return head if head.not_before <= now else None
        if not queue.pending or (self.producer_id is not None and any(b.attempts > 1 for b in queue.in_flight)):
            return None
        head = queue.pending[0]
        if len(queue.pending) > 1 or self.flushing or now >= head.created + self.rules.linger:
            return head
        return head if len(head.builder.body) >= self.rules.batch_size else None

    def next_time(self, partitions: Iterable[TopicPartition], now: float) -> float | None:
        """When `drain` or `expire` may have something to do without anything else happening; None: not by itself."""
        best: float | None = None
        for partition in partitions:
            queue = self._active.get(partition)
            at = self._next_time(queue, now) if queue is not None else None
            if at is not None and (best is None or at < best):
                best = at
        return best

    def _next_time(self, queue: PartitionQueue, now: float) -> float | None:
        timeout = self.rules.delivery_timeout
        times = [batch.created + timeout for batch in queue.in_flight if not batch.expired]
        if queue.retries:
            head = queue.retries[0]
            times.append(head.created + timeout)
            if not queue.blocked and head.not_before > now:
                times.append(head.not_before)
        elif queue.pending:
            head = queue.pending[0]
            lingered = head.created + self.rules.linger
            times.append(lingered if lingered > now else head.created + timeout)
        return min(times, default=None)

    def _seal(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        if self.producer_id is not None and batch.sequence == NO_SEQUENCE:
            batch.sequence = queue.next_sequence
            queue.next_sequence = (batch.sequence + batch.builder.count) % _SEQUENCES
        if batch.sealed is None:
            if self.producer_id is None:
                batch.sealed = batch.builder.seal(self.rules.codec)
            else:
                batch.sealed = batch.builder.seal(self.rules.codec, self.producer_id, queue.epoch, batch.sequence)

    # --- what came of it

    def complete(self, batch: ProducerBatch, base_offset: int, append_time: int = -1) -> None:
        """A broker has the batch."""
        self.queues[batch.partition].known = True
        topic, index = batch.partition
        for place, (future, timestamp) in enumerate(batch.waiting):
            if future is not None and not future.done():
                offset = base_offset + place if base_offset >= 0 else -1
                stamp = append_time if append_time >= 0 else timestamp
                future.set_result(RecordMetadata(topic, index, offset, stamp))
        self._leave(batch)

    def refuse(self, batch: ProducerBatch, error: KafkaError, now: float) -> bool:
        """A broker refused the batch, or nobody knows what became of it. True when it will be sent again."""
        queue = self.queues[batch.partition]
        if error.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            # It is in the log, so long ago that the broker no longer knows its offset.
            self.complete(batch, -1)
            return False
        expired = now >= batch.created + self.rules.delivery_timeout
        if error.code is ErrorCode.MESSAGE_TOO_LARGE and batch.builder.count > 1 and not expired:
            self._split(queue, batch)
            return True
        again = error.code.retriable
        if self.producer_id is not None and error.code in _LOST_SEQUENCE:
            again = queue.epoch < 2**15 - 1
            queue.renumber = queue.renumber or (again and queue.first_in_line(batch))
        elif error.code in _NOT_APPENDED and self.producer_id is not None and queue.first_in_line(batch):
            queue.renumber = True
        if not again or expired or batch.attempts > self.rules.retries:
            self._fail(batch, error)
            return False
        batch.not_before = now + self.rules.backoff(batch.attempts)
        self._again(queue, batch, [batch])
        return True

    def _again(self, queue: PartitionQueue, batch: ProducerBatch, replacements: list[ProducerBatch]) -> None:
        queue.in_flight.remove(batch)
        at = sum(1 for other in queue.retries if _before(other, batch))
        for replacement in reversed(replacements):
            queue.retries.insert(at, replacement)
        queue.blocked = True
        queue.unblock()

    def _split(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Sends the records of a batch that was too large in two, under the numbers it had."""
        builder = batch.builder
        data = builder.seal()
        records = list(iter_records(data, read_header(data)))
        middle = len(records) // 2
        halves = []
        for first, last in ((0, middle), (middle, len(records))):
            half = ProducerBatch(batch.partition, batch.created)
            for record in records[first:last]:
                half.builder.append(record.timestamp, record.key, record.value, record.headers)
            half.waiting = batch.waiting[first:last]
            half.attempts = batch.attempts
            half.memory = batch.memory * (last - first) // len(records)
            if batch.sequence != NO_SEQUENCE:
                half.sequence = (batch.sequence + first) % _SEQUENCES
            halves.append(half)
        halves[0].memory = batch.memory - halves[1].memory
        self._again(queue, batch, halves)

    def expire(self, now: float) -> list[ProducerBatch]:
        """Fails what was not delivered within `delivery.timeout.ms`; returns what thereby left its line.

        A batch in flight stays in line until it is answered, so that nothing overtakes it, but nobody waits for it.
        """
        # The same sum as in `next_time`: a difference may say otherwise by a rounding, and it would be asked for ever.
        timeout = self.rules.delivery_timeout
        found = []
        for queue in self._active.values():
            for line in (queue.retries, queue.pending):
                found += [batch for batch in line if batch.created + timeout <= now]
            for batch in queue.in_flight:
                if batch.created + timeout <= now and not batch.expired:
                    batch.expired = True
                    self._tell(batch, self._too_late(batch))
        for batch in found:
            queue = self.queues[batch.partition]
            (queue.retries if batch in queue.retries else queue.pending).remove(batch)
            self._fail(batch, self._too_late(batch))
        return found

    def _too_late(self, batch: ProducerBatch) -> KafkaError:
        return KafkaError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"{batch.builder.count} records for {batch.partition} could not be delivered within "
            f"{self.rules.delivery_timeout:g} s (delivery_timeout_ms) in {batch.attempts} attempts",
        )

    def abandon(self, error: KafkaError) -> None:
        """Fails everything that is not answered: the producer closes."""
        for batch in list(self.batches()):
            queue = self.queues[batch.partition]
            if batch not in queue.in_flight:
                (queue.retries if batch in queue.retries else queue.pending).remove(batch)
            self._fail(batch, error)

    def _fail(self, batch: ProducerBatch, error: KafkaError) -> None:
        self._tell(batch, error)
        self._leave(batch)

    @staticmethod
    def _tell(batch: ProducerBatch, error: KafkaError) -> None:
        for future, _ in batch.waiting:
            if future is not None and not future.done():
                future.set_exception(error)

    def _leave(self, batch: ProducerBatch) -> None:
        queue = self.queues[batch.partition]
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)
        queue.unblock()
        self.memory_used -= batch.memory
        batch.memory = 0
        if not len(queue):
            self._active.pop(batch.partition, None)
