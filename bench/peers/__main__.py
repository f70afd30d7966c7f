"""Runs the same jobs on Apache Kafka and on Headrace, in turn, and compares the medians with what we want to reach.

    python -m bench.peers [PATTERN ...] [--brokers 1|3] [--rounds 3] [--minutes 20] [--scale 1.0] [--out DIR] [--list]
    python -m bench.peers 'produce/1024B/*' 'latency/paced/*'

Both sides are started here, on loopback, and warmed with the same jobs first: a cold JVM is four times slower. Every
job has its first round before any has its second one. A round in which others used more than --busy of the machine
does not count and is made again, up to --rounds times for a job, until --minutes are over. Results, written after every
round: in --out (bench/results) results-N.json and ratios-N.svg, N being the number of brokers; at the end a table.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers import measuring, responses, throughput
from bench.peers.machine import machine
from bench.peers.measuring import Figures, Job, Meter, Run
from bench.peers.report import Comparison, Results, heading, line
from bench.peers.servers import Headrace, Kafka, Server
from tests.integration.java import JavaMissing, kafka_jars

JOBS: dict[str, Job] = {**throughput.JOBS, **responses.JOBS}
WARM_UP = ("produce/1024B/acks=1/batch=16384/none", "produce/100B/acks=all/batch=131072/lz4", "consume/1024B/none")
WARM_UP_ROUNDS = 2
ONCE = ("memory/*",)
"""Jobs that take long and hardly differ from one round to the next: one round that counts is enough."""

RUN_SECONDS = 240
CALM_SECONDS = 2.0


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """A job that hangs must not take the others' time."""

    def expired(*_: object) -> None:
        raise TimeoutError(f"not done within {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def once(name: str, server: Server, other: Server, scale: float) -> Figures | str:
    """The figures of one run, or why there are none."""
    began = time.monotonic()
    try:
        with time_limit(RUN_SECONDS):
            figures = JOBS[name](Run(server, scale, Meter(server, other)))
    except Exception as error:  # a job that fails on one side must not end the comparison
        print(f"{name} on {server.name} failed: {error}", file=sys.stderr, flush=True)
        words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)  # no paths on the page
        return f"{type(error).__name__}: {words[:200]}"
    print(f"{name} on {server.name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    return figures


def warm_up(sides: list[Server], scale: float, deadline: float) -> None:
    for number in range(WARM_UP_ROUNDS):
        for name in WARM_UP:
            if time.monotonic() > deadline:
                return
            print(f"warming up, {number + 1} of {WARM_UP_ROUNDS}", file=sys.stderr, flush=True)
            for server, other in (sides, sides[::-1]):
                once(name, server, other, scale)


def compare(results: Results, sides: list[Server], given: argparse.Namespace, deadline: float) -> None:
    """Round by round over all jobs, so that whatever time there is goes to all of them alike."""
    took: dict[str, float] = {}
    for _ in range(2 * given.rounds):
        for found in results.jobs:
            wanted = 1 if any(fnmatch.fnmatch(found.job, pattern) for pattern in ONCE) else given.rounds
            now = time.monotonic()
            if found.calm_rounds >= wanted or now + took.get(found.job, 0.0) > deadline:
                continue
            for server, other in (sides, sides[::-1]):
                found.runs[server.name].append(once(found.job, server, other, given.scale))
            took[found.job] = time.monotonic() - now
            results.save(given.out)
            if found.last_is_disturbed:
                time.sleep(CALM_SECONDS)


def chosen(given: argparse.Namespace) -> list[str]:
    return [name for name in JOBS if any(fnmatch.fnmatch(name, pattern) for pattern in given.patterns)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", default=["*"], metavar="PATTERN")
    parser.add_argument("--brokers", type=int, default=1, choices=(1, 3))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run that would not end by then")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the records of every job")
    parser.add_argument("--busy", type=float, default=0.1, help="share of the machine others may use in a run")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--cold", action="store_true", help="skip the warm-up (for jobs that start their own clusters)")
    parser.add_argument("--list", action="store_true", help="print the jobs and end")
    given = parser.parse_args()
    deadline = time.monotonic() + given.minutes * 60
    names = chosen(given)
    if given.list:
        print(*names, sep="\n")
        return 0
    if not names:
        print(f"no job matches {' '.join(given.patterns)}; --list shows them", file=sys.stderr)
        return 2
    try:
        kafka_jars()
    except JavaMissing as reason:
        print(f"A comparison with Apache Kafka needs Java 17 and Maven. {reason}", file=sys.stderr)
        return 2
    # Python keeps what it compiles, as it does for users, and as our images have it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    given.out.mkdir(parents=True, exist_ok=True)
    results = Results(
        given.brokers, given.scale, machine(), [Comparison(name, given.brokers, given.busy) for name in names]
    )
    with tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as folder:
        sides: list[Server] = [
            Kafka(Path(folder) / "kafka", given.brokers),
            Headrace(Path(folder) / "headrace", given.brokers),
        ]
        started: list[Server] = []
        try:
            for server in sides:
                started.append(server)
                server.start()
            if not given.cold:
                warm_up(sides, given.scale, deadline - given.minutes * 60 * 3 / 4)
            for server in sides:
                measuring.settle(server)
            compare(results, sides, given, deadline)
        finally:
            for server in started:
                server.stop()
            results.save(given.out)
    results.draw(given.out)
    print(heading(), *results.failures(), *map(line, results.rows()), sep="\n")
    missed = sum(row.met is False for row in results.rows())
    print(f"\ntargets missed: {missed}; {given.out}/results-{given.brokers}.json has every run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
