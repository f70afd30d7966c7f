"""Who looks after what the watches tell of."""

from __future__ import annotations

from tests.unit.operator.fakes import FakeKube

from headrace_operator.context import Context, Options
from headrace_operator.events import Events
from headrace_operator.freshness import Freshness
from headrace_operator.handlers import Workers
from headrace_operator.store import Store

DEMO = {
    "kind": "Topic",
    "metadata": {"name": "orders", "namespace": "shop", "uid": "uid-1", "resourceVersion": "1"},
    "spec": {"cluster": "demo"},
}


async def test_an_operator_that_lost_the_lease_begins_nothing_for_news_that_still_comes() -> None:
    kube = FakeKube()
    workers = Workers(Context(Options("headrace/services:1"), kube, Events(kube), Store()), Freshness(60))
    await workers.stop()
    workers.take("Topic", "ADDED", DEMO)
    assert not workers._workers
