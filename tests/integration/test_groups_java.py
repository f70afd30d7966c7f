"""Groups with Java's consumers and with kafka-consumer-groups, in both protocols."""

from __future__ import annotations

import json
import re
import subprocess
import uuid
from collections.abc import Callable

import pytest
from tests.integration.group_members import committed, produce_values
from tests.integration.java import require_kafka
from tests.integration.test_java_tools import run

pytestmark = pytest.mark.java
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
TopicFactory = Callable[..., str]


def consume(bootstrap: str, topic: str, group: str, protocol: str, count: int) -> list[str]:
    command = ["java", "-Dlog4j2.level=OFF", "-cp", require_kafka(), CONSOLE, "--bootstrap-server", bootstrap]
    command += ["--topic", topic, "--group", group, "--from-beginning", "--max-messages", str(count)]
    command += ["--timeout-ms", "30000", "--command-property", f"group.protocol={protocol}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(done.stdout.split())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_console_consumer_and_consumer_groups(protocol: str, bootstrap: str, new_topic: TopicFactory) -> None:
    topic, group = new_topic(f"java-{protocol}", 2), f"java-{uuid.uuid4().hex[:8]}"
    values = [b"%d" % number for number in range(20)]
    produce_values(bootstrap, topic, 2, values)
    assert consume(bootstrap, topic, group, protocol, 20) == sorted(value.decode() for value in values)
    assert committed(bootstrap, group, topic, 2) == [10, 10]
    produce_values(bootstrap, topic, 2, [b"more", b"more"])
    listed, described, state, reset, deleted = run(
        bootstrap,
        [GROUPS, "--list"],
        [GROUPS, "--describe", "--group", group],
        [GROUPS, "--describe", "--group", group, "--state"],
        [GROUPS, "--group", group, "--topic", topic, "--reset-offsets", "--to-earliest", "--execute"],
        [GROUPS, "--delete", "--group", group],
    )
    assert group in listed.output.split()
    rows = re.findall(rf"{group}\s+{topic}\s+(\d)\s+(\d+)\s+(\d+)\s+(\d+)", described.output)
    assert sorted(rows) == [("0", "10", "11", "1"), ("1", "10", "11", "1")], described.output
    assert "Empty" in state.output, state.output
    assert sorted(re.findall(rf"{group}\s+{topic}\s+(\d)\s+(\d+)", reset.output)) == [("0", "0"), ("1", "0")]
    assert "successful" in deleted.output, json.dumps([part.output for part in (reset, deleted)])
    assert committed(bootstrap, group, topic, 2) == [-1001, -1001]


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


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consumer_performance_reads_through_a_group(protocol: str, bootstrap: str, new_topic: TopicFactory) -> None:
    topic, group = new_topic("java-perf", 3), f"java-{uuid.uuid4().hex[:8]}"
    produce_values(bootstrap, topic, 3, [b"x" * 100] * 3000)
    arguments = ["--topic", topic, "--group", group, "--num-records", "3000", "--timeout", "30000", "--hide-header"]
    (ran,) = run(
        bootstrap,
        ["org.apache.kafka.tools.ConsumerPerformance", *arguments, "--command-property", f"group.protocol={protocol}"],
    )
    assert ran.code == 0, ran.output
    figures = ran.output.strip().splitlines()[-1].split(", ")
    assert int(figures[4]) == 3000, ran.output
    assert sum(committed(bootstrap, group, topic, 3)) == 3000, "it commits when it closes"
