"""What is asked of the API server for manifests."""

from __future__ import annotations

import asyncio

from tests.unit.operator.fakes import FakeKube

from headrace_operator.applying import Applier
from headrace_operator.manifests import Cluster, manifests
from headrace_operator.observed import Observed, workload
from headrace_operator.resources import ClusterSpec
from headrace_operator.schema import Json, parse

SETS = "/apis/apps/v1/namespaces/shop/statefulsets/demo-broker"


def brokers(size: str) -> Json:
    spec = parse(ClusterSpec, {"brokers": {"storage": [{"name": "data", "size": size}]}})
    cluster = Cluster("demo", "shop", "uid-1", spec, "headrace/services:1")
    return next(m for m in manifests(cluster) if m["metadata"]["name"] == "demo-broker" and m["kind"] == "StatefulSet")


def applied(wanted: str, there: str) -> FakeKube:
    """After the brokers' StatefulSet was applied to an API server that has one with volumes of this size."""
    kube = FakeKube()
    kube.objects[SETS] = brokers(there)
    seen = Observed(workloads={"broker": workload(brokers(there), "broker")})
    asyncio.run(Applier(kube).apply([brokers(wanted)], seen))
    return kube


def test_a_stateful_set_is_made_anew_for_volumes_of_another_size() -> None:
    assert applied("2Ti", "1Ti").changed("DELETE", "demo-broker")[0]["propagationPolicy"] == "Orphan"


def test_a_stateful_set_stays_when_only_the_spelling_of_a_size_differs() -> None:
    """The API server writes 1024Gi as 1Ti; it was made anew at every look."""
    kube = applied("1024Gi", "1Ti")
    assert not kube.changed("DELETE")
    assert len(kube.changed("PATCH")) == 1
