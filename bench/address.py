"""Any server that speaks Kafka's protocol, by its address: the jobs of `bench.peers` on it alone.

    python -m bench.address [--bootstrap HOST:PORT] [PATTERN ...] [--pids PID[,PID]] [--rounds 3] [--scale 1.0] [--list]
    python -m bench.address --bootstrap 127.0.0.1:9092 'produce/1024B/*' 'latency/*'

Jobs that start or kill servers, or touch their files, are those of `bench.peers` only. With the server's --pids its
processor time and memory are given too, and what part of the machine others used: throw a run with over 0.1 away.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from bench.peers import responses, throughput
from bench.peers.measuring import Figures, Job, Meter, Run
from bench.peers.report import OTHERS
from bench.peers.servers import Server, named, runs
from bench.repeated import Job as Repeated
from bench.repeated import run
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from tests.integration.java import JavaMissing

OURS_ONLY = ("cold/1024B", "start", "memory/1000", "memory/10000", "failover")
ANSWER_SECONDS = 10.0


class Elsewhere(Server):
    """Servers that somebody else has started, and whose files are not ours to touch."""

    name = "server"

    def __init__(self, bootstrap: str, pids: list[int]) -> None:
        super().__init__(Path(os.devnull), 0)
        self.bootstrap = bootstrap
        self._pids = pids

    def start(self) -> float:
        """Finds out how many brokers there are."""
        if dead := [str(pid) for pid in self._pids if not runs(pid)]:
            raise SystemExit(f"no such process: {', '.join(dead)}")
        try:
            self.brokers = named(AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}), ANSWER_SECONDS)
        except KafkaException as error:
            raise SystemExit(f"{self.bootstrap} does not answer as a Kafka broker: {error.args[0].str()}") from None
        return 0.0

    def stop(self) -> None: ...

    def kill_broker(self, number: int) -> None:
        raise NotImplementedError("it is not ours to kill")

    @property
    def cpu_pids(self) -> list[int]:
        return self._pids

    broker_pids = cpu_pids


def on(server: Server, job: Job) -> Repeated:
    def measure(scale: float) -> Figures:
        if not server.brokers:
            server.start()
        try:
            figures = job(Run(server, scale, Meter(server)))
        except JavaMissing as reason:
            raise SystemExit(f"Kafka's own performance tools need Java 17 and Maven. {reason}") from None
        unknown = ("idle_side_share",) if server.cpu_pids else ("cpu_s", "rss_MiB", OTHERS, "idle_side_share")
        return {name: value for name, value in figures.items() if not any(part in name for part in unknown)}

    return measure


def main() -> None:
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT", help="default: %(default)s")
    where.add_argument("--pids", type=lambda text: [int(pid) for pid in text.split(",")], default=[])
    given, _ = where.parse_known_args()
    server = Elsewhere(given.bootstrap, given.pids)
    jobs = {**throughput.JOBS, **responses.JOBS}
    run({name: on(server, job) for name, job in jobs.items() if name not in OURS_ONLY}, __doc__, where)


if __name__ == "__main__":
    main()
