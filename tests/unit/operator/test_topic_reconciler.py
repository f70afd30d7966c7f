"""Looks at the Topics of a Cluster, with stand-ins for the API server and for the cluster."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.unit.operator.fakes import FakeAdmin, FakeKube
from tests.unit.operator.pictures import image, partition, topic

from headrace.cluster.image import Image
from headrace.errors import ErrorCode, KafkaError
from headrace_operator.context import Context, Options
from headrace_operator.events import Events
from headrace_operator.ledger import COMPONENT
from headrace_operator.schema import Json
from headrace_operator.store import Store
from headrace_operator.topic_reconciler import TopicReconciler

API = "headrace.dev/v1alpha1"
TOPICS = f"/apis/{API}/namespaces/shop/topics"
ORDERS = topic("orders", partition([0, 1, 2]))


class World:
    """The Cluster demo with some Topics, and one operator that looks at them."""

    def __init__(self, picture: Image | None) -> None:
        self.kube = FakeKube()
        self.admin = FakeAdmin(picture)
        self.store = Store()
        self.put("Cluster", "demo", {})
        context = Context(Options("headrace/services:1"), self.kube, Events(self.kube), self.store)
        self.reconciler = TopicReconciler(context, self.admin, ("shop", "demo"))

    def put(self, kind: str, name: str, spec: Json) -> None:
        about = {
            "name": name,
            "namespace": "shop",
            "uid": f"uid-{name}",
            "resourceVersion": "0",
            "creationTimestamp": "2030-01-01T00:00:00Z",
        }
        body = {"apiVersion": API, "kind": kind, "metadata": about, "spec": spec}
        self.kube.objects[f"/apis/{API}/namespaces/shop/{kind.lower()}s/{name}"] = body
        self.store.put(body)

    def topic(self, name: str, /, **spec: Any) -> None:
        self.put("Topic", name, {"cluster": "demo", **spec})

    def owned(self, uid: str, text: str) -> None:
        """The ledger as an operator before this one wrote it."""
        labels = {"app.kubernetes.io/instance": "demo", "app.kubernetes.io/component": COMPONENT}
        name = f"demo-{COMPONENT}"
        about = {"name": name, "labels": labels, "ownerReferences": [{"uid": "uid-demo"}]}
        self.kube.objects[f"/api/v1/namespaces/shop/configmaps/{name}"] = {"metadata": about, "data": {uid: text}}

    def look(self) -> bool:
        return asyncio.run(self.reconciler.look({}))

    def status(self, name: str) -> Json:
        found: Json = self.kube.objects[f"{TOPICS}/{name}"].get("status", {})
        return found

    def ready(self, name: str) -> tuple[str, str]:
        """Status and reason."""
        condition = next(c for c in self.status(name)["conditions"] if c["type"] == "Ready")
        return condition["status"], condition["reason"]


def test_a_topic_made_again_is_not_taken_for_the_one_that_goes_first() -> None:
    world = World(image(range(3), ORDERS))
    world.topic("orders", partitions=1)
    world.owned("uid-before", "orders orders")
    assert not world.look()
    assert world.admin.deleted == {"orders"}
    assert world.ready("orders") == ("False", "WaitingForDeletion")
    assert "topicId" not in world.status("orders")


def test_what_was_told_of_a_topic_is_not_told_again() -> None:
    world = World(image(range(3), ORDERS))
    world.topic("orders", partitions=1)
    assert world.look()
    assert world.look()
    assert len(world.kube.changed("PATCH", "/status")) == 1


def test_a_topic_that_was_created_is_news() -> None:
    world = World(image(range(3)))
    world.topic("orders", partitions=1)
    world.look()
    world.admin.shown = image(range(3), ORDERS)
    world.look()
    assert world.kube.events == [("Normal", "Created", "the topic orders was created")]


def test_what_a_person_has_to_change_is_news() -> None:
    world = World(image(range(3), ORDERS, topic("few", partition([0, 1]), partition([1, 2]))))
    world.topic("many", replicas=9)
    world.topic("wrong", config={"retention.msec": "1"})
    world.topic("few", partitions=1)
    world.topic("second", name="orders")
    world.topic("orders", partitions=1)
    world.admin.refused = {"refused": KafkaError(ErrorCode.POLICY_VIOLATION, "not this one")}
    world.topic("refused")
    world.look()
    world.look()
    told = {(kind, reason) for kind, reason, _ in world.kube.events}
    reasons = ("NotEnoughBrokers", "InvalidConfig", "PartitionsCannotShrink", "Conflict", "PolicyViolation")
    assert told == {("Warning", reason) for reason in reasons}
    assert len(world.kube.events) == len(told)
