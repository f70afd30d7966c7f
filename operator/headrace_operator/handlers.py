"""kopf's part: it follows the resources and hands what it sees to the workers. Nothing is decided here."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import kopf

from headrace_operator.conditions import READY, is_true
from headrace_operator.context import Context
from headrace_operator.freshness import Freshness
from headrace_operator.metrics import BROKERS, RESOURCES
from headrace_operator.resources import GROUP, PREFIX, RESTART_ANNOTATION, VERSION, ClusterSpec
from headrace_operator.schema import Json, parse
from headrace_operator.store import Name
from headrace_operator.worker import Worker

log = logging.getLogger(__name__)


class Workers:
    """A worker for each Cluster that is there or that a Topic waits for."""

    def __init__(self, context: Context, freshness: Freshness) -> None:
        self._context = context
        self._freshness = freshness
        self._workers: dict[Name, Worker] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._counted: set[Name] = set()
        self._stopped = False

    def take(self, kind: str, event: str | None, body: Json) -> None:
        """News from a watch."""
        about = body["metadata"]
        key = (kind, about["namespace"], about["name"])
        store = self._context.store
        if event == "DELETED":
            self._freshness.told(key, None)
            name: Name | None = store.drop(body)
            matters = True
        else:
            self._freshness.told(key, int(about["resourceVersion"]))
            before = _held(self._context, kind, body)
            name = store.put(body)
            matters = before is None or _essence(before) != _essence(body)
        if name is None or not matters or self._stopped:
            return
        if not store.known(name):
            self._end(name)
            return
        worker = self._workers.get(name)
        if worker is None:
            self._workers[name] = Worker(self._context, name)
        elif kind == "Cluster":
            worker.wake_all()
        else:
            worker.wake(kind)

    def _end(self, name: Name) -> None:
        worker = self._workers.pop(name, None)
        if worker is not None:
            task = asyncio.create_task(worker.stop())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    @property
    def failure(self) -> BaseException | None:
        return next((w.failure for w in self._workers.values() if w.failure is not None), None)

    def count(self) -> None:
        """Brings the gauges of resources up to date."""
        store = self._context.store
        kinds = {"Cluster": list(store.clusters.values())}
        kinds["Topic"] = [body for held in store.topics.values() for body in held.values()]
        for kind, bodies in kinds.items():
            ready = sum(is_true(body.get("status", {}).get("conditions", []), READY) for body in bodies)
            RESOURCES.labels(kind, "true").set(ready)
            RESOURCES.labels(kind, "false").set(len(bodies) - ready)
        specs = {name: parse(ClusterSpec, body["spec"]) for name, body in store.clusters.items()}
        asked = {name: spec.brokers.replicas for name, spec in specs.items() if spec.metrics.enabled}
        for name in self._counted - asked.keys():
            BROKERS.remove(*name)
        for name, brokers in asked.items():
            BROKERS.labels(*name).set(brokers)
        self._counted = set(asked)

    async def stop(self) -> None:
        """Ends all work; news that the watches still tell begins none."""
        self._stopped = True
        await asyncio.gather(*(worker.stop() for worker in self._workers.values()), *self._ending)
        self._workers.clear()


def _held(context: Context, kind: str, body: Json) -> Json | None:
    about = body["metadata"]
    if kind == "Cluster":
        return context.store.clusters.get((about["namespace"], about["name"]))
    return context.store.topics.get((about["namespace"], body["spec"]["cluster"]), {}).get(about["name"])


def _essence(body: Json) -> tuple[Any, ...]:
    """What a look depends on; a changed status is not news, for it was us who wrote it."""
    about = body["metadata"]
    return (
        about["uid"],
        about.get("generation"),
        "deletionTimestamp" in about,
        about.get("annotations", {}).get(RESTART_ANNOTATION),
    )


def registry(workers: Workers) -> kopf.OperatorRegistry:
    """kopf's handlers."""
    found = kopf.OperatorRegistry()

    @kopf.on.startup(registry=found)
    def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        # Watches are opened anew every few minutes; one that hangs is noticed by then, or by the freshness check.
        settings.watching.server_timeout = 240
        settings.watching.client_timeout = 270
        settings.watching.connect_timeout = 15
        settings.scanning.disabled = True
        settings.posting.enabled = False
        # Nothing is held back by a finalizer; kopf takes its own off whatever none of its handlers needs it for.
        settings.persistence.finalizer = f"{PREFIX}/kopf"
        settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=PREFIX)
        settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=PREFIX)

    @kopf.on.login(registry=found)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.event(GROUP, VERSION, "clusters", registry=found)
    async def cluster(event: kopf.RawEvent, **_: Any) -> None:
        workers.take("Cluster", event["type"], dict(event["object"]))

    @kopf.on.event(GROUP, VERSION, "topics", registry=found)
    async def topic(event: kopf.RawEvent, **_: Any) -> None:
        workers.take("Topic", event["type"], dict(event["object"]))

    return found
