"""Command lines: help that works without a cluster, mistakes that are named, exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.cli.partitions import parse_partition, read_plan
from headrace.client import TopicPartition

NOWHERE = {"HEADRACE_BOOTSTRAP": "127.0.0.1:1", "COLUMNS": "200"}


def commands(command: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [path]
    for name, inner in getattr(command, "commands", {}).items():
        found += commands(inner, (*path, name))
    return found


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr("headrace.cli.session.CONNECT_TIMEOUT_MS", 200)

    def invoke(*args: str, **options: object) -> object:
        env = {**NOWHERE, "HEADRACE_PROFILES": str(tmp_path / "profiles.json"), **options.pop("env", {})}  # type: ignore[dict-item]
        return CliRunner().invoke(app, list(args), env=env, **options)  # type: ignore[arg-type]

    return invoke


@pytest.mark.parametrize("path", commands(get_command(app)), ids=" ".join)
def test_every_command_has_help_with_an_example(path: tuple[str, ...], run) -> None:  # type: ignore[no-untyped-def]
    result = run(*path, "--help")
    assert result.exit_code == 0
    assert len(path) < 2 or f"headrace {' '.join(path)}" in " ".join(result.output.split())


def test_help_imports_no_client_and_no_service() -> None:
    code = (
        "import sys; from headrace.cli.main import app; "
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'grpc', 'kio', 'etcd3', 'google'}))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize(
    "args",
    [
        ("topics", "list"),
        ("topics", "describe", "orders"),
        ("consume", "orders"),
        ("cluster", "info"),
        ("partitions", "list"),
        ("configs", "describe", "topic", "orders"),
        ("perf", "consume", "orders"),
    ],
)
def test_a_cluster_that_is_not_there_is_named_with_what_to_do(args: tuple[str, ...], run) -> None:  # type: ignore[no-untyped-def]
    result = run(*args)
    assert result.exit_code == 3
    assert "no cluster answers at 127.0.0.1:1" in result.stderr
    assert "headrace dev" in result.stderr
    assert "--bootstrap" in result.stderr
    assert "HEADRACE_BOOTSTRAP" in result.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("topics", "create", "orders", "-c", "novalue"), "KEY=VALUE"),
        (("topics", "create", "orders", "--partitions", "0"), "greater than or equal to 1"),
        (("topics", "alter", "orders"), "nothing to change"),
        (("consume", "orders", "--from", "later"), "is no place in a log"),
        (("consume", "orders", "--format", "%q"), "%q is not known"),
        (("produce", "orders", "--acks", "2"), "acks"),
        (("partitions", "move", "orders", "1"), "TOPIC:NUMBER"),
        (("partitions", "move", "orders:0", "a,b"), "no broker ids"),
        (("configs", "alter", "topic", "orders"), "nothing to change"),
    ],
)
def test_a_mistake_in_the_command_line_is_named(args: tuple[str, ...], said: str, run) -> None:  # type: ignore[no-untyped-def]
    result = run(*args, input="")
    assert result.exit_code == 2
    assert said in result.output


def test_deleting_asks_unless_told(run) -> None:  # type: ignore[no-untyped-def]
    result = run("topics", "delete", "orders", input="")
    assert result.exit_code == 2
    assert "--yes" in result.stderr


def test_profiles(run) -> None:  # type: ignore[no-untyped-def]
    assert run("profile", "list").output.startswith("no profiles yet")
    run("profile", "set", "one", "127.0.0.1:2")
    run("profile", "set", "two", "127.0.0.1:3")
    assert "127.0.0.1:3" in run("topics", "list", env={"HEADRACE_BOOTSTRAP": ""}).stderr
    assert "127.0.0.1:1" in run("topics", "list").stderr, "the environment goes before a profile"
    run("profile", "use", "one")
    assert "127.0.0.1:2" in run("topics", "list", env={"HEADRACE_BOOTSTRAP": ""}).stderr
    assert "one   127.0.0.1:2  yes" in run("profile", "list").output
    run("profile", "delete", "one")
    assert "127.0.0.1:9094" in run("topics", "list", env={"HEADRACE_BOOTSTRAP": ""}).stderr
    assert run("profile", "use", "three").exit_code == 4


def test_log_dump(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from headrace.client.batch_builder import BatchBuilder

    builder = BatchBuilder()
    builder.append(1, b"key", b"value")
    folder = tmp_path / "orders-0"
    folder.mkdir()
    (folder / f"{0:020}.log").write_bytes(builder.seal())
    result = run("log", "dump", str(folder), "--data")
    assert result.exit_code == 0, result.output
    assert "payload: value" in result.output
    damaged = bytearray(builder.seal())
    damaged[-2] ^= 1
    (folder / f"{0:020}.log").write_bytes(damaged)
    assert run("log", "dump", str(folder)).exit_code == 1
    (tmp_path / "notes.txt").write_text("")
    assert run("log", "dump", str(tmp_path / "notes.txt")).exit_code == 2


def test_partitions_and_plans_are_read() -> None:
    assert parse_partition("a-b-3") == TopicPartition("a-b", 3)
    plan = '{"version": 1, "partitions": [{"topic": "t", "partition": 1, "replicas": [2, 0], "log_dirs": ["any"]}]}'
    assert read_plan(plan) == {TopicPartition("t", 1): [2, 0]}
