"""Consumer lag, computed by the server: how many records each group has not read yet, by partition.

The ends of the logs are asked of their leaders when somebody reads the metrics, in requests of bounded size. A
committed offset of a moment ago against an end of a moment ago: lag is a trend, not a ledger.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator
from typing import NamedTuple

import grpc

from headrace.coordinator.coordinator import Coordinator
from headrace.ports import Clock
from headrace.rpc import Channels, request_header
from headrace.v1 import broker_pb2 as pb
from headrace.v1 import common_pb2
from headrace.v1.broker_pb2_grpc import BrokerStub

log = logging.getLogger(__name__)

FRESH_SECONDS = 1.0
"""Whoever reads again within this time gets the same figures."""
PARTITIONS_AT_ONCE = 1_000
CALL_SECONDS = 2.0
LATEST = -1

_At = tuple[uuid.UUID, int]


class Lag(NamedTuple):
    """How far one group is in one partition."""

    group: str
    topic: str
    partition: int
    committed: int
    lag: int


class LagKeeper:
    """Keeps the ends of the logs that groups have committed offsets of."""

    def __init__(self, coordinator: Coordinator, channels: Channels, clock: Clock, client_id: str) -> None:
        self._coordinator = coordinator
        self._channels = channels
        self._clock = clock
        self._client_id = client_id
        self._turn = asyncio.Lock()
        self._asked = -FRESH_SECONDS
        self.found: list[Lag] = []

    async def fresh(self) -> list[Lag]:
        """The lag of now, or of a second ago."""
        async with self._turn:
            if self._clock.monotonic() - self._asked >= FRESH_SECONDS:
                await self._refresh()
                self._asked = self._clock.monotonic()
        return self.found

    async def _refresh(self) -> None:
        ends = await self._ends()
        names = self._coordinator.image.topic_names
        self.found = [
            Lag(group, names[topic_id], index, offset, max(0, ends[topic_id, index] - offset))
            for group, topic_id, index, offset in self._committed()
            if (topic_id, index) in ends and topic_id in names
        ]

    def _committed(self) -> Iterator[tuple[str, uuid.UUID, int, int]]:
        for shard in self._coordinator.shards():
            for group, topics in shard.committed().items():
                for topic_id, offsets in topics.items():
                    for index, committed in offsets.items():
                        yield group, topic_id, index, committed.offset

    async def _ends(self) -> dict[_At, int]:
        image = self._coordinator.image
        by_leader: dict[str, list[_At]] = {}
        for at in {(topic_id, index) for _, topic_id, index, _ in self._committed()}:
            topic = image.topic_by_id(at[0])
            state = image.partition(topic.name, at[1]) if topic is not None else None
            leader = image.brokers.get(state.leader) if state is not None else None
            if leader is not None:
                by_leader.setdefault(str(leader.grpc), []).append(at)
        ends: dict[_At, int] = {}
        for address, wanted in by_leader.items():
            for start in range(0, len(wanted), PARTITIONS_AT_ONCE):
                await self._ask(address, wanted[start : start + PARTITIONS_AT_ONCE], ends)
        return ends

    async def _ask(self, address: str, wanted: list[_At], ends: dict[_At, int]) -> None:
        request = pb.ListOffsetsRequest(
            header=request_header(self._client_id),
            partitions=[
                pb.ListOffsetsRequest.Partition(
                    partition=common_pb2.TopicPartition(topic_id=topic_id.bytes, partition=index),
                    timestamp=LATEST,
                    current_leader_epoch=-1,
                )
                for topic_id, index in wanted
            ],
        )
        try:
            response = await BrokerStub(self._channels.get(address)).ListOffsets(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            log.info("the ends of %d logs at %s are not known: %s", len(wanted), address, error.details())
            return
        for at, answer in zip(wanted, response.partitions, strict=True):
            if not answer.error.code:
                ends[at] = answer.offset
