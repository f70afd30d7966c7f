"""A user produces and consumes from a pod with a Kafka client that nobody here wrote."""

from __future__ import annotations

from tests.e2e.headrace import Load, Release, client_pod, is_ready, topic
from tests.e2e.kubectl import Namespace, wait_for


def test_produce_and_consume_from_a_pod(client: Namespace, release: Release, load: Load) -> None:
    client.apply(topic("events", release.name, partitions=6))
    client.wait_condition("hrt", "events", "Ready", seconds=240)
    with load.on("events"):
        pass
    described = release.headrace("groups", "describe", "events-readers")
    assert "events" in described


def test_the_native_command_sees_what_a_kafka_client_wrote(client: Namespace, release: Release, load: Load) -> None:
    found = release.headrace("consume", "events", "--from", "beginning", "--count", "10")
    assert all(line.isdigit() for line in found.split())
    assert len(found.split()) == 10


def test_produce_and_consume_from_outside_by_a_node_port(client: Namespace, release: Release) -> None:
    """From the node's own network, where the names of pods mean nothing: only addresses outside lead anywhere."""
    client.apply(topic("outside", release.name, partitions=6, deletionPolicy="Delete"))
    client.apply(client_pod("outside", hostNetwork=True, dnsPolicy="Default"))
    client.wait_condition("hrt", "outside", "Ready", seconds=240)
    wait_for("the pod outside runs", lambda: is_ready(client.get("pod", "outside")), 240)
    address = wait_for("an address outside", lambda: release.cluster()["status"]["bootstrap"].get("external"), 240)
    load = Load(client, address, "outside")
    with load.on("outside"):
        pass
    client.delete("pod", "outside", "--wait=false")
    client.delete("hrt", "outside")
