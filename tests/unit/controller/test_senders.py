"""What a sender says, to a broker that answers, refuses, or is silent."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
from tests.unit.controller.little_cluster import eventually

from headrace.cluster.image import Endpoint, Image, Node, Partition, Topic
from headrace.controller.senders import TOPIC_DELETED, SenderLimits, Senders, Term
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import SystemClock
from headrace.v1 import broker_pb2 as bpb
from headrace.v1 import common_pb2 as pb

TOPIC = Topic("orders", uuid.uuid4(), (Partition(1, 0, (1,), (1,)), Partition(2, 3, (2,), (2,))))
GONE = uuid.uuid4()
NODE = Node(1, 50, Endpoint("b", 1))


class Answers:
    """Stands for all brokers: notes what it hears and answers what it is told to."""

    def __init__(self) -> None:
        self.heard: list[bpb.LeaderAndIsrRequest | bpb.StopReplicaRequest] = []
        self.refusals: list[KafkaError] = []

    async def leader_and_isr(
        self, node: Node, request: bpb.LeaderAndIsrRequest, timeout: float
    ) -> bpb.LeaderAndIsrResponse:
        self.heard.append(request)
        if self.refusals:
            refusal = self.refusals.pop(0)
            if refusal.code is ErrorCode.NETWORK_EXCEPTION:
                raise refusal
            return bpb.LeaderAndIsrResponse(error=pb.Error(code=pb.ErrorCode.ValueType(refusal.code)))
        return bpb.LeaderAndIsrResponse()

    async def stop_replica(
        self, node: Node, request: bpb.StopReplicaRequest, timeout: float
    ) -> bpb.StopReplicaResponse:
        self.heard.append(request)
        return bpb.StopReplicaResponse()


class Setting:
    def __init__(self) -> None:
        self.image = Image(brokers={1: NODE}, topics={"orders": TOPIC}, topic_names={TOPIC.id: "orders"})
        self.answers = Answers()
        self.doubts = 0
        self.senders = Senders(
            Term(9, 4),
            lambda: (self.image, True),
            self.answers,
            SystemClock(),
            SenderLimits(first_backoff=0.001, max_backoff=0.002, max_noted=3),
            self.doubt,
        )

    def doubt(self) -> None:
        self.doubts += 1

    async def heard(self) -> None:
        async with asyncio.timeout(10):
            await self.senders.heard([1], 1000)


@pytest.fixture
async def setting() -> AsyncIterator[Setting]:
    made = Setting()
    yield made
    await made.senders.close()


async def test_first_everything_then_what_changed(setting: Setting) -> None:
    await setting.senders.follow(setting.image.brokers)
    await setting.heard()
    setting.senders.note({1: {(TOPIC.id, 0)}, 2: {(TOPIC.id, 1)}})
    await setting.heard()

    full, changed = setting.answers.heard
    assert isinstance(full, bpb.LeaderAndIsrRequest)
    assert (full.full, full.controller_id, full.controller_epoch, full.broker_epoch) == (True, 9, 4, 50)
    assert [state.partition for state in full.topics[0].partitions] == [0]
    assert isinstance(changed, bpb.LeaderAndIsrRequest)
    assert not changed.full
    assert changed.topics == full.topics
    assert 0 < full.number < changed.number


async def test_what_is_not_the_brokers_any_more_is_stopped_first(setting: Setting) -> None:
    await setting.senders.follow(setting.image.brokers)
    await setting.heard()
    setting.senders.note({1: {(TOPIC.id, 0), (TOPIC.id, 1), (GONE, 0)}})
    await setting.heard()

    _, stop, lead = setting.answers.heard
    assert isinstance(stop, bpb.StopReplicaRequest)
    stopped = {(p.partition.topic_id, p.partition.partition): (p.leader_epoch, p.delete) for p in stop.partitions}
    assert stopped == {(TOPIC.id.bytes, 1): (3, True), (GONE.bytes, 0): (TOPIC_DELETED, True)}
    assert isinstance(lead, bpb.LeaderAndIsrRequest)


async def test_it_repeats_until_it_is_heard(setting: Setting) -> None:
    setting.answers.refusals = [
        KafkaError(ErrorCode.NETWORK_EXCEPTION),
        KafkaError(ErrorCode.STALE_BROKER_EPOCH),
        KafkaError(ErrorCode.STALE_CONTROLLER_EPOCH),
    ]
    await setting.senders.follow(setting.image.brokers)
    await setting.heard()

    assert [request.full for request in setting.answers.heard] == [True] * 4  # type: ignore[union-attr]
    assert setting.doubts == 1


async def test_too_many_changes_become_everything(setting: Setting) -> None:
    await setting.senders.follow(setting.image.brokers)
    await setting.heard()
    setting.senders.note({1: {(TOPIC.id, 0)}})
    setting.senders.note({1: {(uuid.uuid4(), 0) for _ in range(5)}})
    await setting.heard()

    assert [request.full for request in setting.answers.heard] == [True, True]  # type: ignore[union-attr]


async def test_nobody_waits_for_a_broker_that_is_gone(setting: Setting) -> None:
    setting.answers.refusals = [KafkaError(ErrorCode.NETWORK_EXCEPTION)] * 1_000_000
    await setting.senders.follow(setting.image.brokers)
    waiting = asyncio.ensure_future(setting.heard())
    await eventually(lambda: len(setting.answers.heard) > 3)
    assert not waiting.done()
    await setting.senders.follow({})

    await waiting
    assert setting.senders.brokers == set()
