"""A registry that loses answers or leases, controllers that are deposed unawares, brokers that do not answer."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from tests.unit.controller.little_cluster import LittleCluster, eventually

from headrace.cluster import codec
from headrace.cluster.image import Partition
from headrace.errors import ErrorCode, KafkaError
from headrace.registry.api import Change, Changes, Condition, KeyValue, Put, Session, Snapshot, TxnResult
from headrace.registry.memory import MemoryRegistry, MemoryStore
from headrace.v1 import broker_pb2 as bpb
from headrace.v1 import common_pb2 as pb
from headrace.v1 import controller_pb2 as cpb


class SlowWay:
    """A registry whose transactions wait on the way for `open`, and whose watches wait for `news` to begin."""

    def __init__(self, registry: MemoryRegistry) -> None:
        self._registry = registry
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = 0
        self.news = asyncio.Event()
        self.news.set()

    @property
    def max_txn_ops(self) -> int:
        return self._registry.max_txn_ops

    async def get(self, key: str) -> KeyValue | None:
        return await self._registry.get(key)

    async def snapshot(self, prefix: str) -> Snapshot:
        return await self._registry.snapshot(prefix)

    async def txn(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> TxnResult:
        # What was sent arrives, whether or not the sender still waits.
        return await asyncio.shield(asyncio.ensure_future(self._arrive(conditions, changes)))

    async def _arrive(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> TxnResult:
        self.waiting += 1
        await self.open.wait()
        try:
            return await self._registry.txn(conditions, changes)
        finally:
            self.waiting -= 1

    @asynccontextmanager
    async def watch(self, prefix: str, after: int | None = None) -> AsyncIterator[AsyncIterator[Snapshot | Changes]]:
        if after is None:
            await self.news.wait()
        async with self._registry.watch(prefix, after) as items:
            yield items

    async def session(self, ttl: float) -> Session:
        return await self._registry.session(ttl)

    async def close(self) -> None:
        await self._registry.close()


async def test_a_write_whose_answer_is_lost_happens_once(in_memory: LittleCluster) -> None:
    await in_memory.controller()
    broker = await in_memory.broker(1)
    await eventually(lambda: len(broker.requests) == 1)
    registry = in_memory.registries[0]
    assert isinstance(registry, MemoryRegistry)

    registry.drop_answers(1)
    result = await in_memory.create("orders", partitions=3)

    assert result.error.code == pb.NONE
    assert {topic_id for topic_id, _ in broker.held} == {result.topic_id}
    assert len(broker.held) == 3


async def test_what_a_half_done_creation_left_is_removed(in_memory: LittleCluster) -> None:
    await in_memory.controller()
    broker = await in_memory.broker(1)
    await eventually(lambda: len(broker.requests) == 1)
    registry = in_memory.registries[0]
    assert isinstance(registry, MemoryRegistry)

    # Two transactions for partitions and one for the topic; the first answers are lost, so it begins again.
    registry.drop_answers(2)
    result = await in_memory.create("orders", partitions=200)

    assert result.error.code == pb.NONE
    left: Snapshot | None = None

    async def partition_keys() -> int:
        nonlocal left
        left = await (await in_memory.admin()).snapshot(in_memory.keys.partitions)
        return len(left.items)

    await _eventually_equal(partition_keys, 200)
    assert {topic_id for topic_id, _ in broker.held} == {result.topic_id}


async def test_a_deposed_controller_cannot_write(in_memory: LittleCluster, store: MemoryStore) -> None:
    way = SlowWay(MemoryRegistry(store))
    old = await in_memory.controller(1, way)
    broker = await in_memory.broker(1)
    await eventually(lambda: len(broker.requests) == 1)
    term = (await in_memory.reign()).term
    new = await in_memory.controller(2)

    # Its write is on the way when its election key is taken away and another one is elected.
    way.open.clear()
    late = asyncio.ensure_future(in_memory.create("late"))
    await eventually(lambda: way.waiting == 1)
    held = await (await in_memory.admin()).get(in_memory.keys.controller)
    assert held is not None
    store.revoke(held.lease)
    await eventually(lambda: new.active)
    way.open.set()

    with pytest.raises(KafkaError) as refused:
        await late
    assert refused.value.code is ErrorCode.NOT_CONTROLLER
    await eventually(lambda: way.waiting == 0)
    assert not old.active
    assert not (await (await in_memory.admin()).snapshot(in_memory.keys.topics)).items
    assert (await in_memory.reign()).term.epoch > term.epoch
    described = await in_memory.ask("DescribeTopics", cpb.DescribeTopicsRequest(), new)
    assert not described.topics
    await eventually(lambda: broker.controller_epoch == term.epoch + 1)
    assert not broker.held


async def test_nobody_is_answered_before_the_new_controller_knows_the_cluster(
    in_memory: LittleCluster, store: MemoryStore
) -> None:
    await in_memory.controller(1)
    broker = await in_memory.broker(1)
    await eventually(lambda: len(broker.requests) == 1)
    await in_memory.create("orders")
    await in_memory.stop_controller(1)
    way = SlowWay(MemoryRegistry(store))
    way.news.clear()
    service = await in_memory.controller(2, way)
    election = in_memory.keys.controller

    await eventually(lambda: store.get(election) is not None)
    again = cpb.CreateTopicsRequest.NewTopic(name="orders", partitions=1, replication_factor=1)
    asked = asyncio.ensure_future(in_memory.ask("CreateTopics", cpb.CreateTopicsRequest(topics=[again]), service))
    described = asyncio.ensure_future(in_memory.ask("DescribeTopics", cpb.DescribeTopicsRequest(), service))
    await asyncio.wait([asked, described], timeout=0.05)
    way.news.set()

    assert (await asked).topics[0].error.code == pb.TOPIC_ALREADY_EXISTS
    assert [topic.name for topic in (await described).topics] == ["orders"]


async def test_a_controller_that_cannot_reach_the_registry_stops_acting(in_memory: LittleCluster) -> None:
    first = await in_memory.controller(1)
    await in_memory.broker(1)
    await eventually(lambda: first.active)
    reign = await in_memory.reign()
    second = await in_memory.controller(2)
    registry = in_memory.registries[1]
    assert isinstance(registry, MemoryRegistry)

    registry.cut()

    await eventually(lambda: second.active)
    assert not first.active
    with pytest.raises(KafkaError) as refused:
        await reign.current()
    assert refused.value.code is ErrorCode.NOT_CONTROLLER
    registry.heal()
    assert (await in_memory.create("orders")).error.code == pb.NONE


async def test_changes_for_a_slow_broker_are_told_together(in_memory: LittleCluster) -> None:
    await in_memory.controller()
    slow, quick = await in_memory.broker(1), await in_memory.broker(2)
    await eventually(lambda: len(slow.requests) == len(quick.requests) == 1)
    slow.answers.clear()

    for number in range(10):
        new = cpb.CreateTopicsRequest.NewTopic(name=f"t{number}")
        new.partitions = new.replication_factor = -1
        new.assignments.add(partition=0, replicas=[1, 2])
        await in_memory.ask("CreateTopics", cpb.CreateTopicsRequest(topics=[new]))
    await in_memory.ask("DeleteTopics", cpb.DeleteTopicsRequest(topics=[pb.TopicPartition(topic="t3")]))
    await eventually(lambda: len(quick.held) == 9)
    slow.answers.set()
    await eventually(lambda: len(slow.held) == 9)

    told = [request for request in slow.requests if isinstance(request, bpb.LeaderAndIsrRequest)]
    assert len(told) <= 3, "everything at the start, the first topic, and all the others at once"


async def test_a_broker_that_knows_a_newer_controller_is_no_reason_to_step_down_while_elected(
    in_memory: LittleCluster,
) -> None:
    service = await in_memory.controller()
    broker = await in_memory.broker(1)
    await eventually(lambda: len(broker.requests) == 1)
    broker.controller_epoch += 1

    creating = asyncio.ensure_future(in_memory.create("orders"))
    await eventually(lambda: len(broker.requests) > 3)
    assert service.active
    broker.controller_epoch -= 1
    assert (await creating).error.code == pb.NONE
    assert len(broker.held) == 1


async def _eventually_equal(read: object, wanted: int) -> None:
    deadline = asyncio.get_running_loop().time() + 10
    while (found := await read()) != wanted:  # type: ignore[operator]
        assert asyncio.get_running_loop().time() < deadline, f"{found}, not {wanted}"
        await asyncio.sleep(0.01)


async def test_nothing_is_deleted_while_a_key_cannot_be_read(in_memory: LittleCluster) -> None:
    await in_memory.controller(1)
    broker = await in_memory.broker(1)
    await eventually(lambda: len(broker.requests) == 1)
    await in_memory.create("orders", partitions=2)
    await in_memory.create("other")
    await in_memory.stop_controller(1)
    registry, key = await in_memory.admin(), in_memory.keys.topic("orders")
    kept = await registry.get(key)
    assert kept is not None
    await registry.txn([], [Put(key, b"{damaged")])
    broker.requests.clear()

    await in_memory.controller(2)
    await eventually(lambda: len(broker.requests) == 1)

    assert not broker.requests[0].full  # type: ignore[union-attr]
    assert len(broker.held) == 3
    assert len((await registry.snapshot(in_memory.keys.partitions)).items) == 3

    await registry.txn([], [Put(key, kept.value)])
    await eventually(lambda: len(broker.requests) == 2)
    described = await in_memory.ask("DescribeTopics", cpb.DescribeTopicsRequest())
    assert [topic.name for topic in described.topics] == ["orders", "other"]


async def test_brokers_hear_of_a_write_that_arrives_after_its_caller_gave_up(
    in_memory: LittleCluster, store: MemoryStore
) -> None:
    way = SlowWay(MemoryRegistry(store))
    await in_memory.controller(1, way)
    broker = await in_memory.broker(1)
    await eventually(lambda: len(broker.requests) == 1)
    result = await in_memory.create("orders")
    topic_id = uuid.UUID(bytes=result.topic_id)

    # The registry's own picture moves without any answer to the controller.
    state = codec.encode_partition(Partition(1, 5, (1,), (1,), 5))
    await way.txn([], [Put(in_memory.keys.partition(str(topic_id), 0), state)])

    await eventually(lambda: broker.held[result.topic_id, 0].leader_epoch == 5)
