"""Where partitions go when brokers come and leave."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.operator.pictures import image, partition, topic

from headrace.cluster.image import Image
from headrace_operator import picture, scaling


def carried_out(before: Image, moves: scaling.Moves) -> Image:
    """The picture once the moves have arrived."""
    topics = dict(before.topics)
    for (name, index), replicas in moves.moves.items():
        parts = list(topics[name].partitions)
        parts[index] = partition(replicas)
        topics[name] = replace(topics[name], partitions=tuple(parts))
    return replace(before, topics=topics)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Image, int]:
    """A cluster of 3 to 6 brokers and what is placed on the first few of them."""
    brokers = draw(st.integers(3, 6))
    used = draw(st.integers(2, brokers))
    starts = draw(st.lists(st.tuples(st.integers(0, used - 1), st.booleans()), max_size=30))
    placed = [[at, (at + 1) % used] if both else [at] for at, both in starts]
    return image(range(brokers), topic("t", *(partition(p) for p in placed))), used


@given(clusters())
def test_drained_brokers_hold_nothing_and_factors_stay(made: tuple[Image, int]) -> None:
    before, _ = made
    leaving = {len(before.brokers) - 1}
    plan = scaling.drain(before, leaving)
    after = carried_out(before, plan)
    assert not plan.stuck
    assert not any(picture.held(after)[b] for b in leaving)
    for old, new in zip(before.topics["t"].partitions, after.topics["t"].partitions, strict=True):
        assert len(set(new.replicas)) == len(old.replicas)
    assert scaling.drain(after, leaving).left == 0


@given(clusters())
def test_spreading_fills_new_brokers_and_comes_to_an_end(made: tuple[Image, int]) -> None:
    before, used = made
    fresh = [b for b in before.brokers if b >= used]
    after = before
    # A partition gives up one replica at a time.
    for _ in range(4):
        after = carried_out(after, scaling.spread(after, fresh))
    total, share = picture.held(before).total(), picture.held(before).total() // len(before.brokers)
    assert picture.held(after).total() == total
    for partition_after in after.topics["t"].partitions:
        assert len(set(partition_after.replicas)) == len(partition_after.replicas)
    assert all(picture.held(after)[b] <= share for b in fresh)
    assert scaling.spread(after, fresh).moves == {}


def test_new_brokers_get_their_share() -> None:
    before = image(range(4), topic("t", *(partition([i % 3, (i + 1) % 3]) for i in range(12))))
    after = carried_out(before, scaling.spread(before, [3]))
    assert sorted(picture.held(after).values()) == [6, 6, 6, 6]


def test_a_broker_that_is_not_there_yet_is_waited_for() -> None:
    assert scaling.spread(image(range(3)), [3]).left == 1


def test_too_few_brokers_to_drain_to_is_said_in_a_sentence() -> None:
    plan = scaling.drain(image(range(3), topic("a", partition([0, 1, 2]))), {2})
    assert list(plan.stuck.values()) == [
        "a has 3 replicas and only 2 brokers stay: lower its replicas, or keep more brokers"
    ]


def test_moves_come_in_portions_and_those_under_way_count() -> None:
    under_way = partition([2, 0], adding=[0], removing=[2])
    before = image(range(3), topic("a", under_way, *(partition([2]) for _ in range(5))))
    plan = scaling.drain(before, {2}, portion=3)
    assert len(plan.moves) == 2
    assert plan.left == 6


def test_replacements_prefer_another_rack() -> None:
    before = image({0: "a", 1: "b", 2: "a", 3: "b"}, topic("t", partition([0, 3])))
    assert scaling.drain(before, {3}).moves == {("t", 0): (0, 1)}


def test_the_rack_of_a_broker_that_leaves_is_not_taken() -> None:
    """Broker 2 has the lowest id and holds nothing, and yet 3 is right: it is in the rack that 4 leaves."""
    racks = {0: "a", 1: "b", 2: "a", 3: "c", 4: "c"}
    before = image(racks, topic("s", partition([3])), topic("t", partition([0, 1, 4])))
    assert scaling.drain(before, {4}).moves == {("t", 0): (0, 1, 3)}
