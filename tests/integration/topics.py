"""Topics that a test can use at once: made, and waited for until every partition is served."""

from __future__ import annotations

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
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
