"""Members of consumer groups for the tests: each polls in a thread of its own and remembers what it got."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import kafka
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from tests.integration.cluster import wait_until


class Member:
    """A confluent-kafka consumer that polls until it is stopped. `freeze` stops polling, and with it only that."""

    def __init__(self, bootstrap: str, group: str, topics: Sequence[str], **settings: Any) -> None:
        given = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **({"session.timeout.ms": 6000} if settings.get("group.protocol") != "consumer" else {}),
            **settings,
        }
        self.consumer = Consumer(given)
        self.assigned: set[tuple[str, int]] = set()
        self.records: list[tuple[str, int, int, bytes]] = []
        self.revocations: list[set[tuple[str, int]]] = []
        self.errors: list[Any] = []
        self._incremental = given.get("partition.assignment.strategy") == "cooperative-sticky" or (
            given.get("group.protocol") == "consumer"
        )
        self._frozen = threading.Event()
        self._stop = threading.Event()
        self._close = True
        self.consumer.subscribe(
            list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            if self._frozen.is_set():
                time.sleep(0.02)
                continue
            message = self.consumer.poll(0.1)
            if message is None:
                continue
            if message.error() is not None:
                self.errors.append(message.error())
            else:
                self.records.append((message.topic(), message.partition(), message.offset(), message.value()))
        if self._close:
            self.consumer.close()

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        found = {(p.topic, p.partition) for p in partitions}
        self.assigned = self.assigned | found if self._incremental else found

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {(p.topic, p.partition) for p in partitions}
        self.revocations.append(gone)
        self.assigned = self.assigned - gone

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._on_revoke(consumer, partitions)

    def freeze(self) -> None:
        self._frozen.set()

    def resume(self) -> None:
        self._frozen.clear()

    def stop(self) -> None:
        """Leaves the group."""
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    @property
    def values(self) -> list[bytes]:
        return [value for _, _, _, value in self.records]


@contextmanager
def members(*everyone: Member) -> Iterator[tuple[Member, ...]]:
    """Lends members and stops them, whatever happens."""
    try:
        yield everyone
    finally:
        for member in everyone:
            member.stop()


def shared_evenly(everyone: Sequence[Member], partitions: set[tuple[str, int]]) -> bool:
    """Whether every partition has one owner, and nobody has more than one more than another."""
    owned = [at for member in everyone for at in list(member.assigned)]
    sizes = [len(member.assigned) for member in everyone]
    return sorted(owned) == sorted(partitions) and max(sizes) - min(sizes) <= 1


def wait_for_shares(everyone: Sequence[Member], partitions: set[tuple[str, int]], seconds: float = 30) -> None:
    wait_until(
        lambda: shared_evenly(everyone, partitions),
        f"{len(partitions)} partitions shared by {len(everyone)} members: {[sorted(m.assigned) for m in everyone]}",
        seconds,
    )


def produce_values(bootstrap: str, topic: str, partitions: int, values: Sequence[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % partitions)
    assert producer.flush(30) == 0


def committed(bootstrap: str, group: str, topic: str, partitions: int) -> list[int]:
    """What the group has committed, by partition; -1001: nothing. A coordinator that moves is asked again."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})

    def ask() -> list[TopicPartition]:
        try:
            found: list[TopicPartition] = consumer.committed(
                [TopicPartition(topic, index) for index in range(partitions)], 30
            )
            return found
        except KafkaException:
            return []

    try:
        return [each.offset for each in wait_until(ask, f"the offsets of {group}")]
    finally:
        consumer.close()


@contextmanager
def polling(consumers: Sequence[kafka.KafkaConsumer]) -> Iterator[set[bytes]]:
    """The values that kafka-python's consumers read, each in a thread of its own while the context lasts.

    Each poll has time to finish a join: kafka-python 3.0 forgets one that a poll gave up waiting for, and with it its
    heartbeats.
    """
    found: set[bytes] = set()
    enough = threading.Event()

    def read(consumer: kafka.KafkaConsumer) -> None:
        while not enough.is_set():
            for records in consumer.poll(3000).values():
                found.update(record.value for record in records)

    with ThreadPoolExecutor(len(consumers)) as threads:
        reading = [threads.submit(read, consumer) for consumer in consumers]
        try:
            yield found
        finally:
            enough.set()
    for each in reading:
        each.result()
