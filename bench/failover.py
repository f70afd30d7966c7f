"""How long nothing is acknowledged when the leader of three brokers says farewell (SIGTERM) or is killed (kill -9).

    python bench/failover.py [--rounds 5] [--batches 100000] [--data DIR]

Starts `headrace dev --brokers 3` on loopback with a lease of 2 s and min.insync.replicas 2, lets the logs of three
partitions grow by `--batches` each, and prints for each round the longest time without an acks=all acknowledgement in
any of them. The targets: 500 ms after a farewell, the lease and one second after a kill.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.integration.bouncing import Bouncer, Load, check_records, in_sync, leader_of
from tests.integration.cluster import Cluster, wait_until

PARTITIONS = 3
SESSION_SECONDS = 2.0
SETTINGS = {
    "broker.session.timeout.ms": str(int(SESSION_SECONDS * 1000)),
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "4000",
    "auto.leader.rebalance.enable": "false",
}
REQUEST_TIMEOUT_MS = 30_000
"""The client's default. One that gives up just before the lease ends hears once more of the old leader, and then waits
for its own next look, once a second."""
TARGETS = {signal.SIGTERM: 0.5, signal.SIGKILL: SESSION_SECONDS + 1.0}


def grow(bootstrap: str, topic: str, batches: int) -> None:
    """Writes batches of one record each, which the leader alone acknowledges: that is faster."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": 1, "batch.num.messages": 1, "linger.ms": 0, "log_level": 0}
    )
    for number in range(batches):
        for partition in range(PARTITIONS):
            while True:
                try:
                    producer.produce(topic, b"grown %d" % number, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(120) == 0


def fail_over(bouncer: Bouncer, admin: AdminClient, topic: str, how: signal.Signals, load: Load) -> float:
    """Takes the leader of the first partition away, brings it back, and returns the longest gap in between."""
    leader = leader_of(admin, topic)
    began = time.monotonic()
    bouncer.signal("broker", leader, how)
    wait_until(lambda: load.acked_since(began), f"writes after {how.name} of broker {leader}", 30)
    bouncer.wait_gone("broker", leader)
    bouncer.start("broker", leader)
    wait_until(lambda: in_sync(admin, topic), "everyone in sync", 60)
    back = time.monotonic()
    wait_until(lambda: load.acked_since(back), "writes with everyone back", 30)
    return load.longest_gap(began)


def measure(cluster: Cluster, rounds: int, batches: int) -> bool:
    """Prints the gaps; whether all of them were within their targets."""
    bouncer, admin = Bouncer(cluster), AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    good = True
    try:
        admin.create_topics([NewTopic("bounced", PARTITIONS, 3)], operation_timeout=30)["bounced"].result(60)
        grow(cluster.bootstrap, "bounced", batches)
        wait_until(lambda: in_sync(admin, "bounced"), "everyone in sync", 60)
        load = Load(cluster.bootstrap, "bounced", PARTITIONS, request_timeout_ms=REQUEST_TIMEOUT_MS)
        try:
            wait_until(lambda: load.acked_since(0), "first acknowledgements")
            for how, target in list(TARGETS.items()) * rounds:
                seconds = fail_over(bouncer, admin, "bounced", how, load)
                good = good and seconds < target
                sys.stdout.write(f"{how.name:8} {seconds * 1000:6.0f} ms, the target is {target * 1000:.0f}\n")
                sys.stdout.flush()
        finally:
            load.stop()
        assert not load.failures, load.failures[:3]
        sys.stdout.write(f"{check_records(load, cluster.bootstrap)} acknowledged records are there\n")
    finally:
        bouncer.close()
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=100_000)
    parser.add_argument("--data", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        cluster = Cluster((args.data or Path(made)) / "three", brokers=3, settings=SETTINGS).start()
        try:
            return 0 if measure(cluster, args.rounds, args.batches) else 1
        finally:
            cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
