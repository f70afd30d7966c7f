"""Assignors: everyone's share is complete, allowed, even and sticky."""

from __future__ import annotations

import random
import uuid

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinator.assignors import MemberSpec, range_assignor, uniform_assignor

_TOPICS = [uuid.UUID(int=n) for n in range(1, 5)]


def _group(seed: int) -> tuple[dict[str, MemberSpec], dict[uuid.UUID, int]]:
    """A random group: members that want the same topics or different ones, and had whatever before."""
    chance = random.Random(seed)
    topics = {t: chance.randrange(8) for t in _TOPICS}
    same = chance.random() < 0.5
    shared = frozenset(chance.sample(_TOPICS, chance.randint(1, 4)))
    members = {}
    for n in range(chance.randint(1, 6)):
        wants = shared if same else frozenset(chance.sample(_TOPICS, chance.randint(0, 4)))
        had = frozenset((chance.choice(_TOPICS), chance.randrange(9)) for _ in range(chance.randrange(9)))
        members[f"m{n}"] = MemberSpec(wants, had, chance.choice([None, f"i{n}"]))
    return members, topics


def _check_complete(members: dict[str, MemberSpec], topics: dict[uuid.UUID, int], shares: dict) -> None:
    given_out = [p for share in shares.values() for p in share]
    wanted = {t for spec in members.values() for t in spec.topics}
    assert shares.keys() == members.keys()
    assert sorted(given_out) == sorted((t, i) for t in wanted for i in range(topics[t]))
    for member_id, share in shares.items():
        assert all(t in members[member_id].topics for t, _ in share)


@settings(max_examples=200)
@given(st.integers(0, 2**32))
def test_every_partition_goes_to_one_subscriber(seed: int) -> None:
    members, topics = _group(seed)
    for assignor in (range_assignor, uniform_assignor):
        _check_complete(members, topics, assignor(members, topics))


@settings(max_examples=200)
@given(st.integers(0, 2**32))
def test_uniform_is_even(seed: int) -> None:
    members, topics = _group(seed)
    shares = uniform_assignor(members, topics)
    load = {m: len(share) for m, share in shares.items()}
    for member_id, share in shares.items():
        for topic_id, _ in share:
            eligible = [m for m in members if topic_id in members[m].topics]
            assert load[member_id] - min(load[m] for m in eligible) <= 1


@settings(max_examples=200)
@given(st.integers(0, 2**32))
def test_uniform_keeps_a_share_that_is_right_already(seed: int) -> None:
    members, topics = _group(seed)
    first = uniform_assignor(members, topics)
    again = {m: MemberSpec(spec.topics, first[m], spec.instance_id) for m, spec in members.items()}
    assert uniform_assignor(again, topics) == first


@settings(max_examples=100)
@given(st.integers(1, 8), st.integers(0, 30))
def test_uniform_moves_as_little_as_possible_when_a_member_comes(count: int, partitions: int) -> None:
    topic = _TOPICS[0]
    wants = frozenset([topic])
    before = uniform_assignor({f"m{n}": MemberSpec(wants) for n in range(count)}, {topic: partitions})
    members = {m: MemberSpec(wants, share) for m, share in before.items()} | {"new": MemberSpec(wants)}
    after = uniform_assignor(members, {topic: partitions})
    assert len(after["new"]) == partitions // (count + 1)
    for member_id, share in before.items():
        assert after[member_id] <= share


def test_range_gives_the_same_numbers_of_equal_topics_to_the_same_member() -> None:
    left, right = _TOPICS[:2]
    wants = frozenset([left, right])
    shares = range_assignor({m: MemberSpec(wants) for m in "cab"}, {left: 7, right: 7})
    assert {m: sorted(i for t, i in share if t == left) for m, share in shares.items()} == {
        "a": [0, 1, 2],
        "b": [3, 4],
        "c": [5, 6],
    }
    for share in shares.values():
        assert {i for t, i in share if t == left} == {i for t, i in share if t == right}
