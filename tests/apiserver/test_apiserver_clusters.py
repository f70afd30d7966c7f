"""What the operator does with claims and pods of a Cluster on a real API server; tests stand in for controllers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.apiserver.operator import Operator, cluster, condition, eventually, found, get, namespace
from tests.apiserver.server import ApiServer
from tests.integration.cluster import Cluster

from headrace_operator.crds import topic_crd

MERGE = "application/merge-patch+json"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
LABELS = {
    "app.kubernetes.io/name": "headrace",
    "app.kubernetes.io/instance": "demo",
    "app.kubernetes.io/component": "broker",
    "app.kubernetes.io/managed-by": "headrace-operator",
}


@pytest.fixture
def place(api: ApiServer) -> str:
    """A namespace of its own."""
    name = f"place-{uuid.uuid4().hex[:8]}"
    namespace(api, name)
    return name


@pytest.fixture
def storage_class(api: ApiServer, place: str) -> Iterator[str]:
    """One whose volumes cannot grow."""
    body = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": place}}
    api.call("POST", CLASSES, {**body, "provisioner": "example.org/none", "allowVolumeExpansion": False})
    yield place
    api.call("DELETE", f"{CLASSES}/{place}")


def claim(api: ApiServer, place: str, name: str, size: str, storage_class: str) -> str:
    """A claim as the controllers would have made and bound it; where it is."""
    where = f"/api/v1/namespaces/{place}/persistentvolumeclaims"
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}},
        "storageClassName": storage_class,
        "volumeName": f"pv-{place}",
    }
    about = {"name": name, "labels": LABELS}
    api.call("POST", where, {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": about, "spec": spec})
    bound = {"status": {"phase": "Bound", "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"]}}
    api.call("PATCH", f"{where}/{name}/status", bound, MERGE)
    return f"{where}/{name}"


def orphan(api: ApiServer, where: str) -> Callable[[], bool]:
    """What the garbage collector does for an object that was deleted without what it owns."""

    def done() -> bool:
        body = found(api, where)
        if body is None or "orphan" not in body["metadata"].get("finalizers", []):
            return False
        api.call("PATCH", where, {"metadata": {"finalizers": []}}, MERGE)
        return True

    return done


def test_volumes_grow_where_their_class_lets_them_and_pods_stay(
    api: ApiServer, operator: Operator, brokers: Cluster, place: str, storage_class: str
) -> None:
    def storage(size: str) -> dict[str, Any]:
        return {"storage": [{"name": "data", "size": size, "storageClass": storage_class}]}

    cluster(api, place, brokers={"replicas": 1, **storage("1Gi")})
    where = f"/apis/apps/v1/namespaces/{place}/statefulsets/demo-broker"
    first = eventually("the brokers' StatefulSet is there", lambda: found(api, where))["metadata"]["uid"]
    volume = claim(api, place, "data-demo-broker-0", "1Gi", storage_class)
    other = claim(api, place, "data-other-broker-0", "1Gi", storage_class)
    clusters = f"/apis/headrace.dev/v1alpha1/namespaces/{place}/clusters/demo"
    api.call("PATCH", clusters, {"spec": {"brokers": storage("2Gi")}}, MERGE)

    eventually("the StatefulSet goes without its pods", orphan(api, where))
    anew = eventually("it is made anew", lambda: found(api, where))
    assert anew["metadata"]["uid"] != first
    (template,) = anew["spec"]["volumeClaimTemplates"]
    assert template["spec"]["resources"]["requests"]["storage"] == "2Gi"

    def said() -> dict[str, Any]:
        return condition(get(api, place, "clusters", "demo"), "Progressing")

    eventually("it says what stands in the way", lambda: said().get("reason") == "VolumeCannotGrow")
    assert "data-demo-broker-0 cannot grow to 2Gi" in said()["message"]
    assert "storageclass" in said()["message"]
    api.call("PATCH", f"{CLASSES}/{storage_class}", {"allowVolumeExpansion": True}, MERGE)
    asked = lambda at: api.call("GET", at)["spec"]["resources"]["requests"]["storage"]  # noqa: E731
    eventually("the claim grows by itself once it may", lambda: asked(volume) == "2Gi")
    eventually("it says so no more", lambda: said()["reason"] != "VolumeCannotGrow")
    assert asked(other) == "1Gi", "a claim of something else is left alone"

    # Somebody else grew it further: that stays.
    api.call("PATCH", volume, {"spec": {"resources": {"requests": {"storage": "3Gi"}}}}, MERGE)
    api.call("PATCH", clusters, {"spec": {"brokers": storage("2500Mi")}}, MERGE)
    eventually("the StatefulSet goes once more", orphan(api, where))
    eventually("it is made anew once more", lambda: found(api, where))
    assert asked(volume) == "3Gi"
    events = api.call("GET", f"/api/v1/namespaces/{place}/events")["items"]
    assert not [e["message"] for e in events if e["reason"] == "Refused"]


def test_claims_go_with_a_cluster_that_says_so(
    api: ApiServer, operator: Operator, brokers: Cluster, place: str
) -> None:
    cluster(api, place, brokers={"claimRetention": {"whenDeleted": "Delete"}})
    cluster(api, place, "kept")

    def retention(component: str) -> dict[str, str]:
        where = f"/apis/apps/v1/namespaces/{place}/statefulsets/{component}"
        body = eventually(f"{component} is there", lambda: found(api, where))
        retained: dict[str, str] = body["spec"]["persistentVolumeClaimRetentionPolicy"]
        return retained

    assert retention("demo-broker") == {"whenDeleted": "Delete", "whenScaled": "Retain"}
    assert retention("demo-etcd") == {"whenDeleted": "Delete", "whenScaled": "Retain"}
    assert retention("kept-broker") == {"whenDeleted": "Retain", "whenScaled": "Retain"}


def test_older_definitions_are_brought_up_to_date(api: ApiServer, operator: Operator) -> None:
    """As after `helm upgrade`, which leaves definitions alone."""
    where = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/topics.headrace.dev"

    def held() -> tuple[list[str], set[str]]:
        (version,) = api.call("GET", where)["spec"]["versions"]
        columns = [column["name"] for column in version["additionalPrinterColumns"]]
        return columns, set(version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])

    operator.kill()
    (newest,) = topic_crd()["spec"]["versions"]
    fields = newest["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"].keys()
    older = api.call("GET", where)
    (version,) = older["spec"]["versions"]
    version["additionalPrinterColumns"] = [c for c in version["additionalPrinterColumns"] if c["name"] != "Size"]
    known = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    del known["deletionPolicy"]
    known["colour"] = {"type": "string"}
    api.call("PUT", where, older)
    assert "Size" not in held()[0]
    assert held()[1] == (fields - {"deletionPolicy"}) | {"colour"}
    operator.start()
    wanted = [column["name"] for column in newest["additionalPrinterColumns"]]
    eventually("the definition is this version's", lambda: held() == (wanted, set(fields)))


def test_brokers_are_told_the_failure_domain_of_their_node(
    api: ApiServer, operator: Operator, brokers: Cluster, place: str
) -> None:
    zone = "topology.kubernetes.io/zone"
    nodes = {f"{place}-a": {zone: "west"}, f"{place}-b": {}}
    pods = f"/api/v1/namespaces/{place}/pods"
    for ordinal, (node, labels) in enumerate(nodes.items()):
        about = {"name": node, "labels": labels}
        api.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": about})
        spec = {"nodeName": node, "containers": [{"name": "broker", "image": "none"}]}
        about = {"name": f"demo-broker-{ordinal}", "labels": LABELS}
        api.call("POST", pods, {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec})
    cluster(api, place, brokers={"replicas": 2, "rackTopologyKey": zone})

    def rack(ordinal: int) -> str | None:
        annotations = api.call("GET", f"{pods}/demo-broker-{ordinal}")["metadata"].get("annotations", {})
        return annotations.get("headrace.dev/rack")

    eventually("the first knows its zone", lambda: rack(0) == "west")
    eventually("the second knows that its node has none", lambda: rack(1) == "unknown")
