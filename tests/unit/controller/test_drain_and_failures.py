"""Brokers that shall hold nothing any more, and replicas whose disk failed."""

import uuid

import pytest

from headrace.cluster.image import NO_LEADER, Endpoint, Image, Node, Partition, Topic
from headrace.controller import isr, leaders
from headrace.controller.drain import drain
from headrace.controller.plan import Incarnation, View
from headrace.errors import ErrorCode, KafkaError
from headrace.v1 import common_pb2 as pb
from headrace.v1 import controller_pb2 as cpb

DISK = uuid.UUID(int=1)


def view(*partitions: Partition, brokers: int = 3, racks: str = "", failed: dict[int, set[int]] | None = None) -> View:
    nodes = {b: Node(b, 1, Endpoint("h", b), rack=racks[b] if racks else "", directory_id=DISK) for b in range(brokers)}
    topic = Topic("t", uuid.UUID(int=9), partitions)
    image = Image(brokers=nodes, topics={"t": topic}, topic_names={topic.id: "t"})
    lost = {broker: {("t", index) for index in indexes} for broker, indexes in (failed or {}).items()}
    return View(image, dict.fromkeys(nodes, Incarnation(1, DISK)), frozenset(), lost)


def led(*replicas: int) -> Partition:
    return Partition(replicas[0], 0, replicas, replicas)


def test_a_drained_brokers_replicas_go_to_those_with_the_fewest() -> None:
    plan, answer = drain(view(led(0, 1), led(1, 2), led(2, 0), brokers=4), cpb.DrainBrokerRequest(broker_id=1))
    assert [p.partition for p in answer.moving] == [0, 1]
    assert not answer.stuck
    assert plan.partitions["t", 0].replicas == (0, 3, 1)
    assert plan.partitions["t", 0].adding == (3,)
    assert plan.partitions["t", 0].removing == (1,)
    assert ("t", 2) not in plan.partitions


def test_draining_keeps_racks_apart() -> None:
    plan, _ = drain(view(led(0, 1), led(2, 3), brokers=4, racks="abab"), cpb.DrainBrokerRequest(broker_id=1))
    assert plan.partitions["t", 0].adding == (3,), "rack a has the other replica already"


def test_asking_again_plans_nothing_twice_and_ends_with_nothing_left() -> None:
    before = view(led(0, 1))
    plan, _ = drain(before, cpb.DrainBrokerRequest(broker_id=1))
    again, answer = drain(view(plan.partitions["t", 0]), cpb.DrainBrokerRequest(broker_id=1))
    assert not again
    assert [p.partition for p in answer.moving] == [0]
    done, answer = drain(view(led(0, 2)), cpb.DrainBrokerRequest(broker_id=1))
    assert not done
    assert not answer.moving


def test_what_has_nowhere_to_go_is_named() -> None:
    plan, answer = drain(view(led(0, 1, 2)), cpb.DrainBrokerRequest(broker_id=1))
    assert not plan
    [stuck] = answer.stuck
    assert stuck.error.code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_an_unknown_broker_cannot_be_drained() -> None:
    with pytest.raises(KafkaError) as refused:
        drain(view(led(0, 1)), cpb.DrainBrokerRequest(broker_id=7))
    assert refused.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_a_failed_replica_leads_no_longer_and_the_brokers_others_do() -> None:
    plan = leaders.reconcile(view(led(0, 1, 2), led(0, 1, 2), failed={0: {0}}), lambda _: False)
    assert set(plan.partitions) == {("t", 0)}
    moved = plan.partitions["t", 0]
    assert (moved.leader, moved.isr, moved.leader_epoch) == (1, (1, 2), 1)


def test_a_failed_follower_leaves_the_isr() -> None:
    plan = leaders.reconcile(view(led(0, 1, 2), failed={2: {0}}), lambda _: False)
    assert plan.partitions["t", 0].isr == (0, 1)
    assert plan.partitions["t", 0].leader == 0


def test_the_last_one_in_sync_stays_in_the_isr_when_its_disk_fails() -> None:
    plan = leaders.reconcile(view(Partition(0, 0, (0,), (0, 1)), failed={0: {0}}), lambda _: False)
    offline = plan.partitions["t", 0]
    assert (offline.leader, offline.isr) == (NO_LEADER, (0,))
    unclean = leaders.reconcile(view(Partition(0, 0, (0,), (0, 1)), failed={0: {0}}), lambda _: True)
    assert unclean.partitions["t", 0].leader == 1


def test_a_failed_replica_is_neither_elected_nor_let_into_the_isr() -> None:
    state = Partition(1, 1, (1, 2), (0, 1, 2))
    seen = view(state, failed={0: {0}})
    _, answer = leaders.elect(seen, cpb.ElectLeadersRequest(partitions=[pb.TopicPartition(topic="t", partition=0)]))
    assert answer.results[0].error.code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    wish = cpb.AlterPartitionRequest(broker_id=1, broker_epoch=1)
    wish.partitions.add(partition=pb.TopicPartition(topic="t", partition=0), leader_epoch=1, isr=[1, 2, 0])
    plan, altered = isr.alter(seen, wish)
    assert not plan
    assert altered.results[0].error.code == ErrorCode.INELIGIBLE_REPLICA
