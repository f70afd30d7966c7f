"""Seeds that must find nothing, and the promise that a seed says the same thing every time."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
from tests.sim.scenario import run_seed

FIXED = (2, 3, 8, 15, 33, 61, 3003, 70039)
"""Some of them found bugs once (BUGS.md)."""
FRESH = [random.SystemRandom().randrange(1 << 32) for _ in range(3)]
"""Other ones every time, named in the report when they find something; `make sim` is for many."""


@pytest.mark.parametrize("seed", FIXED)
def test_a_fixed_seed_breaks_no_rule(seed: int) -> None:
    verdict = run_seed(seed)
    assert not verdict.violations, verdict.report()
    assert verdict.checked > 100


@pytest.mark.parametrize("number", range(len(FRESH)))
def test_a_fresh_seed_breaks_no_rule(number: int) -> None:
    verdict = run_seed(FRESH[number])
    assert not verdict.violations, verdict.report()


@pytest.mark.parametrize("seed", [3])
def test_a_seed_gives_the_same_trace_in_every_process(seed: int) -> None:
    again = run_seed(seed)
    hashes = {again.trace_hash}
    for hash_seed in ("0", "4711"):
        script = f"from tests.sim.scenario import run_seed; import sys; sys.stdout.write(run_seed({seed}).trace_hash)"
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        )
        hashes.add(done.stdout)
    assert hashes == {again.trace_hash}


def test_different_seeds_give_different_traces() -> None:
    assert run_seed(3).trace_hash != run_seed(4).trace_hash
