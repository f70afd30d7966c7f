"""The tools that come with Apache Kafka 4.x, as an operator would run them; those of groups are in test_groups_java."""

from __future__ import annotations

import json
import re
import subprocess
import uuid
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient
from tests.integration.cluster import wait_until
from tests.integration.kafka_clients import Java, java_program

pytestmark = pytest.mark.java
TOOLS = "org.apache.kafka.tools"
TOPICS, CONFIGS, OFFSETS = f"{TOOLS}.TopicCommand", "kafka.admin.ConfigCommand", f"{TOOLS}.GetOffsetShell"


class Ran(NamedTuple):
    output: str
    code: int


def run(bootstrap: str, *commands: list[str]) -> list[Ran]:
    """Run the tools one after the other in one JVM; each is told the bootstrap server."""
    if reason := Java().missing():
        pytest.skip(reason)
    lines = "".join(json.dumps([name, "--bootstrap-server", bootstrap, *rest]) + "\n" for name, *rest in commands)
    done = subprocess.run(java_program("Tools"), input=lines, capture_output=True, text=True, timeout=110, check=False)
    parts = re.split(r"^@@@ exit (\d+)\n", done.stdout, flags=re.MULTILINE)
    ran = [Ran(output, int(code)) for output, code in zip(parts[0:-1:2], parts[1::2], strict=True)]
    assert len(ran) == len(commands), done.stdout + done.stderr
    return ran


def test_the_command_line_tools(bootstrap: str, admin: AdminClient, tmp_path: Path) -> None:
    topic = f"java-{uuid.uuid4().hex[:8]}"
    named = ["--topic", topic]
    produce = [*named, "--num-records", "5000", "--record-size", "100", "--throughput", "-1"]
    deletion = tmp_path / "delete.json"
    partitions = [{"topic": topic, "partition": 0, "offset": 1000}]
    deletion.write_text(json.dumps({"version": 1, "partitions": partitions}))
    entity = ["--entity-type", "topics", "--entity-name", topic]
    elect = ["--election-type", "preferred", "--topic", topic, "--partition", "0"]
    ran = run(
        bootstrap,
        [TOPICS, "--create", *named, "--partitions", "1", "--config", "retention.ms=90000000"],
        [TOPICS, "--create", *named, "--partitions", "1"],
        [TOPICS, "--list"],
        [TOPICS, "--describe", *named],
        [f"{TOOLS}.ProducerPerformance", *produce],
        [OFFSETS, *named],
        [OFFSETS, *named, "--time", "earliest"],
        [f"{TOOLS}.DeleteRecordsCommand", "--offset-json-file", str(deletion)],
        [OFFSETS, *named, "--time", "-2"],
        [OFFSETS, *named, "--time", "max-timestamp"],
        [CONFIGS, "--alter", *entity, "--add-config", "segment.bytes=2000000,cleanup.policy=[compact,delete]"],
        [CONFIGS, "--describe", *entity],
        [CONFIGS, "--alter", *entity, "--delete-config", "segment.bytes"],
        [CONFIGS, "--alter", *entity, "--add-config", "retention.ms=soon"],
        [f"{TOOLS}.LogDirsCommand", "--describe", "--topic-list", topic],
        [f"{TOOLS}.LeaderElectionCommand", *elect],
        [TOPICS, "--alter", *named, "--partitions", "3"],
        [TOPICS, "--alter", *named, "--partitions", "2"],
        [CONFIGS, "--describe", "--entity-type", "brokers", "--all"],
        [TOPICS, "--delete", *named],
    )
    refused = {1: "already exists", 13: "soon", 17: "partition"}
    for number, each in enumerate(ran):
        assert (each.code != 0) == (number in refused), f"{number}: {each.output}"
        assert refused.get(number, "") in each.output, each.output
    assert topic in ran[2].output.split()
    assert "PartitionCount: 1" in ran[3].output
    assert "retention.ms=90000000" in ran[3].output
    assert "5000 records sent" in ran[4].output
    assert [f"{topic}:0:{offset}" in ran[at].output for at, offset in ((5, 5000), (6, 0), (8, 1000))] == [True] * 3
    assert re.search(rf"{topic}:0:\d+", ran[9].output)
    assert "low_watermark: 1000" in ran[7].output
    assert "segment.bytes=2000000" in ran[11].output
    assert "cleanup.policy=compact,delete" in ran[11].output
    described = json.loads(next(line for line in ran[14].output.splitlines() if line.startswith("{")))
    sizes = [part["size"] for folder in described["brokers"][0]["logDirs"] for part in folder["partitions"]]
    assert sum(sizes) > 5000 * 100
    assert "auto.create.topics.enable" in ran[18].output
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, "the topic to be gone")
