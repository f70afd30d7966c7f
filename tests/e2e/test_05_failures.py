"""Pods are killed while a user's producers and consumers go on: nothing that was acknowledged is lost."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from tests.e2e.headrace import Load, Release, kill, topic
from tests.e2e.kubectl import Namespace, wait_for


@pytest.fixture
def loaded_topic(client: Namespace, release: Release, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    client.apply(topic(name, release.name, partitions=6, deletionPolicy="Delete"))
    client.wait_condition("hrt", name, "Ready", seconds=240)
    return name


def tell(load: Load, say: Callable[[str], None]) -> None:
    assert load.last is not None
    say(f"{load.last.summary['acked']} acknowledged, the slowest in {load.last.summary['slowest']} s")


@pytest.mark.parametrize("component", ["broker", "controller", "coordinator"])
def test_kill_9_under_load(
    client: Namespace, release: Release, load: Load, loaded_topic: str, component: str, say: Callable[[str], None]
) -> None:
    with load.on(loaded_topic):
        for pod in [p["metadata"]["name"] for p in release.pods(component)]:
            kill(client, pod)
            release.wait_healthy()
    tell(load, say)


def test_restart_etcd_under_load(
    client: Namespace, release: Release, load: Load, loaded_topic: str, say: Callable[[str], None]
) -> None:
    with load.on(loaded_topic):
        name = release.pods("etcd")[0]["metadata"]["name"]
        before = client.get("pod", name)["metadata"]["uid"]
        client.delete("pod", name, "--wait=false")
        wait_for("a new etcd pod", lambda: client.get("pod", name)["metadata"]["uid"] != before, 240)
        client.wait_condition("pod", name, "Ready", seconds=90)
        release.wait_healthy()
    tell(load, say)
