"""Runs seeds: `python -m tests.sim --seed 7` replays one, `--seeds 1000` runs many over all cores.

With `--seeds` the seeds are those from `--first` on (a random place unless given, which is printed). The exit code is 1
when a rule was broken; each violation comes with the command that replays its seed.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import random
import resource
import sys
import time
from collections import Counter

from tests.sim.scenario import Verdict, run_seed

BAR = 30
WORD_SECONDS = 60.0
"""Without a terminal there is no bar, but a line this often."""
SEEDS_OF_A_PROCESS = 40
"""Then it ends, and so gives back what they took."""


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.sim", description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--seed", type=int, help="run this one and print what happened")
    arguments.add_argument("--timeline", type=int, default=60, help="how many of the last events to print")
    arguments.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    arguments.add_argument("--first", type=int, help="the first of them")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many processes run them")
    arguments.add_argument("--seconds", type=float, help="stop after so long, however many seeds are left")
    given = arguments.parse_args()
    if given.seed is not None:
        verdict = run_seed(given.seed)
        print(verdict.report(given.timeline))
        print(f"trace {verdict.trace_hash}, {verdict.simulated_seconds:.1f} simulated seconds, {dict(verdict.faults)}")
        return bool(verdict.violations)
    first = random.SystemRandom().randrange(1_000_000_000) if given.first is None else given.first
    return run_many(first, given.seeds, given.jobs, given.seconds)


def run_many(first: int, count: int, jobs: int, seconds: float | None) -> int:
    """Runs `count` seeds from `first` on and prints the sum of it."""
    print(f"seeds {first} to {first + count - 1} on {jobs} core(s)", flush=True)
    total = Total()
    # What all of them need is loaded once, and left out of every later garbage collection.
    run_seed(first)
    gc.freeze()
    began, cpu = time.monotonic(), _children()
    progress = Progress(count)
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=SEEDS_OF_A_PROCESS) as pool:
        for verdict in pool.imap_unordered(_run, range(first, first + count)):
            total.add(verdict)
            if verdict.violations:
                print("\r" + verdict.report(), flush=True)
            progress(total.seeds, len(total.failed))
            if seconds is not None and time.monotonic() - began > seconds:
                break
    total.cpu = _children() - cpu
    print("\r" + total.report())
    return bool(total.failed)


def _run(seed: int) -> Verdict:
    verdict = run_seed(seed, bury=False)
    if not verdict.violations:
        verdict.timeline = []
    return verdict


def _children() -> float:
    """Seconds of processor time that processes which have ended took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Progress:
    """A bar on a terminal; elsewhere a line now and then."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._bar = sys.stderr.isatty()
        self._began = self._said = time.monotonic()

    def __call__(self, done: int, failed: int) -> None:
        now = time.monotonic()
        if self._bar:
            filled = BAR * done // self._count
            bar = f"[{'#' * filled}{'.' * (BAR - filled)}]"
            print(f"\r{bar} {done}/{self._count}, {failed} failed ", end="", file=sys.stderr)
        elif now - self._said >= WORD_SECONDS:
            self._said = now
            left = (now - self._began) / done * (self._count - done)
            print(f"{done}/{self._count} seeds, {failed} failed, about {left / 60:.0f} min left", flush=True)


class Total:
    """The sum of many verdicts."""

    def __init__(self) -> None:
        self.seeds = self.checked = self.delivered = 0
        self.simulated = self.cpu = 0.0
        self.faults: Counter[str] = Counter()
        self.failed: list[int] = []

    def add(self, verdict: Verdict) -> None:
        self.seeds += 1
        self.simulated += verdict.simulated_seconds
        self.checked += verdict.checked
        self.delivered += verdict.delivered
        self.faults.update(verdict.faults)
        if verdict.violations:
            self.failed.append(verdict.seed)

    def report(self) -> str:
        faults = ", ".join(f"{count} {name}" for name, count in self.faults.most_common()) or "none"
        return "\n".join(
            [
                f"{self.seeds} seeds, {self.simulated / 60:.0f} simulated minutes in {self.cpu / 60:.1f} core-minutes"
                f" ({self.simulated / max(self.cpu, 0.001):.0f} to 1)",
                f"{self.delivered} batches delivered, {self.checked} checks",
                f"faults: {faults}",
                f"violations: {len(self.failed)} seed(s) {sorted(self.failed) if self.failed else ''}",
            ]
        )


if __name__ == "__main__":
    raise SystemExit(main())
