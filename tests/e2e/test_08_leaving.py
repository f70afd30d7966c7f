"""A user uninstalls, reinstalls, and deletes namespaces: data stays, and nothing hangs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.e2e import tls_etcd
from tests.e2e.headrace import NAMESPACES, Load, Release, fails_with, topic, values
from tests.e2e.kubectl import Namespace, Object, condition_of, run, wait_for


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


LATER = "headrace-e2e-later"


def small_cluster(brokers: Object, etcd: Object) -> Object:
    ones = {component: {"replicas": 1} for component in ("controllers", "coordinators", "metadata")}
    about = {"apiVersion": "headrace.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": "small"}}
    return {**about, "spec": {**ones, "brokers": {"replicas": 1, **brokers}, "etcd": etcd}}


@pytest.fixture(scope="module")
def storage_class() -> Iterator[Object]:
    """The cluster's default storage class under another name, for a test to create; gone at the end."""
    classes = json.loads(run("kubectl", "get", "storageclasses", "-o", "json"))["items"]
    mark = "storageclass.kubernetes.io/is-default-class"
    default = next(c for c in classes if c["metadata"].get("annotations", {}).get(mark) == "true")
    kept = {key: default[key] for key in ("provisioner", "parameters", "volumeBindingMode") if key in default}
    yield {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": LATER}, **kept}
    run("kubectl", "delete", "storageclass", LATER, "--ignore-not-found")


@pytest.fixture(scope="module")
def others(release: Release, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Namespace]:
    """Two namespaces, each with a small cluster, a topic in it whose data goes with it, and one that waits for ever.

    The first cluster has three etcd members and wants a storage class that is not there. The second has an etcd that
    was there before it and wants TLS, and its failure domains are nodes.
    """
    found = {name: Namespace(name) for name in NAMESPACES[1:]}
    first, second = found.values()
    for name in found:
        about = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        run("kubectl", "apply", "-f", "-", text=json.dumps(about))
    volume = {"size": "1Gi"}
    three = {"managed": {"replicas": 3, "storage": volume}}
    first.apply(small_cluster({"storage": [{"name": "data", **volume, "storageClass": LATER}]}, three))
    host = f"etcd.{second.name}.svc"
    external = {"endpoints": [f"{host}:2379"], "tls": {"secretName": tls_etcd.CLIENT_SECRET}}
    second.apply(
        *tls_etcd.objects(tmp_path_factory.mktemp("tls"), host),
        small_cluster({"storage": [volume], "rackTopologyKey": "kubernetes.io/hostname"}, {"external": external}),
    )
    for other in found.values():
        doomed = topic("in-it", "small", replicas=1, deletionPolicy="Delete")
        other.apply(doomed, topic("orphan", "nowhere", deletionPolicy="Delete"))
    return found


@pytest.mark.timeout(600)
def test_an_unknown_storage_class_is_a_condition_that_heals(
    others: dict[str, Namespace], storage_class: Object
) -> None:
    first = others[NAMESPACES[1]]
    told = lambda: LATER in condition_of(first.get("hrc", "small"), "Degraded")["message"]  # noqa: E731
    wait_for(f"the Cluster says that {LATER} is missing", told, 120)
    assert first.get("pvc", "data-small-broker-0")["status"]["phase"] == "Pending"
    first.apply(storage_class)
    for other in others.values():
        other.wait_condition("hrc", "small", "Ready", seconds=240)
        other.wait_condition("hrc", "small", "Degraded", "False", seconds=60)
        other.wait_condition("hrt", "in-it", "Ready", seconds=60)
        other.wait_condition("hrt", "orphan", "Ready", "False", seconds=60)


def test_an_etcd_of_ones_own_with_tls_and_brokers_that_know_their_node(others: dict[str, Namespace]) -> None:
    second = others[NAMESPACES[2]]
    second.wait_condition("hrc", "small", "Ready", seconds=240)
    (broker,) = second.get("hrc", "small")["status"]["brokers"]
    assert broker["rack"] == second.get("pod", broker["pod"])["spec"]["nodeName"]
    pods = [pod["metadata"]["name"] for pod in second.list("pods", "app.kubernetes.io/component=etcd")]
    assert not pods, "it made an etcd though it was given one"


def test_three_etcd_members_go_on_without_one(others: dict[str, Namespace]) -> None:
    first = others[NAMESPACES[1]]
    first.wait_condition("hrc", "small", "Ready", seconds=240)
    members = first.exec("small-etcd-0", "etcdctl", "member", "list").splitlines()
    assert len([member for member in members if "started" in member]) == 3, members
    first.delete("pod", "small-etcd-0", "--wait=false", "--grace-period=1")
    first.apply(topic("without-one", "small", replicas=1, deletionPolicy="Delete"))
    first.wait_condition("hrt", "without-one", "Ready", seconds=60)
    first.wait_condition("pod", "small-etcd-0", "Ready", seconds=120)


def test_volumes_grow_once_their_class_lets_them_and_pods_stay(
    others: dict[str, Namespace], storage_class: Object
) -> None:
    """The volume itself cannot grow on this cluster: what is shown is all that has to be asked for."""
    first = others[NAMESPACES[1]]
    first.wait_condition("hrc", "small", "Progressing", "False", seconds=240)
    pod, made = first.get("pod", "small-broker-0")["metadata"]["uid"], first.get("statefulset", "small-broker")
    first.patch(
        "hrc", "small", {"spec": {"brokers": {"storage": [{"name": "data", "size": "2Gi", "storageClass": LATER}]}}}
    )

    def said() -> str:
        return str(condition_of(first.get("hrc", "small"), "Progressing")["message"])

    wait_for("the Cluster says that its volume cannot grow", lambda: "data-small-broker-0 cannot grow" in said(), 60)
    run("kubectl", "patch", "storageclass", LATER, "--type=merge", "-p", '{"allowVolumeExpansion": true}')
    size = lambda: first.get("pvc", "data-small-broker-0")["spec"]["resources"]["requests"]["storage"]  # noqa: E731
    wait_for("the claim asks for more", lambda: size() == "2Gi", 60)
    wait_for("the Cluster says so no more", lambda: "cannot grow" not in said(), 60)
    anew = first.get("statefulset", "small-broker")
    assert anew["metadata"]["uid"] != made["metadata"]["uid"]
    assert anew["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] == "2Gi"
    owned = lambda: first.get("pod", "small-broker-0")["metadata"]["ownerReferences"][0]["uid"]  # noqa: E731
    wait_for("the pod is taken over", lambda: owned() == anew["metadata"]["uid"], 30)
    assert first.get("pod", "small-broker-0")["metadata"]["uid"] == pod
    refused = [event["message"] for event in first.list("events") if event["reason"] == "Refused"]
    assert not refused


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
