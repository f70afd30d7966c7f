"""Only the holder of the Lease works: in virtual time, with an API server that refuses or leaves without answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.sim.loop import SimLoop
from tests.unit.operator.fakes import FakeKube

from headrace_operator.kube import KubeError
from headrace_operator.lease import Lease, LeaseLost
from headrace_operator.main import _first
from headrace_operator.schema import Json

WHERE = "/apis/coordination.k8s.io/v1/namespaces/system/leases/headrace"
SECONDS = 15


class Moody(FakeKube):
    """An API server that answers, refuses, or hangs."""

    mood = "answers"

    async def call(self, method: str, where: str, body: Json | None = None, **more: Any) -> Json:
        if self.mood == "hangs":
            await asyncio.sleep(30)
        if self.mood != "answers":
            raise KubeError(0, "the API server does not answer")
        return await super().call(method, where, body, **more)


class Trial:
    """Operators that want the same Lease, on one virtual clock."""

    def __init__(self) -> None:
        self.loop = SimLoop()
        self.ended: dict[str, tuple[float, BaseException | None]] = {}
        self.held: list[str] = []

    def start(self, name: str, kube: FakeKube) -> Lease:
        lease = Lease(kube, "headrace", name, SECONDS)

        async def operate() -> None:
            await lease.acquire()
            self.held.append(name)
            await lease.keep()

        def ended(task: asyncio.Task[Any]) -> None:
            self.ended[name] = (self.loop.time(), task.exception())

        self.loop.create_task(operate()).add_done_callback(ended)
        return lease

    def run(self, seconds: float) -> None:
        self.loop.run(self.loop.time() + seconds)


def test_a_lease_is_kept_for_ever_and_outlives_a_hiccup() -> None:
    trial, kube = Trial(), Moody()
    trial.start("one", kube)
    trial.run(100)
    for mood in ("refuses", "hangs"):
        kube.mood = mood
        trial.run(4)
        kube.mood = "answers"
        trial.run(100)
    assert (trial.held, trial.ended) == (["one"], {})


@pytest.mark.parametrize("mood", ["refuses", "hangs"])
def test_an_operator_that_cannot_renew_stops_before_the_next_one_works(mood: str) -> None:
    trial, kube, other = Trial(), Moody(), Moody()
    trial.start("one", kube)
    trial.run(1)
    # "two" reaches the same objects another way.
    other.objects = kube.objects
    trial.start("two", other)
    trial.run(60)
    assert trial.held == ["one"]
    kube.mood = mood
    cut = trial.loop.time()
    while trial.held == ["one"] and trial.loop.time() < cut + 300:
        trial.run(0.5)
    assert trial.held == ["one", "two"]
    lost, why = trial.ended["one"]
    assert isinstance(why, LeaseLost)
    assert lost < cut + SECONDS * 2 / 3 + 0.1
    assert lost < trial.loop.time() - 1, "the second one began well after the first had stopped"


def test_an_operator_whose_lease_was_taken_stops() -> None:
    trial, kube = Trial(), Moody()
    trial.start("one", kube)
    trial.run(1)
    kube.objects[WHERE]["spec"] |= {"holderIdentity": "two", "renewTime": "later"}
    trial.run(SECONDS / 3 + 1)
    assert "another operator took" in str(trial.ended["one"][1])


def test_an_operator_that_failed_to_get_the_lease_does_not_go_on_without() -> None:
    async def fails() -> None:
        raise RuntimeError("no Lease")

    with pytest.raises(RuntimeError, match="no Lease"):
        asyncio.run(_first(asyncio.Event(), fails()))
