"""Looks for each deliberate bug: `python -m tests.sim.hunt [NAME...]` says which seed finds it, up to 1,000 of them."""

from __future__ import annotations

import multiprocessing
import os
import sys

from tests.sim.mutations import MUTATIONS, OF_GROUPS
from tests.sim.scenario import GROUPED, run_seed

MOST_SEEDS = 1000
SEEDS_OF_A_PROCESS = 20


def look(name: str, seed: int) -> str | None:
    """What the seed says with the bug switched on; None when it does not notice it."""
    with MUTATIONS[name]():
        verdict = run_seed(seed)
    return verdict.violations[0] if verdict.violations else None


def hunt(name: str, first: int = 1, most: int = MOST_SEEDS) -> tuple[int, str] | None:
    """The first seed that finds the bug, and what it says; None when none of them does."""
    # Without a group nobody can commit to it.
    seeds = [(name, seed) for seed in range(first, first + most) if name not in OF_GROUPS or seed % GROUPED == 0]
    jobs = os.cpu_count() or 1
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=SEEDS_OF_A_PROCESS) as pool:
        for seed, found in pool.imap(_look, seeds):
            if found is not None:
                return seed, found
    return None


def _look(given: tuple[str, int]) -> tuple[int, str | None]:
    return given[1], look(*given)


def main() -> int:
    missed = 0
    for name in sys.argv[1:] or MUTATIONS:
        found = hunt(name)
        missed += found is None
        print(f"{name}: {'not found' if found is None else f'seed {found[0]}: {found[1]}'}", flush=True)
    return bool(missed)


if __name__ == "__main__":
    raise SystemExit(main())
