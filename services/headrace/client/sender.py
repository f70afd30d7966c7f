"""Carries batches to brokers: one stream to each, several requests in flight on it, answers in order."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import grpc

from headrace.client.accumulator import Accumulator, ProducerBatch
from headrace.client.cluster import Cluster, error_of
from headrace.client.types import TopicPartition
from headrace.cluster.image import Node
from headrace.errors import ErrorCode, KafkaError
from headrace.rpc.errors import kafka_error_of
from headrace.v1 import broker_pb2 as pb
from headrace.v1 import common_pb2

log = logging.getLogger(__name__)

Call = grpc.aio.StreamStreamCall[pb.ProduceRequest, pb.ProduceResponse]


class _Stream:
    """One ProduceStream to one broker, and what it has not answered."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.outstanding: deque[tuple[float, list[ProducerBatch]]] = deque()
        self.reader: asyncio.Task[None] | None = None
        self.timed_out = False


class BrokerSender:
    """Sends to one broker whatever the accumulator has for it, until it is closed."""

    def __init__(
        self,
        node_id: int,
        cluster: Cluster,
        accumulator: Accumulator,
        *,
        acks: int,
        request_timeout: float,
        max_in_flight: int,
        released: Callable[[list[ProducerBatch]], None],
    ) -> None:
        self._node_id = node_id
        self._cluster = cluster
        self._accumulator = accumulator
        self._acks = acks
        self._timeout = request_timeout
        self._max_in_flight = max_in_flight
        self._released = released
        self._wake = asyncio.Event()
        self._stream: _Stream | None = None
        self._failures = 0
        self._not_before = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._task = asyncio.create_task(self._run(), name=f"produce to broker {node_id}")

    def wake(self) -> None:
        self._wake.set()

    async def close(self) -> None:
        self._task.cancel()
        stream, self._stream = self._stream, None
        if stream is not None and stream.reader is not None:
            stream.reader.cancel()
        if stream is not None:
            stream.call.cancel()
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # --- sending

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            now = self._cluster.clock.monotonic()
            if now >= self._not_before:
                await self._send_ready(now)
            if not self._wake.is_set():
                self._set_timer(now)
            await self._wake.wait()

    def _partitions(self) -> list[TopicPartition]:
        leader = self._cluster.leader
        found = []
        for partition in self._accumulator.active():
            at = leader(*partition)
            if at is not None and at[0].id == self._node_id:
                found.append(partition)
        return found

    async def _send_ready(self, now: float) -> None:
        partitions = self._partitions()
        while partitions:
            stream = self._stream
            if stream is not None and len(stream.outstanding) >= self._max_in_flight:
                return
            batches = self._accumulator.drain(partitions, now)
            if not batches:
                return
            await self._send(batches, now)
            if now < self._not_before:
                return

    async def _send(self, batches: list[ProducerBatch], now: float) -> None:
        node = self._cluster.image.brokers.get(self._node_id)
        if node is None:
            self._refuse(batches, KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {self._node_id} is away"))
            return
        stream = self._stream or self._open(node)
        request = pb.ProduceRequest(
            header=self._cluster.header(), acks=self._acks, timeout_ms=max(1, int(self._timeout * 1000))
        )
        for batch in batches:
            topic, index = batch.partition
            request.partitions.add(
                partition=common_pb2.TopicPartition(topic=topic, partition=index), records=bytes(batch.sealed or b"")
            )
        stream.outstanding.append((now, batches))
        if len(stream.outstanding) == 1:
            self._set_timer(now)  # now, because a broker that stands still may not even take the request
        try:
            await stream.call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            self._broken(stream, error)
        except asyncio.CancelledError:
            # A call that was cancelled on this side raises this as well; only the task's own end goes on.
            if _ending():
                raise

    def _open(self, node: Node) -> _Stream:
        stream = self._stream = _Stream(self._cluster.broker(node).ProduceStream())
        stream.reader = asyncio.create_task(self._read(stream), name=f"answers of broker {self._node_id}")
        return stream

    def _set_timer(self, now: float) -> None:
        """For what may be done after `now`, the time that was last looked at: what came due since is due at once."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        times = [t for t in (self._accumulator.next_time(self._partitions(), now),) if t is not None]
        if times and self._not_before > now:
            times = [self._not_before]
        if self._stream is not None and self._stream.outstanding:
            times.append(self._stream.outstanding[0][0] + self._timeout)
        if times:
            delay = min(times) - self._cluster.clock.monotonic()
            self._timer = asyncio.get_running_loop().call_later(max(0.0, delay), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._cluster.clock.monotonic()
        stream = self._stream
        if stream is not None and stream.outstanding and stream.outstanding[0][0] + self._timeout <= now:
            self._broken(stream, TimeoutError())
        self._released(self._accumulator.expire(now))
        self._set_timer(now)
        self._wake.set()

    # --- answers

    async def _read(self, stream: _Stream) -> None:
        error: BaseException = KafkaError(ErrorCode.NETWORK_EXCEPTION, "the broker ended the stream")
        try:
            async for response in stream.call:
                self._failures = 0
                _, batches = stream.outstanding.popleft()
                self._answered(batches, response)
                self._wake.set()
        except grpc.aio.AioRpcError as failed:
            error = failed
        except asyncio.CancelledError:
            if _ending():
                raise
        if self._stream is stream:
            self._broken(stream, error)

    def _answered(self, batches: list[ProducerBatch], response: pb.ProduceResponse) -> None:
        now = self._cluster.clock.monotonic()
        accumulator = self._accumulator
        for batch, result in zip(batches, response.partitions, strict=True):
            if result.error.code:
                error = error_of(result.error)
                log.debug("broker %d refused %r: %s", self._node_id, batch, error)
                accumulator.refuse(batch, error, now)
            else:
                accumulator.complete(batch, result.base_offset if self._acks else -1, result.log_append_time_ms)
        self._released(batches)

    def _broken(self, stream: _Stream, reason: BaseException) -> None:
        """Nobody knows what became of what this stream has not answered: all of it is sent again, after a pause."""
        if self._stream is not stream:
            return
        self._stream = None
        stream.call.cancel()
        self._failures += 1
        now = self._cluster.clock.monotonic()
        self._not_before = now + self._cluster.backoff.pause(self._failures)
        if isinstance(reason, TimeoutError):
            error = KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"broker {self._node_id} did not answer in time")
        elif isinstance(reason, grpc.aio.AioRpcError):
            error = kafka_error_of(reason)
        else:
            error = KafkaError(ErrorCode.NETWORK_EXCEPTION, f"the stream to broker {self._node_id} broke: {reason}")
        log.info("broker %d: %s", self._node_id, error)
        outstanding, stream.outstanding = stream.outstanding, deque()
        for _, batches in outstanding:
            self._refuse(batches, error)
        self._wake.set()

    def _refuse(self, batches: list[ProducerBatch], error: KafkaError) -> None:
        now = self._cluster.clock.monotonic()
        for batch in batches:
            self._accumulator.refuse(batch, error, now)
        self._released(batches)


def _ending() -> bool:
    """Whether somebody asked the running task to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
