"""What is said of a Topic."""

from __future__ import annotations

from collections.abc import Mapping

from tests.unit.operator.pictures import partition, topic

from headrace.client import TopicPartition
from headrace_operator.resources import TopicStatus
from headrace_operator.topic_status import status_of
from headrace_operator.topics import Verdict

READY = Verdict(True, "AsSpecified", "the topic is as it shall be")
ORDERS = topic("orders", partition([0, 1]), partition([1, 0], isr=[1]))
FIRST, SECOND = (TopicPartition("orders", index) for index in range(2))


def told(sizes: Mapping[TopicPartition, int], before: TopicStatus | None = None) -> TopicStatus:
    return status_of("orders", READY, ORDERS, sizes, before or TopicStatus(), 1, "2030-01-01T00:00:00Z")


def test_what_there_is_of_a_topic_is_told() -> None:
    found = told({FIRST: 1024, SECOND: 1024})
    assert (found.partitions, found.replicas, found.in_sync, found.size) == (2, 2, "1/2", "2.0Ki")
    assert found.conditions[0]["status"] == "True"


def test_a_new_topic_need_not_be_told_again_once_its_size_is_known() -> None:
    unknown = told({})
    assert told({FIRST: 0, SECOND: 0}, unknown) == unknown


def test_a_size_that_is_not_known_for_a_moment_stays() -> None:
    assert told({}, told({FIRST: 512})).size == "512"
    assert told({FIRST: 0}, told({FIRST: 512})).size is None
