"""A user runs small clusters of other shapes under one operator, and deletes their namespaces: nothing hangs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.e2e import tls_etcd
from tests.e2e.headrace import OPERATOR_NAMESPACE, SMALL_NAMESPACES, Release, topic
from tests.e2e.kubectl import Namespace, Object, condition_of, run, wait_for

LATER = "headrace-e2e-later"
# Kubernetes comes back to a namespace that is being deleted only after half the time that its pods may take to stop.
HASTY: Object = {"template": {"spec": {"terminationGracePeriodSeconds": 10}}}


def small_cluster(brokers: Object, etcd: Object) -> Object:
    ones = {component: {"replicas": 1, **HASTY} for component in ("controllers", "coordinators", "metadata")}
    about = {"apiVersion": "headrace.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": "small"}}
    return {**about, "spec": {**ones, "brokers": {"replicas": 1, **HASTY, **brokers}, "etcd": etcd}}


def said(where: Namespace, condition: str) -> str:
    """The message of a condition of the small cluster, once it has one."""
    entry = condition_of(where.get("hrc", "small"), condition)
    return str(entry["message"]) if entry else ""


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
def operator() -> Release:
    """An operator alone, with no Cluster of its own, that looks after two namespaces and not the one it lives in."""
    names = (OPERATOR_NAMESPACE, *SMALL_NAMESPACES)
    run("kubectl", "delete", "namespace", *names, "--ignore-not-found", "--timeout=240s", seconds=260)
    release = Release(Namespace(OPERATOR_NAMESPACE), "headrace")
    release.install({"operator": {"watchNamespaces": list(SMALL_NAMESPACES)}, "cluster": {"enabled": False}})
    return release


@pytest.fixture(scope="module")
def others(operator: Release, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Namespace]:
    """Two namespaces, each with a small cluster, a topic in it whose data goes with it, and one that waits for ever.

    The first cluster has three etcd members and wants a storage class that is not there. The second has an etcd that
    was there before it and wants TLS, and its failure domains are nodes.
    """
    found = {name: Namespace(name) for name in SMALL_NAMESPACES}
    first, second = found.values()
    for name in found:
        about = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        run("kubectl", "apply", "-f", "-", text=json.dumps(about))
    volume = {"size": "1Gi"}
    three = {"managed": {"replicas": 3, "storage": volume, **HASTY}}
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


def test_an_unknown_storage_class_is_a_condition_that_heals(
    others: dict[str, Namespace], storage_class: Object
) -> None:
    first = others[SMALL_NAMESPACES[0]]
    wait_for(f"the Cluster says that {LATER} is missing", lambda: LATER in said(first, "Degraded"), 240)
    assert first.get("pvc", "data-small-broker-0")["status"]["phase"] == "Pending"
    first.apply(storage_class)
    for other in others.values():
        other.wait_condition("hrc", "small", "Ready", seconds=400)
        other.wait_condition("hrc", "small", "Degraded", "False", seconds=240)
        other.wait_condition("hrt", "in-it", "Ready", seconds=240)
        other.wait_condition("hrt", "orphan", "Ready", "False", seconds=240)


def test_an_etcd_of_ones_own_with_tls_and_brokers_that_know_their_node(others: dict[str, Namespace]) -> None:
    second = others[SMALL_NAMESPACES[1]]
    second.wait_condition("hrc", "small", "Ready", seconds=400)
    (broker,) = second.get("hrc", "small")["status"]["brokers"]
    assert broker["rack"] == second.get("pod", broker["pod"])["spec"]["nodeName"]
    pods = [pod["metadata"]["name"] for pod in second.pods("app.kubernetes.io/component=etcd")]
    assert not pods, "it made an etcd though it was given one"


def test_three_etcd_members_go_on_without_one(others: dict[str, Namespace]) -> None:
    first = others[SMALL_NAMESPACES[0]]
    first.wait_condition("hrc", "small", "Ready", seconds=400)
    members = first.exec("small-etcd-0", "etcdctl", "member", "list").splitlines()
    assert len([member for member in members if "started" in member]) == 3, members
    first.delete("pod", "small-etcd-0", "--wait=false", "--grace-period=1")
    first.apply(topic("without-one", "small", replicas=1, deletionPolicy="Delete"))
    first.wait_condition("hrt", "without-one", "Ready", seconds=240)
    first.wait_condition("pod", "small-etcd-0", "Ready", seconds=240)


def test_volumes_grow_once_their_class_lets_them_and_pods_stay(
    others: dict[str, Namespace], storage_class: Object
) -> None:
    """The volume itself cannot grow on this cluster: what is shown is all that has to be asked for."""
    first = others[SMALL_NAMESPACES[0]]
    first.wait_condition("hrc", "small", "Progressing", "False", seconds=400)
    pod, made = first.get("pod", "small-broker-0")["metadata"]["uid"], first.get("statefulset", "small-broker")
    first.patch(
        "hrc", "small", {"spec": {"brokers": {"storage": [{"name": "data", "size": "2Gi", "storageClass": LATER}]}}}
    )

    stuck = lambda: "data-small-broker-0 cannot grow" in said(first, "Progressing")  # noqa: E731
    wait_for("the Cluster says that its volume cannot grow", stuck, 240)
    run("kubectl", "patch", "storageclass", LATER, "--type=merge", "-p", '{"allowVolumeExpansion": true}')
    size = lambda: first.get("pvc", "data-small-broker-0")["spec"]["resources"]["requests"]["storage"]  # noqa: E731
    wait_for("the claim asks for more", lambda: size() == "2Gi", 240)
    wait_for("the Cluster says so no more", lambda: not stuck(), 240)
    anew = first.get("statefulset", "small-broker")
    assert anew["metadata"]["uid"] != made["metadata"]["uid"]
    assert anew["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] == "2Gi"
    owned = lambda: first.get("pod", "small-broker-0")["metadata"]["ownerReferences"][0]["uid"]  # noqa: E731
    wait_for("the pod is taken over", lambda: owned() == anew["metadata"]["uid"], 240)
    assert first.get("pod", "small-broker-0")["metadata"]["uid"] == pod
    refused = [event["message"] for event in first.list("events") if event["reason"] == "Refused"]
    assert not refused


def delete_namespace(name: str) -> None:
    run("kubectl", "delete", "namespace", name, "--wait=false")
    gone = lambda: not run("kubectl", "get", "namespace", name, "--ignore-not-found", "-o", "name")  # noqa: E731
    wait_for(f"the namespace {name} is gone", gone, 400, pause=1)


def test_deleting_a_namespace_never_hangs(operator: Release, others: dict[str, Namespace]) -> None:
    delete_namespace(SMALL_NAMESPACES[0])


def test_deleting_a_namespace_without_an_operator_never_hangs(operator: Release, others: dict[str, Namespace]) -> None:
    with operator.without_operator():
        delete_namespace(SMALL_NAMESPACES[1])
