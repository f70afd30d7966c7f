"""`bench.address`: which jobs a server that is not ours is given, and what is said when there is none."""

from __future__ import annotations

import subprocess
import sys

from bench.address import OURS_ONLY
from bench.peers import responses, throughput


def address(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "bench.address", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=60)


def test_jobs_that_need_a_server_of_their_own_are_left_out() -> None:
    everything = [*throughput.JOBS, *responses.JOBS]
    assert address("--list").stdout.split() == [name for name in everything if name not in OURS_ONLY]
    assert set(OURS_ONLY) < set(everything)


def test_a_process_that_is_not_there_is_told() -> None:
    done = address("--pids", "999999999", "librdkafka/1024B/acks=1")
    assert done.returncode == 1
    assert done.stderr == "no such process: 999999999\n"
