"""A broker that lost its lease and registered again is not one that restarted."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from tests.unit.controller.little_cluster import LittleCluster, eventually

from headrace.cluster.image import Endpoint, Image, Node, Partition, Topic
from headrace.controller.leaders import reconcile
from headrace.controller.plan import Incarnation, View
from headrace.v1 import broker_pb2 as bpb

DIRECTORY = uuid.UUID(int=1)


def view(*processes: str) -> View:
    """Three brokers that were known as processes a, b and c, and registered again as `processes`."""
    brokers = {
        n: Node(n, 10 + n, Endpoint("h", 1), directory_id=DIRECTORY, incarnation_id=process)
        for n, process in enumerate(processes)
    }
    topic = Topic("t", uuid.UUID(int=2), (Partition(0, 4, (0, 1, 2), (0, 1, 2), 7),))
    seen = {n: Incarnation(n, DIRECTORY, process) for n, process in enumerate("abc")}
    return View(Image(brokers=brokers, topics={"t": topic}), seen)


def test_processes_that_only_registered_again_stay_in_sync() -> None:
    plan = reconcile(view("a", "b", "c"), lambda _: False)
    assert not plan.partitions
    assert plan.incarnations[0] == Incarnation(10, DIRECTORY, "a")


def test_the_one_that_restarted_meanwhile_does_not_lead_them() -> None:
    state = reconcile(view("a2", "b", "c"), lambda _: False).partitions["t", 0]
    assert (state.leader, state.leader_epoch, state.isr) == (1, 5, (1, 2))


def test_a_process_that_is_not_known_counts_as_restarted() -> None:
    state = reconcile(view("", "b", "c"), lambda _: False).partitions["t", 0]
    assert state.isr == (1, 2)


async def test_one_that_comes_while_others_are_dealt_with_is_told_nothing_yet(
    in_memory: LittleCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was the leader and comes back without its disk: what it held before would make it lead without a record."""
    await in_memory.controller()
    for number in (0, 1):
        await in_memory.broker(number)
    await in_memory.create("orders", factor=2)
    leader = (await in_memory.partition("orders")).leader
    reign = await in_memory.reign()
    begun, go_on = asyncio.Event(), asyncio.Event()
    after_the_decision = reign._remove_orphans

    async def wait_first() -> None:
        begun.set()
        await go_on.wait()
        await after_the_decision()

    monkeypatch.setattr(reign, "_remove_orphans", wait_first)
    await in_memory.broker(2)
    await begun.wait()
    await in_memory.stop_broker(leader)
    back = await in_memory.broker(leader)
    await eventually(lambda: leader in reign.image.brokers and reign.image.brokers[leader].epoch == back.epoch)
    go_on.set()
    await eventually(lambda: bool(back.requests))
    first = back.requests[0]
    assert isinstance(first, bpb.LeaderAndIsrRequest)
    assert [state.leader for topic in first.topics for state in topic.partitions] == [1 - leader]
