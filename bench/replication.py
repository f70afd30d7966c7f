"""How fast a cluster of three brokers makes partitions, and how fast a second controller takes over with many of them.

    python bench/replication.py [--partitions 1000] [--held 10000] [--data DIR]

Starts `headrace dev --brokers 3` on loopback and prints seconds. Controller failover is measured from the end of the
dead controller's lease to the first change that its successor carries out.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.integration.cluster import Cluster

SESSION_SECONDS = 6.0
ACTIVE = re.compile(r"controller (\d+) is active with epoch (\d+)")


def create(admin: AdminClient, name: str, partitions: int) -> float:
    """Seconds until every partition of a new topic answers."""
    began = time.monotonic()
    admin.create_topics([NewTopic(name, partitions, 3)], operation_timeout=60)[name].result(120)
    left = set(range(partitions))
    while left:
        asked = {TopicPartition(name, index): OffsetSpec.latest() for index in left}
        left = {place.partition for place, found in admin.list_offsets(asked).items() if found.exception(60)}
    return time.monotonic() - began


def active_controller(data: Path) -> int:
    logs = [(data / "logs" / f"controller-{i}.log").read_text() for i in range(2)]
    return max((int(m[2]), int(m[1])) for text in logs for m in ACTIVE.finditer(text))[1]


def fail_over(cluster: Cluster, admin: AdminClient) -> float:
    """Seconds from the end of the killed controller's lease until its successor has made a topic."""
    victim = active_controller(cluster.data)
    os.kill(cluster.process("controller", victim)["pid"], signal.SIGKILL)
    killed = time.monotonic()
    admin.create_topics([NewTopic("after", 1, 3)], operation_timeout=60)["after"].result(120)
    assert active_controller(cluster.data) != victim
    return time.monotonic() - killed - SESSION_SECONDS


def cpu_seconds(pid: int) -> float:
    """Processor time a process has taken, in the kernel too."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle_share(cluster: Cluster, seconds: float = 10.0) -> float:
    """The share of a core that a broker takes while nobody writes: what holding partitions costs by itself."""
    pids = [cluster.process("broker", i)["pid"] for i in range(3)]
    before = sum(map(cpu_seconds, pids))
    time.sleep(seconds)
    return (sum(map(cpu_seconds, pids)) - before) / seconds / len(pids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--held", type=int, default=10_000)
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.data) as folder:
        settings = {"broker.session.timeout.ms": str(int(SESSION_SECONDS * 1000))}
        cluster = Cluster(Path(folder) / "data", brokers=3, settings=settings).start()
        try:
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "socket.timeout.ms": 60_000})
            seconds = create(admin, "measured", given.partitions)
            print(f"{given.partitions} partitions with 3 replicas are usable after {seconds:.2f} s", flush=True)
            held = given.partitions
            while held < given.held:
                more = min(1000, given.held - held)
                seconds = create(admin, f"held-{held}", more)
                held += more
                print(f"{held} partitions are held; the last {more} were usable after {seconds:.2f} s", flush=True)
            time.sleep(5)
            print(f"an idle broker takes {idle_share(cluster):.1%} of a core", flush=True)
            print(f"a controller takes over {held} partitions {fail_over(cluster, admin):.2f} s after the lease's end")
        finally:
            cluster.kill_all()


if __name__ == "__main__":
    main()
