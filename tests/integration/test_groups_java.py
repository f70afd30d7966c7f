"""Groups with Java's consumers and with kafka-consumer-groups, in both protocols."""

from __future__ import annotations

import itertools
import json
import re
import uuid
from collections.abc import Callable

import pytest
from tests.integration.group_members import committed, produce_values
from tests.integration.test_java_tools import run

pytestmark = pytest.mark.java
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PROTOCOLS = ("classic", "consumer")
TopicFactory = Callable[..., str]


def test_console_consumer_and_consumer_groups(bootstrap: str, new_topic: TopicFactory) -> None:
    topics = {f"{protocol}-{uuid.uuid4().hex[:8]}": new_topic(f"java-{protocol}", 2) for protocol in PROTOCOLS}
    values = [b"%d" % number for number in range(20)]
    for topic in topics.values():
        produce_values(bootstrap, topic, 2, values)
    console = [CONSOLE, "--from-beginning", "--max-messages", "20", "--timeout-ms", "30000"]
    consumed = run(
        bootstrap,
        *([*console, "--topic", topic, "--group", group, *protocol_of(group)] for group, topic in topics.items()),
    )
    for (group, topic), each in zip(topics.items(), consumed, strict=True):
        assert each.code == 0, each.output
        assert sorted(re.findall(r"^\d+$", each.output, re.MULTILINE)) == sorted(value.decode() for value in values)
        assert committed(bootstrap, group, topic, 2) == [10, 10]
        produce_values(bootstrap, topic, 2, [b"more", b"more"])
    ran = iter(run(bootstrap, *(line for group, topic in topics.items() for line in administration(group, topic))))
    for group, topic in topics.items():
        listed, described, state, reset, deleted = itertools.islice(ran, 5)
        assert group in listed.output.split()
        rows = re.findall(rf"{group}\s+{topic}\s+(\d)\s+(\d+)\s+(\d+)\s+(\d+)", described.output)
        assert sorted(rows) == [("0", "10", "11", "1"), ("1", "10", "11", "1")], described.output
        assert "Empty" in state.output, state.output
        assert sorted(re.findall(rf"{group}\s+{topic}\s+(\d)\s+(\d+)", reset.output)) == [("0", "0"), ("1", "0")]
        assert "successful" in deleted.output, json.dumps([part.output for part in (reset, deleted)])
        assert committed(bootstrap, group, topic, 2) == [-1001, -1001]


def protocol_of(group: str) -> list[str]:
    return ["--command-property", f"group.protocol={group.partition('-')[0]}"]


def administration(group: str, topic: str) -> list[list[str]]:
    return [
        [GROUPS, "--list"],
        [GROUPS, "--describe", "--group", group],
        [GROUPS, "--describe", "--group", group, "--state"],
        [GROUPS, "--group", group, "--topic", topic, "--reset-offsets", "--to-earliest", "--execute"],
        [GROUPS, "--delete", "--group", group],
    ]


def test_every_assignor_of_java(bootstrap: str, new_topic: TopicFactory) -> None:
    """One console consumer after the other, in one group: each takes over where the last one stopped."""
    topic, group = new_topic("java-assignors", 2), f"java-{uuid.uuid4().hex[:8]}"
    names = ("RangeAssignor", "RoundRobinAssignor", "StickyAssignor", "CooperativeStickyAssignor")
    produce_values(bootstrap, topic, 2, [b"v%d" % number for number in range(2 * len(names))])
    package = "org.apache.kafka.clients.consumer"
    console = [CONSOLE, "--topic", topic, "--group", group, "--max-messages", "2", "--timeout-ms", "30000"]
    for given in ("auto.offset.reset=earliest", "max.poll.records=1"):
        console += ["--command-property", given]
    ran = run(
        bootstrap,
        *([*console, "--command-property", f"partition.assignment.strategy={package}.{name}"] for name in names),
    )
    read = [re.findall(r"^v\d+$", each.output, re.MULTILINE) for each in ran]
    assert [len(each) for each in read] == [2] * len(names), [each.output for each in ran]
    assert {value for each in read for value in each} == {f"v{number}" for number in range(2 * len(names))}


def test_consumer_performance_reads_through_a_group(bootstrap: str, new_topic: TopicFactory) -> None:
    topic = new_topic("java-perf", 3)
    groups = [f"{protocol}-{uuid.uuid4().hex[:8]}" for protocol in PROTOCOLS]
    produce_values(bootstrap, topic, 3, [b"x" * 100] * 3000)
    perf = ["org.apache.kafka.tools.ConsumerPerformance", "--topic", topic, "--num-records", "3000"]
    perf += ["--timeout", "30000", "--hide-header"]
    ran = run(bootstrap, *([*perf, "--group", group, *protocol_of(group)] for group in groups))
    for group, each in zip(groups, ran, strict=True):
        assert each.code == 0, each.output
        figures = each.output.strip().splitlines()[-1].split(", ")
        assert int(figures[4]) == 3000, each.output
        assert sum(committed(bootstrap, group, topic, 3)) == 3000, "it commits when it closes"
