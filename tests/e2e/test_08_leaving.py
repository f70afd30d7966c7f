"""A user uninstalls, reinstalls, and deletes namespaces: data stays, and nothing hangs."""

from __future__ import annotations

import pytest
from tests.e2e.headrace import VALUES, Load, Release, fails_with, topic
from tests.e2e.kubectl import Namespace, run, wait_for


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

    release.install(VALUES)
    release.wait_ready()
    found = load.check("kept")
    assert not found["missing"], found
    assert found["acked"] > 0


@pytest.mark.timeout(400)
def test_deleting_a_namespace_never_hangs(client: Namespace, release: Release) -> None:
    other = Namespace("headrace-e2e-other")
    run("kubectl", "create", "namespace", other.name)
    small = {
        "brokers": {"replicas": 1, "storage": [{"size": "1Gi"}]},
        "controllers": {"replicas": 1},
        "coordinators": {"replicas": 1},
        "metadata": {"replicas": 1},
        "etcd": {"managed": {"replicas": 1, "storage": {"size": "1Gi"}}},
    }
    cluster = {"apiVersion": "headrace.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": "small"}, "spec": small}
    other.apply(cluster, topic("in-it", "small", replicas=1, deletionPolicy="Delete"), topic("orphan", "nowhere"))
    other.wait_condition("hrt", "in-it", "Ready", seconds=180)
    run("kubectl", "delete", "namespace", other.name, "--wait=false")
    gone = lambda: not run("kubectl", "get", "namespace", other.name, "--ignore-not-found", "-o", "name")  # noqa: E731
    wait_for("the namespace is gone", gone, 180, pause=2)


@pytest.mark.timeout(300)
def test_deleting_a_namespace_without_an_operator_never_hangs(client: Namespace, release: Release) -> None:
    """Nobody would take a finalizer off: a Topic whose Cluster is not there has none."""
    other = Namespace("headrace-e2e-orphans")
    run("kubectl", "create", "namespace", other.name)
    other.apply(topic("one", "nowhere"), topic("two", "nowhere", deletionPolicy="Delete"))
    other.wait_condition("hrt", "one", "Ready", "False", 60)
    client.kubectl("scale", "deployment", f"{release.name}-operator", "--replicas=0")
    client.kubectl("rollout", "status", "deployment", f"{release.name}-operator", "--timeout=60s")
    try:
        run("kubectl", "delete", "namespace", other.name, "--wait=false")
        gone = lambda: not run("kubectl", "get", "namespace", other.name, "--ignore-not-found", "-o", "name")  # noqa: E731
        wait_for("the namespace is gone", gone, 120, pause=2)
    finally:
        client.kubectl("scale", "deployment", f"{release.name}-operator", "--replicas=1")


def test_a_wrong_cluster_is_refused_with_what_is_allowed(client: Namespace, release: Release) -> None:
    for spec, said in (
        ({"brokers": {"replicas": 0}}, "greater than or equal to 1"),
        ({"brokers": {"storage": [{"name": "data", "size": "1Mi"}]}}, "a volume can grow, never shrink"),
        ({"config": {"listeners": "PLAINTEXT://:1"}}, "these settings follow from the rest of the spec"),
    ):
        fails_with(lambda spec=spec: release.change(spec), said)
