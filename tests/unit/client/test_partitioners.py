"""Keys go where Java's client sends them; records without one are spread."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from headrace.client.partitioners import RoundRobin, StickyPartitions, murmur2, partition_for_key

JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", JAVA)
def test_murmur2_is_that_of_the_java_client(key: bytes) -> None:
    assert murmur2(key) == JAVA[key] & 0xFFFFFFFF


def test_a_key_goes_where_kafka_python_sends_it() -> None:
    from kafka.partitioner.default import murmur2 as theirs

    chance = random.Random(3)
    for length in range(40):
        key = chance.randbytes(length)
        assert partition_for_key(key, 13) == (theirs(key) & 0x7FFFFFFF) % 13


def test_round_robin_counts_each_topic_by_itself() -> None:
    turn = RoundRobin()
    assert [turn("a", b"k", b"", 2), turn("b", b"k", b"", 2), turn("a", b"k", b"", 2)] == [0, 0, 1]


def test_records_without_a_key_stay_until_a_batch_is_full() -> None:
    sticky = StickyPartitions(100, random.Random(1))
    chosen = [sticky.choose("t", 25, 8, dict) for _ in range(40)]
    runs = [chosen[i : i + 4] for i in range(0, 40, 4)]
    assert all(len(set(run)) == 1 for run in runs)
    assert len({run[0] for run in runs}) > 3


def test_partitions_without_a_leader_are_left_out() -> None:
    sticky = StickyPartitions(1, random.Random(1))
    assert {sticky.choose("t", 1, 4, lambda: {1: 0, 3: 0}) for _ in range(50)} == {1, 3}


def test_a_partition_that_has_much_waiting_gets_less() -> None:
    sticky = StickyPartitions(1, random.Random(1))
    drawn = Counter(sticky.choose("t", 1, 2, lambda: {0: 9, 1: 0}) for _ in range(1000))
    assert drawn[1] > 5 * drawn[0] > 0


def test_without_adaptation_all_are_equal() -> None:
    sticky = StickyPartitions(1, random.Random(1), adaptive=False)
    drawn = Counter(sticky.choose("t", 1, 2, lambda: {0: 9, 1: 0}) for _ in range(1000))
    assert 400 < drawn[0] < 600
