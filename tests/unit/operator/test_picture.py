"""What is said of a cluster's picture."""

from __future__ import annotations

from tests.unit.operator.pictures import image, partition, topic

from headrace_operator.picture import under_min_isr


def test_only_partitions_that_refuse_acks_all_are_under_min_isr() -> None:
    single = topic("single", partition([0]))
    pair = topic("pair", partition([0, 1], isr=[0]), partition([0, 1]))
    assert [str(name) for name in under_min_isr(image([0, 1], single, pair, min_isr=3))] == ["pair-0"]
