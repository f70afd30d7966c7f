"""A user scales brokers up and down with kubectl while data flows."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.e2e.headrace import Load, Release, topic
from tests.e2e.kubectl import Namespace, wait_for


def test_scale_three_to_five_to_three_under_load(
    client: Namespace, release: Release, load: Load, say: Callable[[str], None]
) -> None:
    client.apply(topic("elastic", release.name, partitions=12, deletionPolicy="Delete"))
    client.apply(topic("wide", release.name, replicas=4, deletionPolicy="Delete"))
    client.wait_condition("hrt", "elastic", "Ready", seconds=240)
    client.wait_condition("hrt", "wide", "Ready", "False", seconds=240)
    with load.on("elastic"):
        client.kubectl("scale", "hrc", release.name, "--replicas=5")
        wait_for("five brokers", lambda: len(release.cluster()["status"]["brokers"]) == 5, 400)

        def spread() -> bool:
            brokers = {b["id"]: b for b in release.cluster()["status"]["brokers"]}
            return all(brokers[new]["replicas"] > 0 for new in (3, 4))

        wait_for("the new brokers hold replicas", spread, 400, pause=2)
        release.wait_settled(400)
        # What could not be had with three brokers is there by itself now, and would keep the fourth from leaving.
        client.wait_condition("hrt", "wide", "Ready", seconds=240)
        client.delete("hrt", "wide")
        client.kubectl("scale", "hrc", release.name, "--replicas=3")
        wait_for("three broker pods", lambda: len(release.pods("broker")) == 3, 800, pause=2)
        release.wait_settled(400)
    assert load.last is not None
    say(f"{load.last.summary['acked']} acknowledged, the slowest in {load.last.summary['slowest']} s")
    (described,) = json.loads(release.headrace("topics", "describe", "elastic", "-o", "json"))
    assert {r for partition in described["partitions"] for r in partition["replicas"]} == {0, 1, 2}
