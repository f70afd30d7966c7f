"""A user produces and consumes from a pod with a Kafka client that nobody here wrote."""

from __future__ import annotations

from tests.e2e.headrace import Load, Release, topic
from tests.e2e.kubectl import Namespace


def test_produce_and_consume_from_a_pod(client: Namespace, release: Release, load: Load) -> None:
    client.apply(topic("events", release.name, partitions=6))
    client.wait_condition("hrt", "events", "Ready", seconds=60)
    with load.on("events"):
        pass
    described = release.headrace("groups", "describe", "events-readers")
    assert "events" in described


def test_the_native_command_sees_what_a_kafka_client_wrote(client: Namespace, release: Release, load: Load) -> None:
    found = release.headrace("consume", "events", "--from", "beginning", "--count", "10")
    assert all(line.isdigit() for line in found.split())
    assert len(found.split()) == 10
