"""Looks for each deliberate bug: `python -m tests.sim.hunt [NAME...]` says which seed finds it, up to 300 of them."""

from __future__ import annotations

import sys

from tests.sim.mutations import MUTATIONS, OF_GROUPS
from tests.sim.scenario import GROUPED, run_seed

MOST_SEEDS = 300


def hunt(name: str, first: int = 1, most: int = MOST_SEEDS) -> tuple[int, str] | None:
    """The first seed that finds the bug, and what it says; None when none of them does."""
    # Without a group nobody can commit to it.
    seeds = [seed for seed in range(first, first + most) if name not in OF_GROUPS or seed % GROUPED == 0]
    with MUTATIONS[name]():
        for seed in seeds:
            verdict = run_seed(seed)
            if verdict.violations:
                return seed, verdict.violations[0]
    return None


def main() -> int:
    missed = 0
    for name in sys.argv[1:] or MUTATIONS:
        found = hunt(name)
        missed += found is None
        print(f"{name}: {'not found' if found is None else f'seed {found[0]}: {found[1]}'}", flush=True)
    return bool(missed)


if __name__ == "__main__":
    raise SystemExit(main())
