"""A broker that lost its lease and registered again is not one that restarted."""

from __future__ import annotations

import uuid

from headrace.cluster.image import Endpoint, Image, Node, Partition, Topic
from headrace.controller.leaders import reconcile
from headrace.controller.plan import Incarnation, View

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
