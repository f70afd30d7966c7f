"""News about our resources."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.operator.fakes import FakeKube

from headrace_operator import events
from headrace_operator.events import AGAIN_SECONDS, Events
from headrace_operator.schema import Json

DEMO = {"kind": "Cluster", "metadata": {"name": "demo", "namespace": "shop", "uid": "uid-1"}}


class Teller:
    """Events of one operator, on a clock of its own."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.now = 1_000.0
        self.events = Events(self.kube, lambda: self.now)

    def tell(self, message: str, reason: str = "Rolled", body: Json = DEMO) -> None:
        asyncio.run(self.events.tell(body, reason, message))

    @property
    def told(self) -> list[str]:
        return [message for _, _, message in self.kube.events]


def test_an_event_is_about_its_object() -> None:
    teller = Teller()
    teller.tell("every broker runs the newest template")
    (event,) = teller.kube.changed("POST", "/api/v1/namespaces/shop/events")
    assert event["involvedObject"]["uid"] == "uid-1"
    assert (event["type"], event["reason"]) == ("Normal", "Rolled")


def test_the_same_news_is_told_once_and_again_when_it_is_old() -> None:
    teller = Teller()
    for _ in range(3):
        teller.tell("a")
        teller.now += AGAIN_SECONDS / 4
    assert teller.told == ["a"]
    teller.now += AGAIN_SECONDS / 2
    teller.tell("a")
    assert teller.told == ["a", "a"], "the same happened a second time"


def test_other_news_is_told_at_once() -> None:
    teller = Teller()
    teller.tell("a")
    teller.tell("b")
    teller.tell("b", "Restarting")
    assert teller.told == ["a", "b", "b"]


def test_what_was_told_is_not_remembered_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_REMEMBERED", 2)
    teller = Teller()
    for reason in ("A", "B", "C", "A", "C"):
        teller.tell("a", reason)
    assert len(teller.told) == 4
