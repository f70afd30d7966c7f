"""What the operator counts of the resources there are."""

from __future__ import annotations

from typing import cast

from prometheus_client import REGISTRY

from headrace_operator.context import Context, Options
from headrace_operator.events import Events
from headrace_operator.freshness import Freshness
from headrace_operator.handlers import Workers
from headrace_operator.kube import Kube
from headrace_operator.schema import Json
from headrace_operator.store import Store


def cluster(name: str, spec: Json) -> Json:
    about = {"namespace": "shop", "name": name, "uid": name, "resourceVersion": "1"}
    return {"kind": "Cluster", "metadata": about, "spec": spec}


def test_the_brokers_that_clusters_ask_for_are_told_while_their_pods_can_be_scraped() -> None:
    kube = cast(Kube, None)
    store = Store()
    workers = Workers(Context(Options("image"), kube, Events(kube), store), Freshness(60.0))
    grown, silent = cluster("grown", {"brokers": {"replicas": 5}}), cluster("silent", {"metrics": {"enabled": False}})
    store.put(grown)
    store.put(silent)

    def told(name: str) -> float | None:
        workers.count()
        return REGISTRY.get_sample_value("headrace_operator_brokers", {"namespace": "shop", "cluster": name})

    assert told("grown") == 5
    assert told("silent") is None
    store.drop(grown)
    assert told("grown") is None
