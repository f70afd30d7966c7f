"""What is written down where, before a topic is made that goes with its Topic."""

from __future__ import annotations

import pytest

from headrace_operator import ledger
from headrace_operator.ledger import Owned, Pages, changes

A, B = Owned("a", "orders"), Owned("b", "payments")


def test_the_first_entry_makes_the_first_page() -> None:
    assert changes({}, "demo-owned-topics", {"1": A}, ()) == {"demo-owned-topics": {"1": "a orders"}}


def test_what_is_added_and_what_goes_is_one_change_of_a_page() -> None:
    pages: Pages = {"demo": {"1": A.text()}}
    assert changes(pages, "demo", {"2": B}, {"1"}) == {"demo": {"1": None, "2": "b payments"}}


def test_what_is_not_there_is_not_taken_out() -> None:
    assert changes({"demo": {"1": A.text()}}, "demo", {}, {"7"}) == {}


def test_a_full_page_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "PAGE_BYTES", 20)
    assert changes({}, "demo", {"1": A, "2": A, "3": A}, ()) == {
        "demo": {"1": "a orders", "2": "a orders"},
        "demo-1": {"3": "a orders"},
    }
    full: Pages = {"demo": {"1": A.text(), "2": A.text()}}
    assert changes(full, "demo", {"3": A}, ()) == {"demo-1": {"3": "a orders"}}
