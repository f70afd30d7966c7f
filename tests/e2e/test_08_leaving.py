"""A user uninstalls, reinstalls, and deletes namespaces: data stays, and nothing hangs."""

from __future__ import annotations

import pytest
from tests.e2e.headrace import NAMESPACES, Load, Release, fails_with, topic, values
from tests.e2e.kubectl import Namespace, Object, run, wait_for


@pytest.mark.timeout(600)
def test_uninstall_and_reinstall_keep_the_data(client: Namespace, release: Release, load: Load) -> None:
    client.apply(topic("kept", release.name))
    client.wait_condition("hrt", "kept", "Ready", seconds=60)
    with load.on("kept"):
        pass
    client.kubectl("delete", "hrt", "--all", "--wait=false")
    release.uninstall()
    wait_for("every pod of the cluster is gone", lambda: not release.pods("broker") and not release.pods("etcd"), 180)
    claims = [c["metadata"]["name"] for c in client.list("pvc", f"app.kubernetes.io/instance={release.name}")]
    assert len(claims) >= 4, claims

    release.install(values())
    release.wait_ready()
    found = load.check("kept")
    assert not found["missing"], found
    assert found["acked"] > 0


SMALL_CLUSTER: Object = {
    "apiVersion": "headrace.dev/v1alpha1",
    "kind": "Cluster",
    "metadata": {"name": "small"},
    "spec": {
        "brokers": {"replicas": 1, "storage": [{"size": "1Gi"}]},
        "controllers": {"replicas": 1},
        "coordinators": {"replicas": 1},
        "metadata": {"replicas": 1},
        "etcd": {"managed": {"replicas": 1, "storage": {"size": "1Gi"}}},
    },
}


@pytest.fixture(scope="module")
def others(release: Release) -> dict[str, Namespace]:
    """Two namespaces, each with a small cluster, a topic in it whose data goes with it, and one that waits for ever."""
    found = {name: Namespace(name) for name in NAMESPACES[1:]}
    for other in found.values():
        run("kubectl", "create", "namespace", other.name)
        doomed = topic("in-it", "small", replicas=1, deletionPolicy="Delete")
        other.apply(SMALL_CLUSTER, doomed, topic("orphan", "nowhere", deletionPolicy="Delete"))
    for other in found.values():
        other.wait_condition("hrt", "in-it", "Ready", seconds=240)
        other.wait_condition("hrt", "orphan", "Ready", "False", seconds=60)
    return found


def delete_namespace(name: str) -> None:
    run("kubectl", "delete", "namespace", name, "--wait=false")
    gone = lambda: not run("kubectl", "get", "namespace", name, "--ignore-not-found", "-o", "name")  # noqa: E731
    wait_for(f"the namespace {name} is gone", gone, 240, pause=1)


@pytest.mark.timeout(600)
def test_deleting_a_namespace_never_hangs(release: Release, others: dict[str, Namespace]) -> None:
    delete_namespace(NAMESPACES[1])


@pytest.mark.timeout(600)
def test_deleting_a_namespace_without_an_operator_never_hangs(release: Release, others: dict[str, Namespace]) -> None:
    with release.without_operator():
        delete_namespace(NAMESPACES[2])


@pytest.mark.timeout(300)
def test_data_goes_with_a_topic_that_was_deleted_while_the_operator_was_away(
    client: Namespace, release: Release
) -> None:
    client.apply(topic("away", release.name, deletionPolicy="Delete"), topic("away-kept", release.name))
    client.wait_condition("hrt", "away", "Ready", seconds=60)
    client.wait_condition("hrt", "away-kept", "Ready", seconds=60)
    with release.without_operator():
        client.kubectl("delete", "hrt", "away", "away-kept", "--timeout=30s")
        assert {"away", "away-kept"} <= set(release.topics())
    wait_for("the topic's data is deleted", lambda: "away" not in release.topics(), 120, pause=1)
    assert "away-kept" in release.topics()


def test_a_wrong_cluster_is_refused_with_what_is_allowed(client: Namespace, release: Release) -> None:
    for spec, said in (
        ({"brokers": {"replicas": 0}}, "greater than or equal to 1"),
        ({"brokers": {"storage": [{"name": "data", "size": "1Mi"}]}}, "a volume can grow, never shrink"),
        ({"config": {"listeners": "PLAINTEXT://:1"}}, "these settings follow from the rest of the spec"),
    ):
        fails_with(lambda spec=spec: release.change(spec), said)
