"""The followers' side of replication: one connection to each leader broker, always asking, over Kafka's own Fetch.

A partition that is added does not wait for somebody else's long poll: the next request follows at once on the same
connection, which makes the leader answer the one that waits. So a new follower begins to copy, and an acks=all producer
gets its acknowledgement, without naming everything again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

from headrace.broker.fetcher import Fetcher, FetcherLimits
from headrace.broker.partition import Partition
from headrace.broker.replica_manager import ReplicaManager
from headrace.broker.throttle import Throttle
from headrace.cluster.image import NO_LEADER
from headrace.errors import KafkaError
from headrace.ports import Clock
from headrace.rpc.controller_client import HasImage
from headrace.wire.client import Client
from headrace.wire.fetch import HIGHEST
from headrace.wire.fetch_client import parse_response, write_request
from headrace.wire.protocol import ApiKey

log = logging.getLogger(__name__)

IN_FLIGHT = 2
"""Requests to one leader: one that waits there, and one that cuts it short."""


class LeaderConnection(Protocol):
    """What a follower needs of its connection to a leader: `Client` has it."""

    def send(self, api_key: int, version: int, body: list[bytes]) -> asyncio.Future[memoryview]: ...

    def close(self) -> None: ...


Connect = Callable[[str, int, str, float], Awaitable[LeaderConnection]]
"""Opens a connection to host and port, with a client id and a timeout in seconds."""


async def connect_client(host: str, port: int, client_id: str, timeout: float) -> LeaderConnection:
    return await Client.connect(host, port, client_id=client_id, connect_timeout=timeout, request_timeout=timeout)


class Replication:
    """Follows whoever leads, for every partition that this broker does not lead itself."""

    def __init__(
        self,
        replicas: ReplicaManager,
        cluster: HasImage,
        clock: Clock,
        limits: FetcherLimits,
        broker_epoch: Callable[[], int],
        socket_timeout: float,
        connect: Connect = connect_client,
    ) -> None:
        self.connect = connect
        self._replicas = replicas
        self._cluster = cluster
        self._clock = clock
        self._limits = limits
        self._broker_epoch = broker_epoch
        self._socket_timeout = socket_timeout
        self._leaders: dict[int, LeaderLoop] = {}
        self._of: dict[Partition, int] = {}
        self._closed = False
        self.throttle = Throttle()
        """What replicas that catch up may fetch, over all leaders."""

    def follow(self, partition: Partition) -> None:
        """Copies from the partition's leader from now on; with no leader it stands still."""
        self.stop(partition)
        if partition.leader == NO_LEADER or self._closed:
            return
        loop = self._leaders.get(partition.leader)
        if loop is None:
            fetcher = Fetcher(self._replicas.broker_id, self._limits, self._broker_epoch, self.throttle)
            loop = self._leaders[partition.leader] = LeaderLoop(partition.leader, fetcher, self)
        self._of[partition] = partition.leader
        loop.add(partition)

    def stop(self, partition: Partition) -> None:
        leader = self._of.pop(partition, None)
        if leader is not None:
            self._leaders[leader].remove(partition)

    def refresh(self, partition: Partition) -> None:
        """Tells the leader, with the next request, that this replica's log starts later."""
        leader = self._of.get(partition)
        if leader is not None:
            self._leaders[leader].refresh(partition)

    async def close(self) -> None:
        """For good: what a controller says from now on must not write to logs that are about to be closed."""
        self._closed = True
        await asyncio.gather(*(loop.close() for loop in self._leaders.values()))

    @property
    def client_id(self) -> str:
        return f"broker-{self._replicas.broker_id}-fetcher"

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def socket_timeout(self) -> float:
        return self._socket_timeout

    @property
    def backoff(self) -> float:
        return self._limits.backoff

    def address_of(self, leader: int) -> tuple[str, int] | None:
        node = self._cluster.image.brokers.get(leader)
        return None if node is None or node.kafka is None else (node.kafka.host, node.kafka.port)

    def moved(self, partitions: list[Partition]) -> None:
        for partition in partitions:
            self._replicas.wake(partition)


class LeaderLoop:
    """One task: connect to the leader, ask, take the answer, ask again."""

    def __init__(self, leader: int, fetcher: Fetcher, replication: Replication) -> None:
        self._leader = leader
        self._fetcher = fetcher
        self._replication = replication
        self._changed = asyncio.Event()
        self._wake: asyncio.Future[None] | None = None
        """What `_answer` waits for."""
        self._task = asyncio.create_task(self._run(), name=f"follow broker {leader}")

    def add(self, partition: Partition) -> None:
        self._fetcher.add(partition)
        self._changed.set()
        self._wake_up()

    def remove(self, partition: Partition) -> None:
        self._fetcher.remove(partition)

    def refresh(self, partition: Partition) -> None:
        self._fetcher.refresh(partition)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            if not len(self._fetcher):
                self._changed.clear()
                await self._changed.wait()
            # What was added up to here is part of this attempt; only what comes later cuts a pause short.
            self._changed.clear()
            try:
                await self._follow()
            except (OSError, KafkaError, TimeoutError) as error:
                log.info("following broker %d: %s", self._leader, error)
                await self._pause(self._replication.backoff)

    async def _follow(self) -> None:
        """Fetches over one connection until it breaks, or until there is nothing left to follow."""
        address = self._replication.address_of(self._leader)
        if address is None:
            await self._pause(self._replication.backoff)
            return
        timeout = self._replication.socket_timeout
        client = await self._replication.connect(*address, self._replication.client_id, timeout)
        self._fetcher.reset_session()
        clock = self._replication.clock
        asked: deque[asyncio.Future[memoryview]] = deque()
        try:
            while len(self._fetcher):
                if not asked or self._may_follow_up(asked):
                    self._changed.clear()
                    request = self._fetcher.request(clock.monotonic())
                    if request is not None:
                        asked.append(client.send(ApiKey.FETCH, HIGHEST, [write_request(HIGHEST, request)]))
                    elif not asked:
                        await self._pause(self._fetcher.next_retry(clock.monotonic()) or self._replication.backoff)
                        continue
                body = await self._answer(asked)
                if body is not None:
                    response = parse_response(HIGHEST, body)
                    self._replication.moved(self._fetcher.received(response, clock.monotonic(), clock.time_ms()))
        finally:
            client.close()

    def _may_follow_up(self, asked: deque[asyncio.Future[memoryview]]) -> bool:
        return len(asked) < IN_FLIGHT and self._changed.is_set() and self._fetcher.in_session

    async def _answer(self, asked: deque[asyncio.Future[memoryview]]) -> memoryview | None:
        """The answer to the oldest request; None when it need not be waited for to ask for more.

        That is so when a partition was added, or when one that was refused may be asked for again: the leader of a new
        epoch often hears of it later than its followers.
        """
        oldest = asked[0]
        if not oldest.done() and self._fetcher.in_session and len(asked) < IN_FLIGHT:
            if not self._changed.is_set():
                await self._wait_for(oldest)
            if not oldest.done():
                self._changed.set()
                return None
        body = await oldest
        asked.popleft()
        return body

    async def _wait_for(self, answer: asyncio.Future[memoryview]) -> None:
        """Waits for an answer, for a partition that is added, or for one that may be asked for again.

        Once for every fetch, so it takes one future and not a task and an `asyncio.wait`.
        """
        loop = asyncio.get_running_loop()
        wake = self._wake = loop.create_future()
        due = self._fetcher.due_in(self._replication.clock.monotonic())
        timer = loop.call_later(due, self._wake_up) if due is not None else None
        answer.add_done_callback(self._wake_up)
        try:
            await wake
        finally:
            self._wake = None
            answer.remove_done_callback(self._wake_up)
            if timer is not None:
                timer.cancel()

    def _wake_up(self, _: object = None) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _pause(self, seconds: float) -> None:
        """Waits for `seconds`, or until a partition is added."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return
