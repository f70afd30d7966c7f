"""The resources as the watches tell."""

from __future__ import annotations

from headrace_operator.schema import Json
from headrace_operator.store import Store


def topic(uid: str, version: int) -> Json:
    about = {"namespace": "ns", "name": "orders", "uid": uid, "resourceVersion": str(version)}
    return {"kind": "Topic", "metadata": about, "spec": {"cluster": "demo"}}


def test_the_newest_of_a_resource_stays() -> None:
    store = Store()
    assert store.put(topic("1", 5)) == ("ns", "demo")
    assert store.put(topic("1", 4)) is None
    assert store.version("Topic", ("ns", "orders")) == 5


def test_an_answer_that_comes_after_the_end_of_its_object_brings_nothing_back() -> None:
    store = Store()
    store.put(topic("1", 5))
    store.drop(topic("1", 7))
    assert store.put(topic("1", 6)) is None
    assert not store.known(("ns", "demo"))
    assert store.put(topic("2", 8)) == ("ns", "demo")
