"""Runs the same jobs on Apache Kafka and on Headrace, in turn, and compares the medians with what we want to reach.

    python -m bench.peers [PATTERN ...] [--brokers 1|3] [--rounds 3] [--scale 1.0] [--out DIR] [--list]
    python -m bench.peers 'produce/1024B/*' 'latency/paced/*'

Both sides are started here, on loopback, and warmed with the same jobs first: a cold JVM is four times slower. A run
during which others used more than --busy of the machine is repeated up to twice and then marked with a `!`.
Results: a table, and in --out (bench/results) results.json and ratios.svg.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.peers import responses, throughput
from bench.peers.measuring import Figures, Job, Meter, Run
from bench.peers.report import Comparison, draw, heading, line
from bench.peers.servers import Headrace, Kafka, Server
from tests.integration.java import KAFKA_VERSION, JavaMissing, kafka_jars

from headrace.storage import log

COMPILED = not (log.__file__ or "").endswith(".py")
JOBS: dict[str, Job] = {**throughput.JOBS, **responses.JOBS}
WARM_UP = ("produce/1024B/acks=1/batch=16384/none", "produce/100B/acks=all/batch=131072/lz4", "consume/1024B/none")
WARM_UP_ROUNDS = 2
TRIES = 3
CALM_SECONDS = 5.0


def once(job: Job, server: Server, given: argparse.Namespace) -> Figures | str:
    """The figures of one run, or why there are none; a disturbed run is repeated."""
    for attempt in range(TRIES):
        try:
            figures = job(Run(server, given.scale, Meter(server)))
        except Exception as error:  # a job that fails on one side must not end the comparison
            return f"{type(error).__name__}: {str(error)[:200]}"
        if figures.get("others_busy_share", 0.0) <= given.busy or attempt == TRIES - 1:
            return figures
        time.sleep(CALM_SECONDS)
    raise AssertionError("unreachable")


def warm_up(sides: list[Server], given: argparse.Namespace) -> None:
    for number in range(WARM_UP_ROUNDS):
        for name in WARM_UP:
            for server in sides:
                print(f"warming {server.name} ({number + 1} of {WARM_UP_ROUNDS}): {name}", file=sys.stderr, flush=True)
                JOBS[name](Run(server, given.scale, Meter(server)))


def compare(names: list[str], sides: list[Server], given: argparse.Namespace) -> list[Comparison]:
    done = []
    print(heading(), flush=True)
    for name in names:
        runs: dict[str, list[Figures | str]] = {server.name: [] for server in sides}
        for _ in range(given.rounds):
            for server in sides:
                runs[server.name].append(once(JOBS[name], server, given))
        found = Comparison(name, given.brokers, runs, given.busy)
        for text in found.failures():
            print(text, flush=True)
        for row in found.rows():
            print(line(row), flush=True)
        done.append(found)
    return done


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((text.split(":")[1].strip() for text in lines if "model name" in text), "?")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    versions = {"python": platform.python_version(), "kafka": KAFKA_VERSION, "headrace": commit, "compiled": COMPILED}
    return {"cpu": cpu, "cores": os.cpu_count(), "load": os.getloadavg()[0], **versions}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", default=["*"], metavar="PATTERN")
    parser.add_argument("--brokers", type=int, default=1, choices=(1, 3))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the records of every job")
    parser.add_argument("--busy", type=float, default=0.1, help="share of the machine others may use in a run")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--cold", action="store_true", help="skip the warm-up (for jobs that start their own clusters)")
    parser.add_argument("--list", action="store_true", help="print the jobs and end")
    given = parser.parse_args()
    names = [name for name in JOBS if any(fnmatch.fnmatch(name, pattern) for pattern in given.patterns)]
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
    before = machine()
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
                warm_up(sides, given)
            results = compare(names, sides, given)
        finally:
            for server in started:
                server.stop()
    given.out.mkdir(parents=True, exist_ok=True)
    shape = {"brokers": given.brokers, "rounds": given.rounds, "scale": given.scale, "machine": before}
    text = json.dumps({**shape, "jobs": [found.as_json() for found in results]}, indent=1)
    (given.out / f"results-{given.brokers}.json").write_text(text + "\n")
    draw(results, given.out / f"ratios-{given.brokers}.svg")
    missed = sum(row.met is False for found in results for row in found.rows())
    print(f"\ntargets missed: {missed}; {given.out}/results-{given.brokers}.json has every run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
