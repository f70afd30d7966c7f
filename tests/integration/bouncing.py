"""Processes of a cluster that are stopped, killed, paused and started again one by one, and producers that go on."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, TopicMetadata
from tests.integration.cluster import Cluster, wait_until

ACTIVE = re.compile(r"controller (\d+) is active with epoch (\d+)")


def say(text: str) -> None:
    """A figure for whoever runs the tests with -s; nothing is asserted on it."""
    sys.stdout.write(f"{text}\n")


class Bouncer:
    """Signals members of a cluster by role and id, also after they were started again."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._pids = {(p["role"], p["id"]): int(p["pid"]) for p in cluster.processes}
        self._children: dict[tuple[str, int], subprocess.Popen[bytes]] = {}

    def pid(self, role: str, number: int) -> int:
        return self._pids[role, number]

    def signal(self, role: str, number: int, how: signal.Signals) -> None:
        os.kill(self._pids[role, number], how)

    def wait_gone(self, role: str, number: int) -> None:
        pid = self._pids[role, number]
        child = self._children.pop((role, number), None)

        def gone() -> bool:
            if child is not None and child.poll() is not None:
                return True
            try:
                return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                return True

        wait_until(gone, f"the end of {role} {number}")

    def start(self, role: str, number: int) -> None:
        """Starts it again with the settings it had; returns when it is ready."""
        name = f"{role}-{number}"
        ready = self.cluster.data / f"{name}.ready"
        ready.unlink(missing_ok=True)
        config = self.cluster.process(role, number)["config"]
        with (self.cluster.data / "logs" / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "headrace.cli", role, "--config", config, "--ready-file", str(ready)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._children[role, number] = child
        self._pids[role, number] = child.pid
        wait_until(lambda: ready.exists() or child.poll() is not None, f"{name} to be ready", 60)
        assert child.poll() is None, f"{name} ended at its start:\n{self.log(role, number)[-3000:]}"

    def log(self, role: str, number: int) -> str:
        return (self.cluster.data / "logs" / f"{role}-{number}.log").read_text(errors="replace")

    def active_controller(self) -> int:
        found = [
            (int(match[2]), int(match[1])) for i in range(2) for match in ACTIVE.finditer(self.log("controller", i))
        ]
        return max(found)[1]

    def close(self) -> None:
        """Ends what was started again, after all brokers: a broker that stops wants to hand over to a controller."""
        brokers = [number for role, number in self._pids if role == "broker"]
        for number in brokers:
            with suppress(ProcessLookupError):
                self.signal("broker", number, signal.SIGCONT)
                self.signal("broker", number, signal.SIGTERM)
        for number in brokers:
            self.wait_gone("broker", number)
        for child in self._children.values():
            if child.poll() is None:
                child.send_signal(signal.SIGCONT)
                child.terminate()
        for child in self._children.values():
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


class Load:
    """Producers that write numbered records to every partition at a steady rate, and remember what was acknowledged."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, pause: float = 0.01, request_timeout_ms: int = 3000
    ) -> None:
        self.topic = topic
        self.partitions = partitions
        self.acked: dict[str, dict[int, dict[int, bytes]]] = {}
        """By kind of producer, partition and offset."""
        self.last_ack = defaultdict(float)
        self.acked_somewhere: list[tuple[int, bytes]] = []
        """Partition and value of records that were acknowledged without an offset."""
        self.acks: dict[int, list[float]] = {p: [] for p in range(partitions)}
        """When the idempotent producer heard of each of its records, by partition."""
        self.failures: list[KafkaError] = []
        self._stop = threading.Event()
        common = {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 0,
            "message.timeout.ms": 120_000,
            # A paused broker keeps its connections: only a timeout sends the client elsewhere. Longer than a lease: a
            # client that gives up just before the new leader is there looks for it again only once a second.
            "socket.timeout.ms": request_timeout_ms,
            "request.timeout.ms": request_timeout_ms,
            "retry.backoff.ms": 20,
            "topic.metadata.refresh.fast.interval.ms": 20,
            # It asks who leads now each time it fails to reconnect: with longer pauses that would be what is measured.
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.max.ms": 100,
            "log_level": 0,
        }
        kinds = {
            "idempotent": {"enable.idempotence": True},
            "plain": {"max.in.flight": 1, "retries": 1_000_000},
        }
        self._threads = [
            threading.Thread(target=self._run, args=(kind, Producer({**common, **config}), pause))
            for kind, config in kinds.items()
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, kind: str, producer: Producer, pause: float) -> None:
        acked = self.acked[kind] = {p: {} for p in range(self.partitions)}

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failures.append(error)
                return
            if message.offset() is None or message.offset() < 0:
                # The broker knew the record from before the retry, and no longer where it is.
                self.acked_somewhere.append((message.partition(), message.value()))
            else:
                acked[message.partition()][message.offset()] = message.value()
            now = self.last_ack[kind, message.partition()] = time.monotonic()
            if kind == "idempotent":
                self.acks[message.partition()].append(now)

        number = 0
        while not self._stop.is_set():
            for partition in range(self.partitions):
                producer.produce(
                    self.topic, b"%s %d" % (kind.encode(), number), partition=partition, on_delivery=delivered
                )
            number += 1
            producer.poll(pause)
        producer.flush(60)

    def acked_since(self, moment: float) -> float | None:
        """The moment at which every partition has had an acknowledgement since; None: not yet."""
        latest = [self.last_ack["idempotent", p] for p in range(self.partitions)]
        return max(latest) if min(latest) > moment else None

    def longest_gap(self, begin: float) -> float:
        """The longest time without an acknowledgement in any partition since shortly before `begin`."""
        recent = ([at for at in list(times) if at > begin - 0.2] for times in self.acks.values())
        return max((later - earlier for times in recent for earlier, later in itertools.pairwise(times)), default=0.0)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)


def read_all(bootstrap: str, topic: str, partition: int) -> dict[int, bytes]:
    """Everything a consumer sees in a partition, by offset, in the order it came."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "check", "enable.auto.commit": False})
    try:
        low, high = wait_until(lambda: _watermarks(consumer, TopicPartition(topic, partition)), "the leader's answer")
        consumer.assign([TopicPartition(topic, partition, low)])
        found: dict[int, bytes] = {}
        deadline = time.monotonic() + 60
        while (not found or max(found) < high - 1) and high > low:
            assert time.monotonic() < deadline, f"{topic}-{partition}: only {len(found)} of {high - low} records came"
            for message in consumer.consume(1000, 1.0):
                assert message.error() is None, message.error()
                assert message.offset() not in found
                found[message.offset()] = message.value()
        return found
    finally:
        consumer.close()


def _watermarks(consumer: Consumer, place: TopicPartition) -> tuple[int, int] | None:
    """None when the leader has just moved: librdkafka asks the broker that its metadata named, and no other."""
    try:
        return consumer.get_watermark_offsets(place, 30)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
            raise
        consumer.list_topics(place.topic, 30)
        return None


def check_records(load: Load, bootstrap: str) -> int:
    """Every acknowledged record is where its producer was told; an idempotent producer's are in order and once.

    A plain producer's single request in flight is one for each broker, so the order of its records is not promised when
    the leader moves: the next batch may reach the new leader before the one that the old leader refused.
    """
    count = 0
    for partition in range(load.partitions):
        found = read_all(bootstrap, load.topic, partition)
        assert list(found) == list(range(len(found))), "offsets without gaps, in order"
        assert {value for at, value in load.acked_somewhere if at == partition} <= set(found.values())
        for kind, acked in load.acked.items():
            for offset, value in acked[partition].items():
                assert found.get(offset) == value, f"{load.topic}-{partition} {kind}: acknowledged {offset} is lost"
            count += len(acked[partition])
            numbers = [int(v.split()[1]) for v in found.values() if v.startswith(kind.encode())]
            if kind == "idempotent":
                assert numbers == sorted(set(numbers)), "each once, in order"
    return count


def described(admin: AdminClient, topic: str) -> TopicMetadata | None:
    """A topic as some broker describes it; None when that broker went away meanwhile."""
    try:
        return admin.list_topics(topic, 10).topics[topic]
    except KafkaException:
        return None


def in_sync(admin: AdminClient, topic: str, replicas: int = 3) -> bool:
    found = described(admin, topic)
    return found is not None and all(len(p.isrs) == replicas and p.leader >= 0 for p in found.partitions.values())


def leader_of(admin: AdminClient, topic: str, partition: int = 0) -> int:
    """The leader's id; -1 when there is none, or the broker that was asked is just going away."""
    found = described(admin, topic)
    return -1 if found is None else int(found.partitions[partition].leader)


def log_bytes(cluster: Cluster, broker: int, topic: str, partition: int) -> bytes:
    """All segments of a replica, one after the other."""
    folder = cluster.data / f"broker-{broker}" / f"{topic}-{partition}"
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))
