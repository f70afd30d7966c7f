"""Looks at a Cluster, with stand-ins for the API server and for the cluster."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.unit.operator.fakes import FakeAdmin, FakeKube
from tests.unit.operator.pictures import image, partition, topic

from headrace.cluster.image import Image
from headrace_operator.cluster_reconciler import ClusterReconciler
from headrace_operator.context import Context, Options
from headrace_operator.events import Events
from headrace_operator.manifests import Cluster, manifests
from headrace_operator.resources import ClusterSpec
from headrace_operator.schema import Json, parse
from headrace_operator.store import Store

APPS = "/apis/apps/v1/namespaces/shop"
CLUSTER = "/apis/headrace.dev/v1alpha1/namespaces/shop/clusters/demo"
SERVICES = "headrace/services:1"


class World:
    """A Cluster that was made from `spec`, and one operator that looks at it."""

    def __init__(self, spec: dict[str, Any], picture: Image, brokers: int = 3) -> None:
        self.kube = FakeKube()
        self.admin = FakeAdmin(picture)
        self.kube.objects[CLUSTER] = {
            "apiVersion": "headrace.dev/v1alpha1",
            "kind": "Cluster",
            "metadata": {"name": "demo", "namespace": "shop", "uid": "uid-1", "generation": 1},
            "spec": spec,
        }
        self.cluster = Cluster("demo", "shop", "uid-1", parse(ClusterSpec, spec), SERVICES, broker_replicas=brokers)
        for manifest in manifests(self.cluster):
            if manifest["kind"] in ("StatefulSet", "Deployment"):
                self.kube.objects[f"{APPS}/{manifest['kind'].lower()}s/{manifest['metadata']['name']}"] = settled(
                    manifest
                )
        for broker in range(brokers):
            self.pod("broker", broker)
        context = Context(Options(SERVICES), self.kube, Events(self.kube), Store())
        self.reconciler = ClusterReconciler(context, self.admin)

    def pod(self, component: str, ordinal: int) -> None:
        name = f"{self.cluster.child(component)}-{ordinal}"
        self.kube.objects[f"/api/v1/namespaces/shop/pods/{name}"] = {
            "metadata": {"name": name, "uid": name, "labels": self.cluster.labels(component)},
            "spec": {"containers": [{"name": component, "image": SERVICES}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }

    def look(self) -> bool:
        return asyncio.run(self.reconciler.look(self.kube.objects[CLUSTER]))

    def annotations(self, pod: str) -> Json:
        found: Json = self.kube.objects[f"/api/v1/namespaces/shop/pods/{pod}"]["metadata"].get("annotations", {})
        return found

    @property
    def evicted(self) -> list[str]:
        return [body["metadata"]["name"] for body in self.kube.changed("POST", "/eviction")]

    @property
    def status(self) -> Json:
        found: Json = self.kube.objects[CLUSTER]["status"]
        return found

    @property
    def broker_replicas(self) -> int:
        return int(self.kube.objects[f"{APPS}/statefulsets/demo-broker"]["spec"]["replicas"])


def settled(manifest: Json) -> Json:
    """With the status of a workload that Kubernetes has carried out."""
    replicas = manifest["spec"]["replicas"]
    counts = dict.fromkeys(("replicas", "readyReplicas", "updatedReplicas"), replicas)
    about = {**manifest["metadata"], "generation": 1}
    return {**manifest, "metadata": about, "status": {"observedGeneration": 1, **counts}}


PLACED = image(range(5), topic("t", partition([3, 4])))


def test_brokers_that_leave_are_drained_first_also_when_their_stateful_set_is_missing() -> None:
    """An operator was killed after it took the StatefulSet away to make it anew, and before it did."""
    world = World({"brokers": {"replicas": 3}}, PLACED, brokers=5)
    del world.kube.objects[f"{APPS}/statefulsets/demo-broker"]
    world.look()
    assert world.broker_replicas == 5
    assert world.admin.moved == {("t", 0): (0, 1)}


def test_a_broker_whose_pod_is_away_too_is_known_from_the_status() -> None:
    world = World({"brokers": {"replicas": 3}}, PLACED, brokers=5)
    world.look()
    del world.kube.objects[f"{APPS}/statefulsets/demo-broker"]
    del world.kube.objects["/api/v1/namespaces/shop/pods/demo-broker-4"]
    world.look()
    assert world.broker_replicas == 5


def test_a_cluster_that_never_ran_gets_what_its_spec_says() -> None:
    world = World({"brokers": {"replicas": 3}}, image([]), brokers=0)
    del world.kube.objects[f"{APPS}/statefulsets/demo-broker"]
    world.look()
    world.kube.objects[CLUSTER]["spec"] = {"brokers": {"replicas": 1}}
    del world.kube.objects[f"{APPS}/statefulsets/demo-broker"]
    world.look()
    assert world.broker_replicas == 1


def test_brokers_and_coordinators_start_again_when_their_outside_address_changes() -> None:
    def spec(host: str) -> dict[str, Any]:
        return {"listeners": {"external": {"type": "NodePort", "advertisedHost": host}}}

    world = World(spec("old.example"), image(range(3)))
    world.pod("coordinator", 0)
    world.look()
    assert world.annotations("demo-broker-1") == {"headrace.dev/external-address": "old.example:30000"}
    world.look()
    assert not world.evicted
    world.kube.objects[CLUSTER]["spec"] = spec("new.example")
    world.look()
    assert world.annotations("demo-broker-1")["headrace.dev/external-address"] == "new.example:30000"
    world.look()
    assert world.evicted == ["demo-coordinator-0", "demo-broker-2"]


def test_the_outside_address_goes_from_the_status_with_its_listener() -> None:
    spec = {"listeners": {"external": {"type": "NodePort", "advertisedHost": "nodes.example"}}}
    world = World(spec, image(range(3)))
    world.look()
    world.look()
    assert world.status["bootstrap"]["external"] == "nodes.example:30000"
    world.kube.objects[CLUSTER]["spec"] = {}
    world.look()
    assert "external" not in world.status["bootstrap"]
    patches = len(world.kube.changed("PATCH", "/status"))
    world.look()
    assert len(world.kube.changed("PATCH", "/status")) == patches, "nothing is left to be told"
