"""Controllers and brokers together, over gRPC, on a registry in memory and on a real etcd."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from tests.unit.controller.little_cluster import Disk, LittleCluster, eventually

from headrace.cluster import codec
from headrace.cluster.image import Partition
from headrace.errors import ErrorCode, KafkaError
from headrace.registry.api import Put
from headrace.v1 import broker_pb2 as bpb
from headrace.v1 import common_pb2 as pb
from headrace.v1 import controller_pb2 as cpb


async def test_brokers_hear_of_a_topic_before_its_creator_does(cluster: LittleCluster) -> None:
    await cluster.controller()
    brokers = [await cluster.broker(number) for number in (1, 2, 3)]
    await eventually(lambda: all(len(broker.requests) == 1 for broker in brokers))

    result = await cluster.create("orders", partitions=300, factor=3)

    assert result.error.code == pb.NONE
    assert [len(broker.held) for broker in brokers] == [300, 300, 300]
    assert sum(broker.leads for broker in brokers) == 300
    assert all(broker.leads == 100 for broker in brokers)
    # Three hundred partitions are more than one transaction, and still one request for each broker.
    assert [len(broker.requests) for broker in brokers] == [2, 2, 2]
    assert (await cluster.create("orders")).error.code == pb.TOPIC_ALREADY_EXISTS


async def test_creating_waits_for_brokers_but_not_for_ever(cluster: LittleCluster) -> None:
    await cluster.controller()
    broker = await cluster.broker(1)
    await eventually(lambda: len(broker.requests) == 1)
    broker.answers.clear()

    creating = asyncio.ensure_future(cluster.create("slow"))
    await eventually(lambda: len(broker.held) == 1)
    assert not creating.done()
    broker.answers.set()
    assert (await creating).error.code == pb.NONE

    broker.answers.clear()
    new = cpb.CreateTopicsRequest.NewTopic(name="slower", partitions=1, replication_factor=1)
    response = await cluster.ask("CreateTopics", cpb.CreateTopicsRequest(topics=[new], timeout_ms=50))
    assert response.topics[0].error.code == pb.NONE


async def test_validate_only_makes_nothing(cluster: LittleCluster) -> None:
    await cluster.controller()
    await cluster.broker(1)
    new = cpb.CreateTopicsRequest.NewTopic(name="maybe", partitions=4, replication_factor=1)
    request = cpb.CreateTopicsRequest(topics=[new], validate_only=True)

    await eventually(lambda: len(cluster.brokers[1].requests) == 1)
    response = await cluster.ask("CreateTopics", request)

    assert (response.topics[0].error.code, response.topics[0].partitions) == (pb.NONE, 4)
    described = await cluster.ask("DescribeTopics", cpb.DescribeTopicsRequest(names=["maybe"]))
    assert described.errors["maybe"].code == pb.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_broker_that_dies_hands_its_leaderships_over(cluster: LittleCluster) -> None:
    await cluster.controller()
    for number in (1, 2, 3):
        await cluster.broker(number)
    await _ready(cluster)
    await cluster.create("orders", partitions=30, factor=3)

    disk = await cluster.stop_broker(1)

    others = [cluster.brokers[2], cluster.brokers[3]]
    await eventually(lambda: sum(broker.leads for broker in others) == 30)
    assert all(1 not in state.isr for broker in others for state in broker.held.values())

    back = await cluster.broker(1, disk)
    await eventually(lambda: any(isinstance(r, bpb.LeaderAndIsrRequest) and r.full for r in back.requests))
    assert len(back.held) == 30
    assert back.leads == 0


async def test_a_deleted_topic_is_gone_from_a_broker_that_was_away(cluster: LittleCluster) -> None:
    await cluster.controller()
    for number in (1, 2):
        await cluster.broker(number)
    await _ready(cluster)
    await cluster.create("orders", partitions=3, factor=2)
    await cluster.create("kept", partitions=1, factor=2)
    disk = await cluster.stop_broker(2)

    assert (await cluster.delete("orders")).error.code == pb.NONE
    assert len(cluster.brokers[1].held) == 1
    assert len(disk.held) == 4

    await cluster.broker(2, disk)
    await eventually(lambda: len(disk.held) == 1)
    registry = await cluster.admin()
    left = await registry.snapshot(cluster.keys.partitions)
    assert len(left.items) == 1
    assert (await cluster.create("orders", partitions=2, factor=2)).error.code == pb.NONE
    assert len(disk.held) == 3


async def test_another_controller_takes_over(cluster: LittleCluster) -> None:
    for number in (1, 2, 3):
        await cluster.controller(number)
    for number in (1, 2):
        await cluster.broker(number)
    await _ready(cluster)
    await cluster.create("orders", partitions=4, factor=2)

    seen = set()
    for _ in range(2):
        active = await cluster.active()
        term = (await cluster.reign()).term
        seen.add(term)
        standby = next(service for service in cluster.controllers.values() if service is not active)
        with pytest.raises(KafkaError, match=f"127.0.0.1:{active.port}") as refused:
            await cluster.ask("DescribeTopics", cpb.DescribeTopicsRequest(), standby)
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        for broker in cluster.brokers.values():
            broker.requests.clear()

        await cluster.stop_controller(term.controller)

        assert len(cluster.controllers) == 3 - len(seen)
        after = (await cluster.reign()).term
        assert after.epoch > term.epoch
        await _ready(cluster)
        for broker in cluster.brokers.values():
            assert broker.controller_epoch == after.epoch
            assert broker.requests[0].full  # type: ignore[union-attr]
            assert len(broker.held) == 4
    assert (await cluster.create("more", factor=2)).error.code == pb.NONE


async def test_what_happened_without_a_controller_is_dealt_with(cluster: LittleCluster) -> None:
    await cluster.controller(1)
    for number in (1, 2):
        await cluster.broker(number)
    await _ready(cluster)
    await cluster.create("orders", partitions=2, factor=2)
    await cluster.create("single", partitions=2)
    before = {name: await cluster.partition(name) for name in ("orders", "single")}
    leader = before["single"].leader
    await cluster.stop_controller(1)
    # A creation that its controller did not finish, and a broker that restarted.
    registry = await cluster.admin()
    orphan = cluster.keys.partition(str(uuid.uuid4()), 0)
    await registry.txn([], [Put(orphan, codec.encode_partition(Partition(1, 0, (1,), (1,))))])
    await cluster.broker(leader, await cluster.stop_broker(leader))

    await cluster.controller(2)
    await _ready(cluster)

    assert await registry.get(orphan) is None
    single = await cluster.partition("single")
    assert (single.leader, single.leader_epoch) == (leader, before["single"].leader_epoch + 1)
    orders = await cluster.partition("orders")
    assert orders.leader != leader
    assert list(orders.isr) == [orders.leader]


async def test_a_stopping_broker_gives_its_leaderships_away_first(cluster: LittleCluster) -> None:
    await cluster.controller()
    for number in (1, 2):
        await cluster.broker(number)
    await _ready(cluster)
    await cluster.create("orders", partitions=4, factor=2)
    broker = cluster.brokers[1]

    wrong = cpb.ControlledShutdownRequest(broker_id=1, broker_epoch=broker.epoch - 1)
    assert (await cluster.ask("ControlledShutdown", wrong)).error.code == pb.STALE_BROKER_EPOCH
    request = cpb.ControlledShutdownRequest(broker_id=1, broker_epoch=broker.epoch)
    response = await cluster.ask("ControlledShutdown", request)

    assert response.error.code == pb.NONE
    assert not response.remaining
    assert (broker.leads, cluster.brokers[2].leads) == (0, 4)


async def test_leaders_change_the_isr_by_compare_and_swap(cluster: LittleCluster) -> None:
    await cluster.controller()
    for number in (1, 2):
        await cluster.broker(number)
    await _ready(cluster)
    topic = await cluster.create("orders", factor=2)
    state = await cluster.partition("orders")
    request = cpb.AlterPartitionRequest(broker_id=state.leader, broker_epoch=cluster.brokers[state.leader].epoch)
    request.partitions.add(
        partition=pb.TopicPartition(topic_id=topic.topic_id),
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        isr=[state.leader],
        isr_epochs=[cluster.brokers[state.leader].epoch],
    )

    [taken] = (await cluster.ask("AlterPartition", request)).results
    [late] = (await cluster.ask("AlterPartition", request)).results

    assert (taken.error.code, list(taken.state.isr)) == (pb.NONE, [state.leader])
    assert (late.error.code, late.state) == (pb.INVALID_UPDATE_VERSION, taken.state)
    follower = cluster.brokers[3 - state.leader]
    await eventually(lambda: follower.held[topic.topic_id, 0] == taken.state)


async def test_producer_ids_are_given_once(cluster: LittleCluster) -> None:
    await cluster.controller(1)
    await cluster.controller(2)
    broker = await cluster.broker(1)
    await _ready(cluster)
    request = cpb.AllocateProducerIdsRequest(broker_id=1, broker_epoch=broker.epoch)

    blocks = [await cluster.ask("AllocateProducerIds", request) for _ in range(2)]
    await cluster.stop_controller((await cluster.reign()).term.controller)
    await _ready(cluster)
    blocks.append(await cluster.ask("AllocateProducerIds", request))

    ids = [number for block in blocks for number in range(block.first, block.first + block.count)]
    assert len(set(ids)) == len(ids) == 3000
    stale = cpb.AllocateProducerIdsRequest(broker_id=1, broker_epoch=broker.epoch + 1)
    assert (await cluster.ask("AllocateProducerIds", stale)).error.code == pb.STALE_BROKER_EPOCH


async def test_settings_are_changed_and_shown(cluster: LittleCluster) -> None:
    await cluster.controller()
    for number in (1, 2):
        await cluster.broker(number)
    await _ready(cluster)
    assert (await cluster.create("orders", factor=2, retention_mss="5")).error.code == pb.INVALID_CONFIG
    topic = await cluster.create("orders", factor=2, retention_ms="5000")
    resource = pb.ConfigResource(type=pb.CONFIG_RESOURCE_TOPIC, name="orders")

    async def shown(name: str) -> cpb.ConfigEntry:
        [result] = (await cluster.ask("DescribeConfigs", cpb.DescribeConfigsRequest(resources=[resource]))).results
        return next(entry for entry in result.entries if entry.name == name)

    async def altered(name: str, value: str) -> int:
        request = cpb.AlterConfigsRequest()
        request.alterations.add(resource=resource).operations.add(name=name, value=value)
        return (await cluster.ask("AlterConfigs", request)).results[0].error.code

    assert ((await shown("retention.ms")).value, (await shown("retention.ms")).source) == ("5000", 1)
    assert await altered("retention.ms", "soon") == pb.INVALID_CONFIG
    assert await altered("retention.ms", "7000") == pb.NONE
    assert (await shown("retention.ms")).value == "7000"

    # Nobody but the dead broker is in sync: only the setting lets another one lead.
    leader = (await cluster.partition("orders")).leader
    other = cluster.brokers[3 - leader]
    disk = await cluster.stop_broker(other.id)
    await eventually(lambda: len(cluster.brokers[leader].held[topic.topic_id, 0].isr) == 1)
    await cluster.stop_broker(leader)
    other = await cluster.broker(other.id, disk)
    await eventually(lambda: disk.held[topic.topic_id, 0].leader == -1)
    assert await altered("unclean.leader.election.enable", "true") == pb.NONE
    await eventually(lambda: other.leads == 1)


async def test_an_empty_broker_gets_its_partitions_back(cluster: LittleCluster) -> None:
    await cluster.controller()
    for number in (1, 2):
        await cluster.broker(number)
    await _ready(cluster)
    await cluster.create("orders", partitions=2, factor=2)
    await cluster.create("single", partitions=2)
    await cluster.stop_broker(1)

    empty = await cluster.broker(1, Disk())

    await eventually(lambda: len(empty.held) == 3)
    # Only the one that nobody else has a copy of.
    await eventually(lambda: empty.leads == 1)


async def _ready(cluster: LittleCluster) -> None:
    """Waits until the active controller knows all brokers and each has confirmed everything."""
    reign = await cluster.reign()
    epochs = {number: broker.epoch for number, broker in cluster.brokers.items()}
    await eventually(lambda: {b: node.epoch for b, node in reign.image.brokers.items()} == epochs)
    await eventually(lambda: reign.senders.brokers == set(epochs) and reign.senders.settled)
