"""Tells brokers what they hold and who leads it.

Level-triggered: for each broker there is a set of replicas that changed since it last confirmed, not a queue of
messages. What is sent is always the newest state of those, so any number of changes while a broker is slow costs one
request and bounded memory. A broker that registers, and every broker when another controller takes over, gets
everything it shall hold (`full`), and deletes what is not in there: that is how a deletion reaches a broker that was
away.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.cluster.image import Image, Node
from headrace.controller.peers import Peers
from headrace.controller.plan import ReplicaId
from headrace.controller.protos import topic_of
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Clock
from headrace.registry.ownership import first
from headrace.v1 import broker_pb2 as bpb
from headrace.v1 import common_pb2 as pb

log = logging.getLogger(__name__)

TOPIC_DELETED = -2
"""The leader epoch of a StopReplica that follows a deletion: newer than any."""


@dataclass(frozen=True, slots=True)
class SenderLimits:
    """How patient a sender is, in seconds; and how many changes it notes one by one before it sends everything."""

    request_timeout: float = 10.0
    first_backoff: float = 0.05
    max_backoff: float = 2.0
    max_noted: int = 20_000


@dataclass(frozen=True, slots=True)
class Term:
    """In whose name requests go out."""

    controller: int
    epoch: int


Picture = Callable[[], tuple[Image, bool]]
"""The newest picture, and whether it is complete: only then may a broker delete what is not in it."""


OnFailed = Callable[[Node, Iterable[ReplicaId]], None]
"""Told which replicas a broker cannot serve because a disk of it failed."""


def _nobody_listens(node: Node, replicas: Iterable[ReplicaId]) -> None:
    """For senders whose owner does not move leaderships."""


class Sender:
    """What one registration of one broker has still to hear. It retries until it is heard or the registration goes."""

    def __init__(
        self,
        node: Node,
        term: Term,
        picture: Picture,
        peers: Peers,
        clock: Clock,
        limits: SenderLimits,
        on_stale: Callable[[], None],
        on_failed: OnFailed,
        numbers: Iterator[int],
    ) -> None:
        self.node = node
        self._term = term
        self._picture = picture
        self._peers = peers
        self._clock = clock
        self._limits = limits
        self._on_stale = on_stale
        self._on_failed = on_failed
        self._numbers = numbers
        self._noted: set[ReplicaId] = set()
        self._full = True
        self._wanted = 1
        self._confirmed = 0
        self._wake = asyncio.Event()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._task = asyncio.create_task(self._run(), name=f"controller: sender to broker {node.id}")

    @property
    def settled(self) -> bool:
        return self._confirmed == self._wanted

    def note(self, replicas: Iterable[ReplicaId]) -> None:
        """These changed: tell the broker."""
        self._wanted += 1
        if not self._full:
            self._noted.update(replicas)
            if len(self._noted) > self._limits.max_noted:
                self._full = True
                self._noted.clear()
        self._wake.set()

    async def heard(self) -> None:
        """Returns once the broker confirmed all that was noted so far, or its registration is gone."""
        if self._confirmed < self._wanted and not self._task.done():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((self._wanted, waiter))
            await waiter

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._release(self._wanted)

    async def _run(self) -> None:
        while True:
            await self._deliver()
            await self._wake.wait()
            self._wake.clear()

    async def _deliver(self) -> None:
        backoff = self._limits.first_backoff
        while self._confirmed < self._wanted:
            until, full, noted = self._wanted, self._full, self._noted
            self._full, self._noted = False, set()
            try:
                await self._send(full, noted)
            except KafkaError as refused:
                # What could not be said is said with whatever has changed until the next try.
                self._full = self._full or full
                self._noted = set() if self._full else self._noted | noted
                log.warning("broker %d (epoch %d) was not told: %s", self.node.id, self.node.epoch, refused)
                if refused.code is ErrorCode.STALE_CONTROLLER_EPOCH:
                    self._on_stale()
                await self._clock.sleep(backoff)
                backoff = min(backoff * 2, self._limits.max_backoff)
            else:
                self._confirmed = until
                self._release(until)

    def _release(self, confirmed: int) -> None:
        for number, waiter in self._waiting:
            if number <= confirmed and not waiter.done():
                waiter.set_result(None)
        self._waiting = [(number, waiter) for number, waiter in self._waiting if number > confirmed]

    async def _send(self, full: bool, noted: set[ReplicaId]) -> None:
        image, complete = self._picture()
        topics, gone = full_state(image, self.node.id) if full else changes(image, self.node.id, noted)
        if not complete:
            gone = [stopped for stopped in gone if stopped.leader_epoch != TOPIC_DELETED]
        # First what goes: a topic that was deleted and made again has the same name on the broker's disk.
        if gone:
            stop = bpb.StopReplicaRequest(partitions=gone)
            self._sign(stop)
            stopped = await self._peers.stop_replica(self.node, stop, self._limits.request_timeout)
            self._check(stopped)
        if topics or full:
            lead = bpb.LeaderAndIsrRequest(full=full and complete, topics=topics)
            self._sign(lead)
            answered = await self._peers.leader_and_isr(self.node, lead, self._limits.request_timeout)
            self._check(answered)

    def _sign(self, request: bpb.LeaderAndIsrRequest | bpb.StopReplicaRequest) -> None:
        request.controller_id = self._term.controller
        request.controller_epoch = self._term.epoch
        request.broker_epoch = self.node.epoch
        request.number = next(self._numbers)

    def _check(self, response: bpb.LeaderAndIsrResponse | bpb.StopReplicaResponse) -> None:
        if response.error.code != pb.NONE:
            raise KafkaError(ErrorCode(response.error.code), response.error.message)
        for failed in response.partition_errors:
            log.error(
                "broker %d cannot serve partition %d of %s: %s %s",
                self.node.id,
                failed.partition.partition,
                failed.partition.topic or failed.partition.topic_id.hex(),
                pb.ErrorCode.Name(failed.error.code),
                failed.error.message,
            )
        lost = [
            (uuid.UUID(bytes=failed.partition.topic_id), failed.partition.partition)
            for failed in response.partition_errors
            if failed.error.code == pb.KAFKA_STORAGE_ERROR
        ]
        if lost:
            self._on_failed(self.node, lost)


def full_state(image: Image, broker: int) -> tuple[list[pb.Topic], list[bpb.StopReplicaRequest.Partition]]:
    """Everything the broker shall hold; what it shall not follows from that."""
    topics = []
    for topic in image.topics.values():
        held = [index for index, state in enumerate(topic.partitions) if broker in state.replicas]
        if held:
            topics.append(topic_of(topic, held))
    return topics, []


def changes(
    image: Image, broker: int, noted: Iterable[ReplicaId]
) -> tuple[list[pb.Topic], list[bpb.StopReplicaRequest.Partition]]:
    """The newest state of the replicas that changed: those the broker holds, and those it has to let go of."""
    by_topic: dict[uuid.UUID, list[int]] = {}
    for topic_id, index in noted:
        by_topic.setdefault(topic_id, []).append(index)
    topics, gone = [], []
    for topic_id, indexes in by_topic.items():
        topic = image.topic_by_id(topic_id)
        held = []
        for index in sorted(indexes):
            state = topic.partitions[index] if topic and index < len(topic.partitions) else None
            if state and broker in state.replicas:
                held.append(index)
            else:
                named = pb.TopicPartition(topic=topic.name if topic else "", topic_id=topic_id.bytes, partition=index)
                epoch = state.leader_epoch if state else TOPIC_DELETED
                gone.append(bpb.StopReplicaRequest.Partition(partition=named, leader_epoch=epoch, delete=True))
        if topic and held:
            topics.append(topic_of(topic, held))
    return topics, gone


async def _all(waits: Iterable[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*waits)


class Senders:
    """One sender for each registered broker."""

    def __init__(
        self,
        term: Term,
        picture: Picture,
        peers: Peers,
        clock: Clock,
        limits: SenderLimits,
        on_stale: Callable[[], None],
        on_failed: OnFailed = _nobody_listens,
    ) -> None:
        numbers = itertools.count(1)
        self._make: Callable[[Node], Sender] = lambda node: Sender(
            node, term, picture, peers, clock, limits, on_stale, on_failed, numbers
        )
        self._clock = clock
        self._senders: dict[int, Sender] = {}

    @property
    def brokers(self) -> set[int]:
        """Those that are being told."""
        return set(self._senders)

    @property
    def settled(self) -> bool:
        """Whether every broker has confirmed all it was told."""
        return all(sender.settled for sender in self._senders.values())

    async def leave(self, brokers: Mapping[int, Node]) -> None:
        """Stops the senders to registrations that are not in `brokers` any more."""
        for broker, sender in list(self._senders.items()):
            registered = brokers.get(broker)
            if registered is None or registered.epoch != sender.node.epoch:
                del self._senders[broker]
                await sender.close()

    async def follow(self, brokers: Mapping[int, Node]) -> None:
        """Starts and stops senders so that they match the registrations."""
        await self.leave(brokers)
        for broker, node in brokers.items():
            if broker not in self._senders:
                self._senders[broker] = self._make(node)

    def note(self, touched: Mapping[int, Iterable[ReplicaId]]) -> None:
        for broker, replicas in touched.items():
            sender = self._senders.get(broker)
            if sender is not None:
                sender.note(replicas)

    async def heard(self, brokers: Iterable[int], seconds: float) -> None:
        """Waits until those brokers that are there confirmed what was noted for them, or time is up."""
        senders = [sender for broker in brokers if (sender := self._senders.get(broker)) is not None]
        if senders:
            await first(_all(sender.heard() for sender in senders), self._clock.sleep(seconds))

    async def close(self) -> None:
        senders, self._senders = list(self._senders.values()), {}
        for sender in senders:
            await sender.close()
