"""A watch that ended without a word is told from a quiet cluster."""

from __future__ import annotations

from headrace_operator.freshness import Freshness

A = ("Topic", "shop", "a")
B = ("Topic", "shop", "b")


def test_a_quiet_cluster_is_fresh() -> None:
    fresh = Freshness(60)
    fresh.told(A, 5)
    for now in range(0, 1000, 20):
        fresh.listed({A: 5}, now)
        assert fresh.stale(now) is None


def test_news_that_does_not_come_within_the_grace_is_stale() -> None:
    fresh = Freshness(60)
    fresh.told(A, 5)
    fresh.listed({A: 5, B: 9}, 0)
    assert fresh.stale(59) is None
    assert fresh.stale(61) == B
    fresh.told(B, 9)
    assert fresh.stale(61) is None


def test_a_resource_that_changes_all_the_time_is_not_stale() -> None:
    fresh = Freshness(60)
    for now in range(0, 1000, 20):
        fresh.listed({A: now + 1}, now)
        assert fresh.stale(now) is None
        fresh.told(A, now + 1)


def test_the_wait_begins_with_the_first_list_that_shows_it() -> None:
    fresh = Freshness(60)
    for now in (0, 20, 40, 60, 80):
        fresh.listed({A: 5 + now}, now)
    assert fresh.stale(80) == A


def test_a_deletion_that_is_not_told_is_stale() -> None:
    fresh = Freshness(60)
    fresh.told(A, 5)
    fresh.listed({}, 0)
    fresh.listed({}, 61)
    assert fresh.stale(61) == A
    fresh.told(A, None)
    assert fresh.stale(61) is None
