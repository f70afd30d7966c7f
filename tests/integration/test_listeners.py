"""Two ways in: whoever comes by a listener is told the addresses of that listener, of brokers and coordinators."""

from __future__ import annotations

import asyncio
import json
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.integration.cluster import command, free_port, wait_until

from headrace.registry.local_etcd import LocalEtcd
from headrace.wire.client import Client
from headrace.wire.picture import FIRST_COORDINATOR_NODE
from headrace.wire.protocol import ApiKey

INSIDE, OUTSIDE = "127.0.0.1", "localhost"
"""Both are this machine; by the name a client shows which address it was given."""
BROKERS = 2


@contextmanager
def process(directory: Path, role: str, number: int, **settings: str) -> Iterator[dict[str, str]]:
    """One service from a file of settings, until the block ends; what it says of where it is."""
    given = {"node.id": str(number), "grpc.listener": f"{INSIDE}:0", "metrics.port": "0"}
    given |= {name.replace("_", "."): value for name, value in settings.items()}
    file, ready = directory / f"{role}-{number}.properties", directory / f"{role}-{number}.ready"
    file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    line = [*command(), role, "--config", str(file), "--ready-file", str(ready)]
    with file.with_suffix(".log").open("wb") as log:
        started = subprocess.Popen(line, stdout=log, stderr=log)
    try:
        # A coordinator waits for brokers; nobody waits for a coordinator.
        wait_until(lambda: ready.exists() or started.poll() is not None, f"{role} {number} is ready", 60)
        assert started.poll() is None, file.with_suffix(".log").read_text()
        yield json.loads(ready.read_text())
    finally:
        started.terminate()
        try:
            started.wait(30)
        finally:
            started.kill()


@pytest.fixture(scope="module")
def ways_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[int, int]]]:
    """A cluster whose brokers and coordinator have an inside and an outside listener: ports by node of each."""
    directory = tmp_path_factory.mktemp("listeners")
    first = free_port()
    ports: dict[str, dict[int, int]] = {OUTSIDE: {}, INSIDE: {}}
    etcd = LocalEtcd(directory / "etcd", fsync=False)
    etcd.start()
    with ExitStack() as stack:
        stack.callback(etcd.stop)
        shared = {"etcd_endpoints": etcd.endpoint, "offsets_topic_replication_factor": "1"}
        metadata = stack.enter_context(process(directory, "metadata", 0, **shared))
        shared |= {"metadata_servers": metadata["grpc"], "group_initial_rebalance_delay_ms": "0"}
        stack.enter_context(process(directory, "controller", 0, **shared))
        members = [("broker", number, number) for number in range(BROKERS)]
        members.append(("coordinator", 0, FIRST_COORDINATOR_NODE))
        for at, (role, number, node) in enumerate(members):
            inside, outside = first + 2 * at, first + 2 * at + 1
            ports[INSIDE][node], ports[OUTSIDE][node] = inside, outside
            own = {
                "listeners": f"PLAINTEXT://{INSIDE}:{inside},EXTERNAL://{INSIDE}:{outside}",
                "advertised_listeners": f"PLAINTEXT://{INSIDE}:{inside},EXTERNAL://{OUTSIDE}:{outside}",
                "log_dirs": str(directory / f"data-{number}"),
            }
            stack.enter_context(process(directory, role, number, **shared, **own))
        yield ports


def request(port: int, api_key: ApiKey, version: int, message: dict[str, Any]) -> Any:
    async def ask() -> Any:
        client = await Client.connect(INSIDE, port, client_id="test")
        try:
            return await client.request(api_key, version, message)
        finally:
            client.close()

    return asyncio.run(ask())


@pytest.mark.parametrize("host", [INSIDE, OUTSIDE])
def test_a_client_sees_the_addresses_of_the_listener_it_came_by(ways_in: dict[str, dict[int, int]], host: str) -> None:
    told = AdminClient({"bootstrap.servers": f"{host}:{ways_in[host][0]}"}).list_topics(timeout=30).brokers
    assert {node: (each.host, each.port) for node, each in told.items()} == {
        node: (host, port) for node, port in ways_in[host].items()
    }


@pytest.mark.parametrize("host", [INSIDE, OUTSIDE])
@pytest.mark.parametrize("node", [0, FIRST_COORDINATOR_NODE], ids=["broker", "coordinator"])
def test_every_answer_with_addresses_has_those_of_the_listener(
    ways_in: dict[str, dict[int, int]], host: str, node: int
) -> None:
    """Also where a coordinator passes a question on to a broker, which it reaches by the inside listener."""
    port = ways_in[host][node]
    places = {each: (host, port) for each, port in ways_in[host].items()}
    metadata = {"topics": [], "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    answer = request(port, ApiKey.METADATA, 12, metadata)
    assert {each.node_id: (each.host, each.port) for each in answer.brokers} == places
    described = request(port, ApiKey.DESCRIBE_CLUSTER, 0, {"include_cluster_authorized_operations": False})
    brokers = {each: place for each, place in places.items() if each < FIRST_COORDINATOR_NODE}
    assert {each.broker_id: (each.host, each.port) for each in described.brokers} == brokers
    found = request(port, ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["anyone"]})
    (coordinator,) = found.coordinators
    assert (coordinator.host, coordinator.port) == places[FIRST_COORDINATOR_NODE]


@pytest.mark.parametrize("host", [INSIDE, OUTSIDE])
def test_records_and_groups_go_by_either_listener(ways_in: dict[str, dict[int, int]], host: str) -> None:
    bootstrap, topic = f"{host}:{ways_in[host][0]}", f"ways-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 4, 2)])[topic].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for number in range(40):
        producer.produce(topic, str(number), partition=number % 4)
    assert producer.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    seen: set[bytes] = set()

    def read() -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            seen.add(message.value())
        return len(seen) == 40

    wait_until(read, "every record is read", 60)
    consumer.commit(asynchronous=False)
    consumer.close()
