"""Jobs that are repeated and printed: a table of medians with the least and the most, or a line of JSON for a run."""

from __future__ import annotations

import argparse
import fnmatch
import json
import statistics
from collections.abc import Callable, Mapping

Figures = dict[str, float]
Job = Callable[[float], Figures]
"""Does its full size times what it is given."""


def run(jobs: Mapping[str, Job], doc: str | None, *more: argparse.ArgumentParser) -> None:
    """The command line of a script of such jobs; `more` are options of its own."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=formatter, parents=more)
    parser.add_argument("patterns", nargs="*", default=["*"], metavar="PATTERN")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies what every job does")
    parser.add_argument("--json", action="store_true", help="a line for each run, instead of the table")
    parser.add_argument("--list", action="store_true", help="print the jobs and end")
    given = parser.parse_args()
    names = [name for name in jobs if any(fnmatch.fnmatch(name, pattern) for pattern in given.patterns)]
    if given.list:
        print(*names, sep="\n")
        return
    if not names:
        parser.error(f"no job matches {' '.join(given.patterns)}; --list shows them")
    if not given.json:
        width = max(map(len, names))
        print(f"{'job':<{width}} {'figure':<22} {'median':>12}  least..most", flush=True)
    for name in names:
        runs = []
        for _ in range(given.rounds):
            runs.append(jobs[name](given.scale))
            if given.json:
                print(
                    json.dumps({"job": name, **{key: round(value, 3) for key, value in runs[-1].items()}}), flush=True
                )
        if not given.json:
            _print(f"{name:<{width}}", runs)


def _print(name: str, runs: list[Figures]) -> None:
    for figure in runs[0]:
        values = [each[figure] for each in runs]
        spread = f"{min(values):,.4g}..{max(values):,.4g}"
        print(f"{name} {figure:<22} {statistics.median(values):>12,.4g}  {spread}", flush=True)
