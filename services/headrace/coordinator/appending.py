"""Appends to the offsets topic: many small ones become few batches, each stored once and in order.

A partition has one batch under way at a time; what comes meanwhile makes the next one. A request to a broker carries
the waiting batches of every partition it leads. The first append goes at once; after it a broker gets the next request
when the linger is over, so thousands of commits a second are a few hundred requests.

Batches are those of an idempotent producer whose id is the ownership's epoch: a batch whose answer was lost is sent
again as it is, and the broker knows it. What is refused for sure is failed; what stays unknown for too long is given
up together with the ownership, because memory may no longer be what the log says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import grpc

from headrace.cluster.image import Image, Node
from headrace.cluster.topics import OFFSETS_TOPIC
from headrace.coordinator.effects import Record
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Clock
from headrace.records.keyed import build_keyed
from headrace.rpc import Channels, kafka_error_of, request_header
from headrace.v1 import broker_pb2 as pb
from headrace.v1 import common_pb2
from headrace.v1.broker_pb2_grpc import BrokerStub

BATCH_BYTES = 256 << 10
"""Appends are gathered up to this size; a larger one goes alone."""

BUSY_SECONDS = 0.02
"""A request keeps its broker's turn this long at most: a slow partition must not hold up the others for longer."""

FIRST_BACKOFF, MAX_BACKOFF = 0.02, 0.5
UNKNOWN_SECONDS = 30.0
"""How long a batch is tried when nobody can say whether it is stored."""

_RECORD_OVERHEAD = 16
_MAX_SEQUENCE = 2**31 - 1
_FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
_REFUSED = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""Not stored, and worth another try."""
_UNKNOWN = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.LEADER_NOT_AVAILABLE,
)
"""Perhaps stored: the leader may have gone between writing and answering."""


class Owner(Protocol):
    """Who is told what became of its appends, in their order."""

    def stored(self, append_ids: list[int], base_offset: int) -> None: ...

    def failed(self, append_ids: list[int], error: ErrorCode) -> None: ...

    def fenced(self) -> None:
        """Another coordinator owns the partition."""

    def gave_up(self) -> None:
        """It cannot be known what the log holds."""


@dataclass(slots=True)
class _Batch:
    append_ids: list[int]
    data: bytes
    count: int
    began: float
    unknown: bool = False


class PartitionWriter:
    """The appends of one ownership of one partition."""

    def __init__(self, index: int, epoch: int, owner: Owner, sender: Sender) -> None:
        self.index = index
        self.epoch = epoch
        self.closed = False
        self._owner = owner
        self._sender = sender
        self._sequence = 0
        self._waiting: list[tuple[int, list[Record]]] = []
        self._batch: _Batch | None = None
        self._backoff = FIRST_BACKOFF

    def append(self, append_id: int, records: list[Record]) -> None:
        """All of the records or none are stored, after those of earlier calls."""
        self._waiting.append((append_id, records))
        if self._batch is None:
            self._sender.ready(self)

    def close(self) -> None:
        """Nothing is sent any more, and nobody is told anything."""
        self.closed = True
        self._waiting.clear()

    def next_batch(self, clock: Clock) -> bytes:
        """The batch to send: the one that was not acknowledged yet, or a new one of all that waits."""
        if self._batch is None:
            self._batch = self._gather(clock)
        return self._batch.data

    def _gather(self, clock: Clock) -> _Batch:
        ids: list[int] = []
        records: list[Record] = []
        size = 0
        for append_id, pairs in self._waiting:
            for key, value in pairs:
                size += len(key) + (len(value) if value is not None else 0) + _RECORD_OVERHEAD
            if ids and size > BATCH_BYTES:
                break
            ids.append(append_id)
            records += pairs
        del self._waiting[: len(ids)]
        data = build_keyed(records, clock.time_ms(), self.epoch, self._sequence)
        return _Batch(ids, data, len(records), clock.monotonic())

    def settle(self, error: ErrorCode | None, base_offset: int, now: float, commit_seconds: float) -> float | None:
        """Takes the answer to the batch under way; returns how long to wait before it (or the next) is sent."""
        batch = self._batch
        if self.closed or batch is None:
            return None
        if error is None:
            self._sequence = (self._sequence + batch.count) & _MAX_SEQUENCE
            self._done()
            self._owner.stored(batch.append_ids, base_offset)
            return 0.0 if self._waiting else None
        if error in _FENCED:
            self._owner.fenced()
            return None
        batch.unknown = batch.unknown or error in _UNKNOWN
        limit = UNKNOWN_SECONDS if batch.unknown else commit_seconds
        if (error in _UNKNOWN or error in _REFUSED) and now - batch.began < limit:
            delay = self._backoff
            self._backoff = min(2 * delay, MAX_BACKOFF)
            return delay
        if batch.unknown or error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self._owner.gave_up()
            return None
        self._done()
        self._owner.failed(batch.append_ids, error)
        return 0.0 if self._waiting else None

    def _done(self) -> None:
        self._batch = None
        self._backoff = FIRST_BACKOFF


class Sender:
    """Carries the batches of all partitions to their leaders."""

    def __init__(
        self,
        image: Callable[[], Image],
        channels: Channels,
        clock: Clock,
        client_id: str,
        commit_seconds: float,
        linger_seconds: float = 0.0,
    ) -> None:
        self._image = image
        self._channels = channels
        self._clock = clock
        self._client_id = client_id
        self._commit_seconds = commit_seconds
        self._linger = linger_seconds
        self._ready: dict[PartitionWriter, None] = {}
        self._busy: dict[int, asyncio.Task[None]] = {}
        self._planned = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests = 0

    def ready(self, writer: PartitionWriter) -> None:
        """`writer` has something to send; it goes at the end of this turn of the loop."""
        self._ready[writer] = None
        if not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._flush)

    async def close(self) -> None:
        self._ready.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _flush(self) -> None:
        self._planned = False
        image = self._image()
        by_leader: dict[int, list[PartitionWriter]] = {}
        for writer in list(self._ready):
            state = image.partition(OFFSETS_TOPIC, writer.index)
            leader = state.leader if state is not None else -1
            if leader in self._busy and not writer.closed:
                continue
            del self._ready[writer]
            if not writer.closed:
                by_leader.setdefault(leader, []).append(writer)
        for leader, writers in by_leader.items():
            self._start(image.brokers.get(leader), writers)

    def _start(self, leader: Node | None, writers: list[PartitionWriter]) -> None:
        loop = asyncio.get_running_loop()
        # Now and not in the task: what is appended from here on belongs to the next batch.
        parts = [
            pb.ProduceRequest.PartitionData(
                partition=common_pb2.TopicPartition(topic=OFFSETS_TOPIC, partition=writer.index),
                records=writer.next_batch(self._clock),
                owner_epoch=writer.epoch,
            )
            for writer in writers
        ]
        task = loop.create_task(self._send(leader, writers, parts))
        self._tasks.add(task)
        if leader is not None:
            self._busy[leader.id] = task
            loop.call_later(BUSY_SECONDS, self._free, leader.id, task)

        began = loop.time()

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if leader is None:
                return
            left = self._linger - (loop.time() - began)
            if left > 0:
                loop.call_later(left, self._free, leader.id, task)
            else:
                self._free(leader.id, task)

        task.add_done_callback(ended)

    def _free(self, leader: int, turn: asyncio.Task[None]) -> None:
        if self._busy.get(leader) is turn:
            del self._busy[leader]
            if self._ready and not self._planned:
                self._flush()

    async def _send(
        self, leader: Node | None, writers: list[PartitionWriter], parts: list[pb.ProduceRequest.PartitionData]
    ) -> None:
        answers: list[tuple[ErrorCode | None, int]]
        if leader is None:
            answers = [(ErrorCode.LEADER_NOT_AVAILABLE, -1)] * len(writers)
        else:
            answers = await self._produce(leader, parts)
        now = self._clock.monotonic()
        for writer, (error, base_offset) in zip(writers, answers, strict=True):
            delay = writer.settle(error, base_offset, now, self._commit_seconds)
            if delay is None:
                continue
            if delay:
                asyncio.get_running_loop().call_later(delay, self.ready, writer)
            else:
                self.ready(writer)

    async def _produce(
        self, leader: Node, parts: list[pb.ProduceRequest.PartitionData]
    ) -> list[tuple[ErrorCode | None, int]]:
        self.requests += 1
        request = pb.ProduceRequest(
            header=request_header(self._client_id),
            acks=-1,
            timeout_ms=int(self._commit_seconds * 1000),
            partitions=parts,
        )
        stub = BrokerStub(self._channels.get(str(leader.grpc)))
        try:
            response = await stub.Produce(request, timeout=self._commit_seconds + 1)
        except grpc.aio.AioRpcError as status:
            return [(kafka_error_of(status).code, -1)] * len(parts)
        except KafkaError as error:
            return [(error.code, -1)] * len(parts)
        return [
            (ErrorCode(part.error.code) if part.error.code else None, part.base_offset) for part in response.partitions
        ]
