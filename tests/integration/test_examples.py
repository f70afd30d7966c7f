"""Every example runs to its end and prints what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.cluster import Cluster

FOLDER = Path(__file__).resolve().parents[2] / "examples"

EXPECTED = {
    "word_count.py": ["5 the", "3 log", "2 is", "1 wins"],
    "at_least_once.py": ["missed 0"],
    "at_most_once.py": ["again 0"],
    "dedupe_by_key.py": ["total 150"],
    "rebalance_listener.py": ["first gets 4", "first gives back 2", "second gets 2", "second gives back 2", "done"],
    "notebook.py": ["mean 20.333"],
}
GROUPS = {"at_least_once.py", "at_most_once.py", "rebalance_listener.py"}


def test_every_example_is_run_and_listed() -> None:
    found = {path.name for path in FOLDER.glob("*.py")}
    assert found == set(EXPECTED)
    listed = (FOLDER / "README.md").read_text()
    assert all(f"`{name}`" in listed for name in found)


@pytest.mark.parametrize("name", EXPECTED)
def test_example(name: str, own_cluster: Cluster) -> None:
    if name in GROUPS and not any(process["role"] == "coordinator" for process in own_cluster.processes):
        pytest.skip("this cluster runs no coordinator, so it has no groups")
    env = {**os.environ, "HEADRACE_BOOTSTRAP": str(own_cluster.process("metadata")["grpc"])}
    done = subprocess.run(
        [sys.executable, str(FOLDER / name)], env=env, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for line in EXPECTED[name]:
        assert line in done.stdout, done.stdout
    assert "Traceback" not in done.stderr
