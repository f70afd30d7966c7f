"""Every job of `bench.limits` still runs: a thousandth of each."""

from __future__ import annotations

import json
import subprocess
import sys

from bench.limits import JOBS

QUICK = ("--scale", "0.001", "--rounds", "1")


def limits(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "bench.limits", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=60)


def test_every_job_gives_its_figures() -> None:
    done = limits(*QUICK, "--json")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each.pop("job") for each in found] == list(JOBS)
    assert all(each["MiB_per_s"] > 0 for each in found)


def test_the_table_has_a_line_for_each_figure() -> None:
    head, *lines = limits(*QUICK, "write/16KiB").stdout.splitlines()
    assert head.split() == ["job", "figure", "median", "least..most"]
    assert [line.split()[:2] for line in lines] == [["write/16KiB", "MiB_per_s"], ["write/16KiB", "calls_per_s"]]


def test_a_pattern_that_names_no_job_is_told() -> None:
    done = limits("fsync/*")
    assert done.returncode == 2
    assert "no job matches fsync/*; --list shows them" in done.stderr
