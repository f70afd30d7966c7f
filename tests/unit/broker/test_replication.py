"""A follower's conversation with its leader: what it sends on its connection, and when."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.broker.conftest import TOPIC_ID, Bench

from headrace.broker.fetcher import FetcherLimits
from headrace.broker.partition import Partition
from headrace.broker.replication import Replication
from headrace.cluster.image import Endpoint, Image, Node
from headrace.cluster.image import Partition as State
from headrace.errors import ErrorCode
from headrace.ports import SystemClock
from headrace.wire.fetch import HIGHEST, FetchRequest, PartitionResult, parse_request, write_response

LEADER = 1
SESSION = 77
DEADLINE = 10.0


class Leader:
    """The other end of the connection: it keeps what it is asked, and answers when the test says so."""

    def __init__(self) -> None:
        self.connections = 0
        self.asked: asyncio.Queue[tuple[FetchRequest, asyncio.Future[memoryview]]] = asyncio.Queue()

    async def connect(self, host: str, port: int, client_id: str, timeout: float) -> Leader:
        self.connections += 1
        return self

    def send(self, api_key: int, version: int, body: list[bytes]) -> asyncio.Future[memoryview]:
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self.asked.put_nowait((parse_request(version, memoryview(b"".join(body))), answer))
        return answer

    def close(self) -> None:
        """Nothing is open."""

    async def next(self) -> tuple[FetchRequest, asyncio.Future[memoryview]]:
        async with asyncio.timeout(DEADLINE):
            return await self.asked.get()


def answer(to: asyncio.Future[memoryview], *results: PartitionResult) -> None:
    parts = write_response(HIGHEST, list(results), 0, SESSION)
    to.set_result(memoryview(b"".join(bytes(part) for part in parts)))  # type: ignore[arg-type]


def named(request: FetchRequest) -> list[int]:
    return [each.partition for each in request.partitions]


class Follower:
    """One broker that follows partitions of the leader."""

    def __init__(self, bench: Bench, leader: Leader) -> None:
        self.bench = bench
        node = Node(LEADER, 1, Endpoint("localhost", 1), Endpoint("localhost", 2), "", uuid.UUID(int=1))
        cluster = SimpleNamespace(image=Image(brokers={LEADER: node}))
        limits = FetcherLimits(max_wait_ms=60_000)
        self.replication = Replication(
            bench.replicas, cluster, SystemClock(), limits, lambda: 1, DEADLINE, leader.connect
        )

    def follow(self, index: int) -> Partition:
        partition = self.bench.partition(index)
        partition.follow(State(LEADER, 3, (0, 1), (0, 1), 0))
        self.replication.follow(partition)
        return partition


@pytest.fixture
def leader() -> Leader:
    return Leader()


@pytest.fixture
async def follower(tmp_path: Path, leader: Leader) -> AsyncIterator[Follower]:
    made = Follower(Bench(tmp_path), leader)
    yield made
    await made.replication.close()


async def test_a_session_is_opened_without_waiting_in_it(leader: Leader, follower: Follower) -> None:
    follower.follow(0)
    request, first = await leader.next()
    assert (request.session_epoch, request.max_wait_ms, named(request)) == (0, 0, [0])
    answer(first, PartitionResult(TOPIC_ID, 0, 0, 0, 0, 0))
    request, _ = await leader.next()
    assert (request.session_id, request.session_epoch, named(request)) == (SESSION, 1, [])
    assert request.max_wait_ms == 60_000


async def test_nothing_is_followed_after_the_close(leader: Leader, follower: Follower) -> None:
    """A controller's word may come between the end of the fetches and that of the logs."""
    await follower.replication.close()
    follower.follow(0)
    for _ in range(5):
        await asyncio.sleep(0)
    assert leader.connections == 0
    assert leader.asked.empty()


async def test_a_new_partition_is_asked_for_while_the_leader_holds_a_request(
    leader: Leader, follower: Follower
) -> None:
    follower.follow(0)
    _, first = await leader.next()
    answer(first, PartitionResult(TOPIC_ID, 0, 0, 0, 0, 0))
    _, waiting = await leader.next()
    follower.follow(1)
    request, _ = await leader.next()
    assert (request.session_epoch, named(request)) == (2, [1])
    assert not waiting.done()
    assert leader.connections == 1


async def test_a_refused_partition_is_asked_for_again_while_another_request_waits(
    leader: Leader, follower: Follower
) -> None:
    follower.follow(0)
    _, first = await leader.next()
    answer(first, PartitionResult(TOPIC_ID, 0, 0, 0, 0, 0))
    _, waiting = await leader.next()
    follower.follow(1)
    _, second = await leader.next()
    answer(waiting, PartitionResult(TOPIC_ID, 1, ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1, -1))
    request, _ = await leader.next()
    assert not second.done(), "the leader still holds the request before this one"
    assert (request.session_epoch, request.forgotten) == (3, []), "the leader looks again at what it refused"
