"""What a job uses: topics, payloads, Kafka's Java tools, and the meter of a server's CPU, memory and disturbance."""

from __future__ import annotations

import os
import random
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.servers import Server
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.integration.java import kafka_jars

MIB = 1 << 20
PARTITIONS = 3
TOOL_SECONDS = 180
TRIAL = 0.1
# the flags of Kafka's own start scripts for its tools
TOOL_FLAGS = (
    *("-Xmx512M", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"),
    *("-XX:+ExplicitGCInvokesConcurrent", "-Dlog4j2.level=WARN"),
)
WORDS = ("order", "paid", "shipped", "user", "cart", "eu-west", "us-east", "price", "status", "ok", "retry")

Figures = dict[str, float]


@dataclass
class Run:
    """One run of a job: the server it goes to, how much of the job to do, and the meter of the server."""

    server: Server
    scale: float
    meter: Meter

    @property
    def bootstrap(self) -> str:
        return self.server.bootstrap

    def count(self, full: int) -> int:
        return max(1, int(full * self.scale))

    def named(self, full: int) -> int:
        """What a job's name says is all of it, but for a trial of the jobs themselves."""
        return full if self.scale >= TRIAL else self.count(full)


Job = Callable[[Run], Figures]


class Meter:
    """CPU of the server since `start`, and how busy others kept the machine meanwhile.

    The other side stands by with what its makers let it do then; that is no disturbance, but it is written down.
    """

    def __init__(self, server: Server, other: Server | None = None) -> None:
        self._server = server
        self._other = other
        self.start()

    def start(self) -> None:
        self._pids = self._server.cpu_pids
        self._idle_pids = self._other.cpu_pids if self._other else []
        self._used, self._idle = cpu_seconds(self._pids), cpu_seconds(self._idle_pids)
        self._own, self._machine = sum(os.times()[:4]), machine_seconds()

    def figures(self, mib: float | None) -> Figures:
        used = cpu_seconds(self._pids) - self._used
        brokers = [memory_mib(pid) for pid in self._server.broker_pids]
        found = {"server_cpu_s": used, "broker_rss_MiB": sum(brokers) / max(1, len(brokers))}
        if mib:
            found["cpu_s_per_GiB"] = used * 1024 / mib
        return {**found, **self.disturbance()}

    def disturbance(self) -> Figures:
        """Shares of the machine. What a job has started itself counts once it has ended."""
        used, idle = cpu_seconds(self._pids) - self._used, cpu_seconds(self._idle_pids) - self._idle
        own = sum(os.times()[:4]) - self._own
        busy, total = (now - then for now, then in zip(machine_seconds(), self._machine, strict=True))
        total = max(total, 0.01)
        return {"others_busy_share": (busy - used - idle - own) / total, "idle_side_share": idle / total}


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system time of processes so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def machine_seconds() -> tuple[float, float]:
    """(busy, all) CPU seconds of the machine so far."""
    user, nice, system, idle, waiting, *rest = map(int, Path("/proc/stat").read_text().split()[1:9])
    busy = user + nice + system + sum(rest)
    hertz = os.sysconf("SC_CLK_TCK")
    return busy / hertz, (busy + idle + waiting) / hertz


def memory_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def java(tool: str, *arguments: object) -> str:
    """What one of Kafka's own performance tools prints."""
    line = ["java", *TOOL_FLAGS, "-cp", kafka_jars(), f"org.apache.kafka.tools.{tool}", *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=TOOL_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{tool}: {done.stdout[-400:]} {done.stderr[-800:]}")
    return done.stdout


def settings(bootstrap: str, **more: str | int) -> dict[str, Any]:
    """librdkafka's settings: `linger_ms=5` stands for `linger.ms=5`."""
    always: dict[str, Any] = {"bootstrap.servers": bootstrap, "broker.address.family": "v4", "log_level": 3}
    return {**always, **{name.replace("_", "."): value for name, value in more.items()}}


def fresh(prefix: str) -> str:
    return f"bench-{prefix}-{uuid.uuid4().hex[:8]}"


def create(server: Server, name: str, partitions: int = PARTITIONS) -> AdminClient:
    """Make a topic with a replica on each broker (at most three) and wait until each partition has a leader."""
    admin = AdminClient(settings(server.bootstrap))
    # Its files go with it: what is not written back by then is no work for the disk during the next run.
    topic = NewTopic(name, partitions, min(3, server.brokers), config={"file.delete.delay.ms": "0"})
    admin.create_topics([topic], operation_timeout=60, request_timeout=90)[name].result()
    while not led(admin, name, partitions):
        time.sleep(0.005)
    return admin


def led(admin: AdminClient, name: str, partitions: int) -> bool:
    found = admin.list_topics(topic=name, timeout=30).topics[name].partitions
    return len(found) == partitions and all(place.leader >= 0 for place in found.values())


def delete(server: Server, name: str) -> None:
    admin = AdminClient(settings(server.bootstrap))
    admin.delete_topics([name])[name].result()


def held(server: Server, name: str) -> int:
    """How many records a topic holds, by its offsets; 0 if there is no such topic."""
    consumer = Consumer(settings(server.bootstrap, group_id="bench-count"))
    try:
        topic = consumer.list_topics(timeout=30).topics.get(name)
        places = [TopicPartition(name, number) for number in (topic.partitions if topic else ())]
        ends = [consumer.get_watermark_offsets(place, timeout=30) for place in places]
        return sum(high - low for low, high in ends)
    finally:
        consumer.close()


def expect_held(server: Server, name: str, count: int) -> None:
    """A job that lost records gives no figures."""
    if (found := held(server, name)) < count:
        raise RuntimeError(f"{name} holds {found} of {count} records")


def settle(server: Server, *, forget: bool = False) -> None:
    """Nothing that a side has written is left to be written back; with `forget` it is no longer in memory either."""
    for path in _segments(server):
        with suppress(FileNotFoundError), path.open("rb") as file:
            os.fdatasync(file.fileno())
            if forget:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_through(server: Server, topic: str) -> None:
    """A topic that was written a while ago is in memory again."""
    for path in _segments(server):
        if path.parent.name.startswith(f"{topic}-"):
            with path.open("rb", buffering=0) as file:
                while file.read(MIB):
                    pass


def _segments(server: Server) -> Iterator[Path]:
    """All there are; those of topics that were deleted may vanish meanwhile."""
    for folder, _, names in os.walk(server.folder):
        yield from (Path(folder, name) for name in names if name.endswith(".log"))


def payloads(size: int) -> Path:
    """A file of 10,000 JSON records of exactly `size` bytes, the same on every machine (zlib -1: 2.5 to 1)."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace-bench"
    path = base / f"payload-{size}.txt"
    if not path.exists():
        base.mkdir(parents=True, exist_ok=True)
        rand = random.Random(size)
        with path.open("w") as out:
            for number in range(10_000):
                line = f'{{"id":{rand.getrandbits(40)},"seq":{number}'
                while len(line) < size:
                    line += f',"{rand.choice(WORDS)}":"{rand.choice(WORDS)}-{rand.getrandbits(32):x}"'
                out.write(line[: size - 1] + "}\n")
    return path


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
