"""The `headrace` command against a real cluster, as a person at a shell uses it."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Callable

import pytest
from tests.integration.cluster import Cluster, command

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(own_cluster: Cluster) -> Run:
    servers = str(own_cluster.process("metadata")["grpc"])
    env = {**os.environ, "HEADRACE_BOOTSTRAP": servers, "HEADRACE_PROFILES": os.devnull + "/none"}

    def invoke(*args: str, stdin: str = "", ok: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*command(), *args], input=stdin, capture_output=True, text=True, env=env, timeout=60, check=False
        )
        if ok:
            assert done.returncode == 0, f"{args}: {done.stdout}{done.stderr}"
        return done

    return invoke


@pytest.fixture
def topic(run: Run) -> str:
    name = f"cli-{uuid.uuid4().hex[:8]}"
    run("topics", "create", name, "--partitions", "3")
    return name


def test_what_the_readme_says(run: Run) -> None:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    assert run("topics", "create", name, "--partitions", "3").stdout == f"created {name}\n"
    run("produce", name, stdin="hello\n")
    assert run("consume", name, "--from", "beginning", "--exit").stdout == "hello\n"


def test_the_life_of_a_topic(run: Run, topic: str) -> None:
    listed = json.loads(run("topics", "list", "-o", "json").stdout)
    assert next(row for row in listed if row["name"] == topic)["partitions"] == 3
    again = run("topics", "create", topic, ok=False)
    assert again.returncode == 1
    assert "TOPIC_ALREADY_EXISTS" in again.stderr
    assert run("topics", "create", topic, "--if-not-exists").stdout == f"{topic} exists\n"
    run("topics", "alter", topic, "--partitions", "4", "-c", "retention.ms=1000")
    (described,) = json.loads(run("topics", "describe", topic, "-o", "json").stdout)
    assert len(described["partitions"]) == 4
    assert described["configs"] == {"retention.ms": "1000"}
    wrong = run("topics", "alter", topic, "-c", "retention.msec=1", ok=False)
    assert wrong.returncode == 1
    assert "did you mean retention.ms" in wrong.stderr
    assert run("topics", "delete", topic, "--yes").stdout == f"deleted {topic}\n"
    missing = run("topics", "describe", topic, ok=False)
    assert missing.returncode == 4
    assert "headrace topics list" in missing.stderr


def test_records_in_and_out(run: Run, topic: str) -> None:
    run("produce", topic, "-K", ":", "-H", "app=shop", "-p", "1", "-z", "zstd", stdin="a:1\nb:2\nc:3\n")
    shown = run("consume", topic, "-F", "beginning", "-e", "-p", "1", "-f", r"%p %o %k=%v [%h]\n").stdout
    assert shown == "1 0 a=1 [app=shop]\n1 1 b=2 [app=shop]\n1 2 c=3 [app=shop]\n"
    assert run("consume", topic, "-F", "-1", "-e", "-p", "1").stdout == "3\n"
    assert run("consume", topic, "-F", "1", "--to", "2", "-p", "1").stdout == "2\n"
    assert run("consume", topic, "-F", "beginning", "-n", "2", "-p", "1").stdout == "1\n2\n"
    assert run("consume", topic, "-F", "-1h", "-e").stdout == "1\n2\n3\n"


def test_what_consume_prints_as_json_can_be_produced_again(run: Run, topic: str) -> None:
    run("produce", topic, "-p", "0", "-K", "=", "-Z", stdin="k=v\ntomb=\n")
    rows = run("consume", topic, "-F", "beginning", "-e", "-p", "0", "--json").stdout
    run("produce", topic, "--json", "-p", "2", stdin=rows.replace('"partition": 0', '"partition": 2'))
    again = [
        json.loads(line) for line in run("consume", topic, "-F", "0", "-e", "-p", "2", "--json").stdout.splitlines()
    ]
    assert [(row["key"], row["value"]) for row in again] == [("k", "v"), ("tomb", None)]


def test_many_lines(run: Run, topic: str) -> None:
    run("produce", topic, stdin="".join(f"{n}\n" for n in range(20_000)))
    found = run("consume", topic, "-F", "beginning", "-e").stdout.split()
    assert sorted(map(int, found)) == list(range(20_000))


def test_produce_to_a_topic_that_is_not_there(run: Run) -> None:
    failed = run("produce", "no-such-topic", stdin="x\n", ok=False)
    assert failed.returncode == 4
    assert "there is no topic no-such-topic" in failed.stderr


def test_the_cluster_shows_itself(run: Run, topic: str) -> None:
    info = json.loads(run("cluster", "info", "-o", "json").stdout)
    assert info["brokers"] == [0]
    assert info["offline"] == 0
    assert run("cluster", "health").stdout == "healthy\n"
    assert run("cluster", "health", "--watch", "--exit-when-healthy", "--timeout", "20").stdout == "healthy\n"
    assert "127.0.0.1:" in run("cluster", "brokers").stdout
    rows = json.loads(run("partitions", "list", topic, "-o", "json").stdout)
    assert [row["leader"] for row in rows] == [0, 0, 0]
    run("partitions", "elect", f"{topic}:0")


def test_settings(run: Run, topic: str) -> None:
    run("configs", "alter", "topic", topic, "--set", "cleanup.policy=compact", "--set", "retention.ms=5")
    run("configs", "alter", "topic", topic, "--append", "cleanup.policy=delete", "--delete", "retention.ms")
    rows = json.loads(run("configs", "describe", "topic", topic, "-o", "json").stdout)
    given = {row["name"]: row["value"] for row in rows if row["source"] == "topic"}
    assert given == {"cleanup.policy": "compact,delete"}


def test_measurements(run: Run, topic: str) -> None:
    assert "records/s" in run("perf", "produce", topic, "-n", "500", "-s", "100").stdout
    assert "consumed 500 records" in run("perf", "consume", topic, "-n", "500").stdout
    assert "p99" in run("perf", "latency", topic, "-n", "20").stdout


def test_the_log_on_disk(run: Run, topic: str, own_cluster: Cluster) -> None:
    run("produce", topic, "-p", "0", stdin="hello\n")
    folder = own_cluster.data / "broker-0" / f"{topic}-0"
    assert "payload: hello" in run("log", "dump", str(folder), "--data").stdout
