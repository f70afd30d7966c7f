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
