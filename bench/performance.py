"""The whole run that docs/performance.md shows: both comparisons with Apache Kafka, the clients, how cost grows.

    python -m bench.performance [--minutes 40] [--scale 0.6] [--rounds 3] [--out DIR] [--write-only] [--trial]

The parts run one after the other, each in a process of its own and within its share of the minutes; one that fails or
hangs does not stop the next. What a part has found lies in --out (bench/results) as it goes on, and goes into the page,
between its two marks, and beside it at the end. --write-only does the last step alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.growth import SERIES
from bench.peers.report import OTHERS, Results, Row, cell

PAGE = Path("docs/performance.md")
BEGIN, END = "<!-- figures: python -m bench.performance -->\n", "<!-- end of figures -->\n"
GRACE_SECONDS, STOP_SECONDS = 240.0, 90.0
ONE_BROKER = (
    *("produce/*", "consume/*", "librdkafka/*/acks=1", "cold/*", "latency/paced/*", "start", "memory/*"),
    *("partitions/*", "connections/*"),
)
THREE_BROKERS = ("produce/*/acks=all/*", "latency/paced/*", "failover", "partitions/*")


class Part(NamedTuple):
    """One process of the run, and its share of the time."""

    name: str
    share: float
    arguments: tuple[str, ...]
    output: str = ""
    """Where its standard output goes, when that is its result."""


def parts(given: argparse.Namespace) -> list[Part]:
    out = ("--out", str(given.out))
    peers = ("-m", "bench.peers", "--rounds", str(given.rounds), *out)
    peers += ("--busy", "1") if given.trial else ()
    # Three replicas of everything on the same cores: as long with two thirds of the records.
    fewer = f"{given.scale * 2 / 3:.2g}"
    return [
        Part("one broker", 0.56, (*peers, "--scale", str(given.scale), *ONE_BROKER)),
        Part("three brokers", 0.32, (*peers, "--scale", fewer, "--brokers", "3", *THREE_BROKERS)),
        Part("growth", 0.08, ("-m", "bench.growth", "--most", "10" if given.trial else "10000", *out)),
        Part(
            "clients", 0.04, ("bench/client.py", "--json", "--records", str(int(50_000 * given.scale))), "clients.json"
        ),
    ]


def run(part: Part, minutes: float, out: Path) -> None:
    """Run one part; when it does not end in time it is told to, and then made to."""
    timed = () if part.output else ("--minutes", f"{minutes:.1f}")
    print(f"== {part.name}: {minutes:.1f} minutes, {time.strftime('%H:%M:%S')}", flush=True)
    target = (out / part.output).open("w") if part.output else None
    process = subprocess.Popen([sys.executable, *part.arguments, *timed], stdout=target, start_new_session=True)
    for seconds, how in ((minutes * 60 + GRACE_SECONDS, signal.SIGINT), (STOP_SECONDS, signal.SIGKILL)):
        try:
            process.wait(seconds)
            break
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, how)
    print(f"== {part.name}: ended with {process.wait()}", flush=True)


def run_all(given: argparse.Namespace) -> None:
    deadline = time.monotonic() + given.minutes * 60
    todo = parts(given)
    for number, part in enumerate(todo):
        left = max(1.0, (deadline - time.monotonic()) / 60)
        run(part, left * part.share / sum(each.share for each in todo[number:]), given.out)


# --- the page -------------------------------------------------------------------------------------------------------


def compared(results: Results) -> list[str]:
    """The table of one comparison, and under which circumstances it was made."""
    rows = [row for row in _without_repeats(results.rows()) if row.target is not None or row.job.startswith("cold/")]
    met = [row.met for row in rows if row.met is not None]
    many = "One broker" if results.brokers == 1 else f"{results.brokers} brokers, {results.brokers} replicas"
    text = [f"### {many}", "", f"{sum(met)} of {len(met)} targets are met. {_noise(results)}", ""]
    text += ["| job | figure | Kafka | Headrace | ratio | target | |", "| --- | --- | --- | --- | --- | --- | --- |"]
    text += map(_line, rows)
    text += ["", f"![ratios](performance/ratios-{results.brokers}.svg)", ""]
    text += [f"- Failed: {' '.join(failure.split())}" for failure in results.failures()]
    missing = [found.job for found in results.jobs if not any(found.runs.values())]
    text += [f"- Not run, the time was over: {', '.join(missing)}"] if missing else []
    return [*text, ""]


def _without_repeats(rows: list[Row]) -> list[Row]:
    """Memory after the last of the produce jobs only: it is that of the broker after all of them."""
    held = [row for row in rows if row.job.startswith("produce/") and row.figure == "broker_rss_MiB"]
    return [row for row in rows if row not in held[:-1]]


def _line(row: Row) -> str:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}{' !' if row.disturbed else ''}"
    target = "" if row.target is None else f"{'≥' if row.target.more else '≤'} {row.wanted:g}"
    verdict = "" if row.met is None else "met" if row.met else "**missed**"
    return f"| {row.job} | {row.figure} | {cell(row.kafka)} | {cell(row.headrace)} | {ratio} | {target} | {verdict} |"


def _noise(results: Results) -> str:
    """How calm it was in the runs that count, and how many do not."""
    counted = [run for found in results.jobs for runs in found.counted().values() for run in runs]
    others = [run[OTHERS] for run in counted if OTHERS in run] or [0.0]
    rounds = [found.calm_rounds for found in results.jobs]
    thrown = sum(len(found.runs["kafka"]) - found.calm_rounds for found in results.jobs)
    return (
        f"Rounds that count: {min(rounds)} to {max(rounds)} a job ({thrown} more do not: others were too busy, or a"
        f" side failed). Others used {max(0.0, statistics.median(others)):.1%} of the machine in the median and at most"
        f" {max(others):.1%}; a `!` marks a job without a calm round. Jobs of {results.scale:g} times their full size."
    )


def grown(path: Path) -> list[str]:
    """What one unit of work costs along each series."""
    text = ["### How cost grows", "", "| of these | there are: cost of one unit of work |", "| --- | --- |"]
    for name, points in json.loads(path.read_text()).items():
        steps = ", ".join(f"{x:,}: {cost:.3g}" for x, cost, _ in points)
        text.append(f"| {name} ({SERIES[name][1]}) | {steps} |")
    return [*text, "", "![growth](performance/growth.svg)", ""]


def clients(path: Path) -> list[str]:
    text = ["### Clients in Python", "", "Records a second of 1 KiB on one Headrace broker, acks=1; the median.", ""]
    found = json.loads(path.read_text())
    names = list(found["produce"])
    text += [f"| | {' | '.join(names)} |", f"| --- |{' --- |' * len(names)}"]
    for way, rates in found.items():
        text.append(f"| {way} | {' | '.join(f'{rates[name]:,.0f}' for name in names)} |")
    return [*text, ""]


def write_page(out: Path, page: Path) -> None:
    """Put what was found between the marks of the page, and its files beside it."""
    both = [Results.load(path) for path in sorted(out.glob("results-*.json"))]
    for results in both:
        results.draw(out)
    beside = page.with_suffix("")
    beside.mkdir(exist_ok=True)
    for path in sorted([*out.glob("*.json"), *out.glob("*.svg")]):
        shutil.copy(path, beside / path.name)
    text: list[str] = []
    if both:
        text += [", ".join(f"{name} {value}" for name, value in both[0].machine.items()) + ".", ""]
        text += [f"Taken {time.strftime('%Y-%m-%d', time.gmtime((out / 'results-1.json').stat().st_mtime))}.", ""]
    for results in both:
        text += compared(results)
    for name, show in (("growth.json", grown), ("clients.json", clients)):
        if (out / name).exists() and (out / name).stat().st_size:
            text += show(out / name)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    page.write_text(before + BEGIN + "\n".join(["", *text, ""]) + END + rest.partition(END)[2])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--scale", type=float, default=0.6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--write-only", action="store_true")
    parser.add_argument("--trial", action="store_true", help="a try of the jobs themselves: writes into --out alone")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    if not given.write_only:
        run_all(given)
    page = given.out / PAGE.name if given.trial else PAGE
    write_page(given.out, page)
    print(f"{page} is written", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
