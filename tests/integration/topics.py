"""Topics that a test can use at once: made, and waited for until every partition is served."""

from __future__ import annotations

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from tests.integration.bouncing import in_sync
from tests.integration.cluster import wait_until


def create_topic(admin: AdminClient, name: str, partitions: int = 1, **config: str) -> str:
    """Create a topic and return its name when every partition has a leader that serves it."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(30)

    def led() -> bool:
        found = admin.list_topics(name, 10).topics[name]
        return len(found.partitions) == partitions and all(part.leader >= 0 for part in found.partitions.values())

    def served() -> bool:
        asked = {TopicPartition(name, number): OffsetSpec.latest() for number in range(partitions)}
        return all(future.exception(30) is None for future in admin.list_offsets(asked).values())

    wait_until(led, f"leaders of {partitions} partitions of {name}")
    wait_until(served, f"offsets of {partitions} partitions of {name}")
    return name


def make_topic(admin: AdminClient, name: str, *assignment: list[int], **config: str) -> str:
    """Create a topic with a partition for each list of replicas, and return its name when all are in sync."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    topic = NewTopic(name, len(assignment), replica_assignment=list(assignment), config=settings)
    admin.create_topics([topic], operation_timeout=30)[name].result(60)
    wait_until(lambda: in_sync(admin, name, len(assignment[0])), "all replicas of the new topic in sync")
    return name


def write(bootstrap: str, topic: str, count: int, size: int = 20, first: int = 0, **config: object) -> None:
    """Writes numbered records with acks=all, each acknowledged before this returns."""
    errors: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "socket.timeout.ms": 2000,
            "request.timeout.ms": 2000,
            **{key.replace("_", "."): value for key, value in config.items()},
        }
    )
    for number in range(first, first + count):
        value = (b"%d " % number).ljust(size, b".")
        producer.produce(topic, value, partition=0, on_delivery=lambda e, _: errors.append(e) if e else None)
        producer.poll(0)
    assert producer.flush(60) == 0, "not acknowledged in time"
    assert not errors, errors[:3]


def replicas_of(admin: AdminClient, topic: str) -> list[int]:
    return list(admin.list_topics(topic, 10).topics[topic].partitions[0].replicas)
