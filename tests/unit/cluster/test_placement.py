from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cluster.placement import Load, check_assignments, load_of, place
from headrace.errors import ErrorCode, KafkaError

SEEDS = st.integers(0, 2**32).map(Random)


def spread(counts: Counter[int], brokers: dict[int, str]) -> int:
    values = [counts[broker] for broker in brokers]
    return max(values) - min(values)


def replicas_by_broker(placed: list[tuple[int, ...]]) -> Counter[int]:
    return Counter(broker for replicas in placed for broker in replicas)


def leaders_by_broker(placed: list[tuple[int, ...]]) -> Counter[int]:
    return Counter(replicas[0] for replicas in placed)


@given(SEEDS, st.integers(1, 9), st.integers(1, 40), st.data())
def test_a_new_topic_is_even_within_one(random: Random, brokers: int, count: int, data: st.DataObject) -> None:
    racks = dict.fromkeys(range(brokers), "")
    factor = data.draw(st.integers(1, brokers))
    placed = place(count, factor, racks, random=random)
    assert len(placed) == count
    assert all(len(set(replicas)) == factor for replicas in placed)
    assert spread(replicas_by_broker(placed), racks) <= 1
    assert spread(leaders_by_broker(placed), racks) <= 1


@given(SEEDS, st.integers(1, 4), st.integers(1, 4), st.integers(1, 30), st.data())
def test_equal_racks_are_used_as_widely_as_can_be_and_stay_even(
    random: Random, rack_count: int, size: int, count: int, data: st.DataObject
) -> None:
    racks = {rack * size + i: f"r{rack}" for rack in range(rack_count) for i in range(size)}
    factor = data.draw(st.integers(1, len(racks)))
    placed = place(count, factor, racks, random=random)
    for replicas in placed:
        in_rack = Counter(racks[broker] for broker in replicas)
        assert len(in_rack) == min(factor, rack_count)
        assert max(in_rack.values()) - min(in_rack[f"r{n}"] for n in range(rack_count)) <= 1
    assert spread(replicas_by_broker(placed), racks) <= 1
    assert spread(leaders_by_broker(placed), racks) <= 1


@given(SEEDS, st.dictionaries(st.integers(0, 9), st.sampled_from(["a", "b", "c"]), min_size=1), st.data())
def test_unequal_racks_still_give_each_partition_as_many_racks_as_there_are(
    random: Random, racks: dict[int, str], data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(racks)))
    for replicas in place(12, factor, racks, random=random):
        assert len(set(replicas)) == factor
        assert len({racks[broker] for broker in replicas}) == min(factor, len(set(racks.values())))


@given(SEEDS, st.integers(2, 6), st.integers(1, 3), st.integers(1, 20), st.integers(1, 20), st.data())
def test_partitions_added_later_keep_the_topic_even(
    random: Random, brokers: int, factor: int, first: int, more: int, data: st.DataObject
) -> None:
    racks = dict.fromkeys(range(brokers), "")
    factor = min(factor, brokers)
    placed = place(first, factor, racks, random=random)
    placed += place(more, factor, racks, random=random, topic=placed)
    assert spread(replicas_by_broker(placed), racks) <= 1


def test_brokers_added_later_get_the_new_partitions_first() -> None:
    old = place(6, 2, {1: "", 2: ""}, random=Random(1))
    more = place(6, 2, {1: "", 2: "", 3: "", 4: ""}, random=Random(1), topic=old)
    assert replicas_by_broker(more) == {3: 6, 4: 6}
    assert replicas_by_broker(old + more) == {1: 6, 2: 6, 3: 6, 4: 6}
    assert leaders_by_broker(more) == {3: 3, 4: 3}


def test_a_new_topic_is_not_piled_onto_an_empty_broker() -> None:
    busy = load_of([(1, 2)] * 50 + [(2, 1)] * 50)
    placed = place(6, 1, {1: "", 2: "", 3: ""}, random=Random(1), cluster=busy)
    assert replicas_by_broker(placed) == {1: 2, 2: 2, 3: 2}


def test_what_cannot_be_even_goes_to_the_least_loaded_broker() -> None:
    for seed in range(20):
        busy = load_of([(1,), (1,), (2,)])
        assert place(1, 1, {1: "", 2: "", 3: ""}, random=Random(seed), cluster=busy) == [(3,)]
        assert place(1, 1, {1: "", 2: ""}, random=Random(seed), cluster=busy) == [(2,)]


def test_many_small_topics_fill_the_cluster_evenly() -> None:
    random, racks = Random(7), dict.fromkeys(range(5), "")
    placed: list[tuple[int, ...]] = []
    for _ in range(50):
        placed += place(1, 3, racks, random=random, cluster=load_of(placed))
    assert spread(replicas_by_broker(placed), racks) <= 1
    assert spread(leaders_by_broker(placed), racks) <= 2


def test_the_leaderships_of_a_dead_broker_go_to_many() -> None:
    placed = place(60, 3, dict.fromkeys(range(6), ""), random=Random(3))
    heirs = Counter(replicas[1] for replicas in placed if replicas[0] == 0)
    assert len(heirs) >= 4


def test_the_same_inputs_give_the_same_placement() -> None:
    racks = {3: "b", 1: "a", 2: "b"}
    again = dict(sorted(racks.items()))
    assert place(20, 2, racks, random=Random(5)) == place(20, 2, again, random=Random(5))
    assert place(20, 2, racks, random=Random(5)) != place(20, 2, racks, random=Random(6))


@pytest.mark.parametrize(
    ("factor", "brokers", "text"),
    [
        (3, {1: "", 2: ""}, "replication factor 3 needs 3 live brokers, there are 2: 1, 2"),
        (2, {7: ""}, "replication factor 2 needs 2 live brokers, there is 1: 7"),
        (1, {}, "replication factor 1 needs 1 live broker, there are none"),
        (0, {1: ""}, "replication factor 0 is not allowed: at least 1"),
    ],
)
def test_a_factor_that_cannot_be_given_is_refused(factor: int, brokers: dict[int, str], text: str) -> None:
    with pytest.raises(KafkaError) as caught:
        place(1, factor, brokers, random=Random(1))
    assert caught.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert caught.value.message == text


@pytest.mark.parametrize(
    ("assignments", "text"),
    [
        ([(1, 2), ()], "partition 5 has no replicas"),
        ([(1, 1)], "partition 4 has a broker twice in [1, 1]"),
        ([(1, 2), (1,)], "partition 5 has 1 replicas but partition 4 has 2: give all the same"),
        ([(1, 9)], "partition 4 names broker 9, which is not alive; live brokers: 1, 2"),
    ],
)
def test_replicas_chosen_by_hand_are_checked(assignments: list[tuple[int, ...]], text: str) -> None:
    check_assignments([(2, 1)], [1, 2])
    with pytest.raises(KafkaError) as caught:
        check_assignments(assignments, [2, 1], first=4)
    assert caught.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert caught.value.message == text


def test_equal_racks_stay_even_whatever_the_brokers_already_hold() -> None:
    for seed in range(600):
        random = Random(seed)
        rack_count, size = random.randint(1, 4), random.randint(1, 4)
        racks = {rack * size + i: f"r{rack}" for rack in range(rack_count) for i in range(size)}
        factor, count = random.randint(1, len(racks)), random.randint(1, 12)
        busy = Load({b: random.randint(0, 5) for b in racks}, {b: random.randint(0, 3) for b in racks})
        placed = place(count, factor, racks, random=random, cluster=busy)
        assert spread(replicas_by_broker(placed), racks) <= 1, seed
        assert spread(leaders_by_broker(placed), racks) <= 1, seed
