"""Reads ahead from the leaders of the assigned partitions: one FetchStream to each broker, opened anew when what is
wanted from it changes. Reading stops while the buffer is full, and gRPC's flow control then stops the broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import grpc

from headrace.client.cluster import Cluster, error_of
from headrace.client.config import Config
from headrace.client.positions import PartitionPosition, Positions
from headrace.client.types import TopicPartition
from headrace.cluster.image import Image, Node
from headrace.errors import ErrorCode, KafkaError
from headrace.rpc.errors import kafka_error_of
from headrace.v1 import broker_pb2 as pb
from headrace.v1 import common_pb2

log = logging.getLogger(__name__)


class _Stream:
    """One FetchStream: which partitions it reads, under which version of their positions."""

    def __init__(self, node: Node, wanted: dict[TopicPartition, int]) -> None:
        self.node = node
        self.wanted = wanted
        self.task: asyncio.Task[None] | None = None


class Fetcher:
    """Keeps streams open for what can be fetched, and puts what arrives into the positions' buffers."""

    def __init__(self, cluster: Cluster, positions: Positions, config: Config) -> None:
        self._cluster = cluster
        self._positions = positions
        self._config = config
        self._streams: dict[int, _Stream] = {}
        self._failures: dict[int, int] = {}
        self._not_before: dict[int, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.arrived = asyncio.Event()
        """Set when there is something new to take, or an error to raise."""
        self._room = asyncio.Event()
        self.lost: Callable[[PartitionPosition, KafkaError], None] = lambda state, error: None
        """Called when a partition cannot be read on at its position."""
        self._closed = False
        cluster.follower.listen(self._on_image)

    async def close(self) -> None:
        self._closed = True
        self._cluster.follower.unlisten(self._on_image)
        if self._timer is not None:
            self._timer.cancel()
        tasks = [stream.task for stream in self._streams.values() if stream.task is not None]
        self._streams.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def taken(self) -> None:
        """Some of the buffer was handed out: readers may go on."""
        self._room.set()

    def _on_image(self, old: Image, new: Image) -> None:
        self.reconcile()

    # --- which streams

    def reconcile(self) -> None:
        """Opens, closes and reopens streams so that exactly what can be fetched is being fetched."""
        if self._closed:
            return
        now = self._cluster.clock.monotonic()
        wanted, again = self._wanted(now)
        for node_id in [n for n, s in self._streams.items() if s.wanted != wanted.get(n, (None, {}))[1]]:
            self._drop(node_id)
        for node_id, (node, partitions) in wanted.items():
            if node_id not in self._streams:
                stream = self._streams[node_id] = _Stream(node, partitions)
                stream.task = asyncio.create_task(self._read(stream), name=f"fetch from broker {node_id}")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if again is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.001, again - now), self.reconcile)

    def _wanted(self, now: float) -> tuple[dict[int, tuple[Node, dict[TopicPartition, int]]], float | None]:
        wanted: dict[int, tuple[Node, dict[TopicPartition, int]]] = {}
        again: float | None = None
        for state in self._positions:
            if not state.fetchable:
                continue
            leader = self._cluster.leader(*state.partition)
            if leader is None:
                continue
            node = leader[0]
            at = max(state.not_before, self._not_before.get(node.id, 0.0))
            if at > now:
                again = at if again is None else min(again, at)
                continue
            wanted.setdefault(node.id, (node, {}))[1][state.partition] = state.version
        return wanted, again

    def _drop(self, node_id: int) -> None:
        stream = self._streams.pop(node_id)
        if stream.task is not None:
            stream.task.cancel()

    # --- reading

    def _request(self, stream: _Stream) -> pb.FetchRequest:
        config = self._config
        request = pb.FetchRequest(
            header=self._cluster.header(),
            max_wait_ms=config["fetch.max.wait.ms"],
            min_bytes=config["fetch.min.bytes"],
            max_bytes=config["fetch.max.bytes"],
            read_committed=config["isolation.level"] == "read_committed",
        )
        for partition in stream.wanted:
            request.partitions.add(
                partition=common_pb2.TopicPartition(topic=partition.topic, partition=partition.partition),
                offset=self._positions[partition].fetch_offset,
                max_bytes=config["max.partition.fetch.bytes"],
                current_leader_epoch=-1,
            )
        return request

    async def _read(self, stream: _Stream) -> None:
        node = stream.node
        silence = self._config.seconds("fetch.max.wait.ms") + self._config.seconds("request.timeout.ms")
        error = KafkaError(ErrorCode.NETWORK_EXCEPTION, "the broker ended the stream")
        call = self._cluster.broker(node).FetchStream(self._request(stream))
        try:
            while True:
                async with asyncio.timeout(silence):
                    response = await call.read()
                if response is grpc.aio.EOF:
                    break
                self._failures.pop(node.id, None)
                self._take(stream, response)  # type: ignore[arg-type]
                while self._positions.full:
                    self._room.clear()
                    await self._room.wait()
        except grpc.aio.AioRpcError as failed:
            error = kafka_error_of(failed)
        except TimeoutError:
            error = KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"broker {node.id} fell silent")
        finally:
            call.cancel()
        if self._streams.get(node.id) is stream:
            del self._streams[node.id]
            failures = self._failures[node.id] = self._failures.get(node.id, 0) + 1
            self._not_before[node.id] = self._cluster.clock.monotonic() + self._cluster.backoff.pause(failures)
            log.info("fetching from broker %d: %s", node.id, error)
            self.reconcile()

    def _take(self, stream: _Stream, response: pb.FetchResponse) -> None:
        news = trouble = False
        for part in response.partitions:
            partition = TopicPartition(part.partition.topic, part.partition.partition)
            state = self._positions.get(partition)
            version = stream.wanted.get(partition)
            if state is None or version != state.version:
                continue
            if part.error.code:
                self._refused(state, error_of(part.error))
                stream.wanted.pop(partition, None)
                trouble = True
                continue
            state.high_watermark = part.high_watermark
            state.log_start = part.log_start_offset
            if part.records and self._positions.arrived(state, version, part.records):
                news = True
        if news:
            self.arrived.set()
        if trouble:
            self.reconcile()

    def _refused(self, state: PartitionPosition, error: KafkaError) -> None:
        log.info("fetching %s: %s", state.partition, error)
        if error.code.retriable:
            state.not_before = self._cluster.clock.monotonic() + self._cluster.backoff.pause(1)
        else:
            self.lost(state, error)
            self.arrived.set()
