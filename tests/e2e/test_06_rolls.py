"""A user changes settings and the image while producers and consumers go on."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from tests.e2e.headrace import NEXT, Load, Release, is_ready, topic
from tests.e2e.kubectl import Namespace, wait_for


@pytest.fixture
def loaded_topic(client: Namespace, release: Release, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    client.apply(topic(name, release.name, partitions=6, deletionPolicy="Delete"))
    client.wait_condition("hrt", name, "Ready", seconds=240)
    return name


def uids(release: Release, component: str = "broker") -> set[str]:
    return {pod["metadata"]["uid"] for pod in release.pods(component)}


def assert_all_replaced(before: set[str], release: Release, component: str = "broker") -> None:
    assert not before & uids(release, component), f"a {component} pod was not replaced"


def tell(load: Load, say: Callable[[str], None]) -> None:
    assert load.last is not None
    say(f"{load.last.summary['acked']} acknowledged, the slowest in {load.last.summary['slowest']} s")


def test_a_setting_that_brokers_take_live_rolls_nothing(client: Namespace, release: Release) -> None:
    before = uids(release)
    release.change({"config": {"log.retention.ms": "86400000"}})
    release.wait_settled(400)
    assert uids(release) == before


def test_a_setting_that_needs_a_restart_rolls_under_load(
    client: Namespace, release: Release, load: Load, loaded_topic: str, say: Callable[[str], None]
) -> None:
    before = uids(release)
    with load.on(loaded_topic):
        release.change({"config": {"queued.max.requests": "400"}})
        wait_for("the roll begins", lambda: uids(release) != before, 800)
        release.wait_settled(800)
        assert_all_replaced(before, release)
    tell(load, say)


def test_another_image_rolls_under_load(
    client: Namespace, release: Release, load: Load, loaded_topic: str, say: Callable[[str], None]
) -> None:
    image = f"headrace/services:{NEXT}"
    with load.on(loaded_topic):
        release.change({"image": image})

        def upgraded() -> bool:
            parts = ("broker", "controller", "coordinator", "metadata", "etcd")
            pods = [pod for component in parts for pod in release.pods(component)]
            return all(p["spec"]["containers"][0]["image"] == image and is_ready(p) for p in pods)

        wait_for("every pod runs the new image", upgraded, 800, pause=2)
        release.wait_settled(400)
    tell(load, say)


def test_the_operator_is_killed_in_the_middle_of_a_roll(
    client: Namespace, release: Release, load: Load, loaded_topic: str, say: Callable[[str], None]
) -> None:
    """There are two of them: the other one goes on where it stopped."""
    before = uids(release)
    client.kubectl("scale", "deployment", f"{release.name}-operator", "--replicas=2")
    wait_for("two operators", lambda: len(release.operators()) == 2, 240)
    with load.on(loaded_topic):
        release.change({"config": {"queued.max.requests": "300"}})
        wait_for("the first broker is rolled", lambda: uids(release) != before, 800)
        works = release.working_operator()
        (waits,) = release.operators() - {works}
        client.delete("pod", works, "--grace-period=0", "--force")
        wait_for("every broker is rolled", lambda: not before & uids(release), 800, pause=1)
        assert release.working_operator() == waits
        release.wait_settled(400)
    tell(load, say)
