"""What a controller counts."""

from __future__ import annotations

import uuid

from prometheus_client import CollectorRegistry

from headrace.cluster.image import NO_LEADER, Image, Partition, Topic
from headrace.controller.plan import Plan
from headrace.controller.stats import Collector, Stats


def image(*partitions: Partition) -> Image:
    return Image(topics={"orders": Topic("orders", uuid.UUID(int=1), partitions)})


def state(leader: int, isr: tuple[int, ...], elr: tuple[int, ...] = ()) -> Partition:
    return Partition(leader, 0, isr, (0, 1, 2), elr=elr)


def counted(before: Partition, after: Partition) -> tuple[float | None, float | None]:
    stats = Stats()
    stats.carried_out(Plan({("orders", 0): after}), image(before))
    prefix = "kafka_controller_controllerstats"
    names = (f"{prefix}_leaderelections_total", f"{prefix}_uncleanleaderelections_total")
    elections, unclean = (stats.registry.get_sample_value(name) for name in names)
    return elections, unclean


def test_elections_are_changes_of_the_leader() -> None:
    assert counted(state(0, (0, 1, 2)), state(1, (1, 2))) == (1, 0)
    assert counted(state(0, (0, 1, 2)), state(0, (0, 1))) == (0, 0)
    assert counted(state(0, (0,)), state(NO_LEADER, (0,))) == (0, 0)


def test_an_election_is_unclean_when_the_new_leader_was_neither_in_sync_nor_eligible() -> None:
    assert counted(state(NO_LEADER, (0,)), state(2, (2,))) == (1, 1)
    assert counted(state(NO_LEADER, (0,), elr=(2,)), state(2, (2,))) == (1, 0)


def test_a_standby_tells_nothing_but_that_it_stands_by() -> None:
    registry = CollectorRegistry()
    registry.register(Collector(lambda: None, lambda: 0))
    prefix = "kafka_controller_kafkacontroller"
    assert registry.get_sample_value(f"{prefix}_activecontrollercount") == 0
    assert registry.get_sample_value(f"{prefix}_globalpartitioncount") == 0


def test_the_active_one_counts_what_is_offline_and_misplaced() -> None:
    registry = CollectorRegistry()
    registry.register(Collector(lambda: image(state(NO_LEADER, (0,)), state(1, (1, 0)), state(0, (0,))), lambda: 7))
    prefix = "kafka_controller_kafkacontroller"
    wanted = {
        f"{prefix}_activecontrollercount": 1,
        f"{prefix}_globalpartitioncount": 3,
        f"{prefix}_offlinepartitionscount": 1,
        f"{prefix}_preferredreplicaimbalancecount": 1,
        "kafka_controller_controllereventmanager_eventqueuesize": 7,
    }
    assert {name: registry.get_sample_value(name) for name in wanted} == wanted
