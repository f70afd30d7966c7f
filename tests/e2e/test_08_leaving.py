"""A user uninstalls and reinstalls, and deletes Topics while no operator runs: data stays, or goes as it was told."""

from __future__ import annotations

from tests.e2e.headrace import Load, Release, fails_with, topic, values
from tests.e2e.kubectl import Namespace, wait_for


def test_uninstall_and_reinstall_keep_the_data(client: Namespace, release: Release, load: Load) -> None:
    client.apply(topic("kept", release.name))
    client.wait_condition("hrt", "kept", "Ready", seconds=240)
    with load.on("kept"):
        pass
    client.kubectl("delete", "hrt", "--all", "--wait=false")
    release.uninstall()
    wait_for("every pod of the cluster is gone", lambda: not release.pods("broker") and not release.pods("etcd"), 400)
    claims = [c["metadata"]["name"] for c in client.list("pvc", f"app.kubernetes.io/instance={release.name}")]
    assert len(claims) >= 4, claims

    release.install(values())
    release.wait_ready()
    found = load.check("kept")
    assert not found["missing"], found
    assert found["acked"] > 0


def test_data_goes_with_a_topic_that_was_deleted_while_the_operator_was_away(
    client: Namespace, release: Release
) -> None:
    client.apply(topic("away", release.name, deletionPolicy="Delete"), topic("away-kept", release.name))
    client.wait_condition("hrt", "away", "Ready", seconds=240)
    client.wait_condition("hrt", "away-kept", "Ready", seconds=240)
    with release.without_operator():
        client.kubectl("delete", "hrt", "away", "away-kept", "--timeout=110s")
        assert {"away", "away-kept"} <= set(release.topics())
    wait_for("the topic's data is deleted", lambda: "away" not in release.topics(), 240, pause=1)
    assert "away-kept" in release.topics()


def test_a_wrong_cluster_is_refused_with_what_is_allowed(client: Namespace, release: Release) -> None:
    for spec, said in (
        ({"brokers": {"replicas": 0}}, "greater than or equal to 1"),
        ({"brokers": {"storage": [{"name": "data", "size": "1Mi"}]}}, "a volume can grow, never shrink"),
        ({"config": {"listeners": "PLAINTEXT://:1"}}, "these settings follow from the rest of the spec"),
    ):
        fails_with(lambda spec=spec: release.change(spec), said)
