"""Several brokers, each a process: partitions are spread, any broker tells where they are, and one may die alone."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode
from tests.integration.cluster import EXTERNAL, Cluster, command, wait_until
from tests.integration.conftest import running
from tests.integration.kafka_clients import AioKafka, Confluent, KafkaPython, Rec, Send, Want
from tests.integration.raw import Wire, fetch, produce, record_batch
from tests.integration.topics import create_topic

PARTITIONS = 12


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if EXTERNAL:
        pytest.skip("HEADRACE_TEST_BOOTSTRAP names a server whose processes are not known")
    # With a copy of the offsets topic on every broker none of them could be drained.
    settings = {"offsets.topic.replication.factor": "1"}
    yield from running(Cluster(tmp_path_factory.mktemp("three") / "data", brokers=3, settings=settings))


@pytest.fixture(scope="module")
def spread(three: Cluster) -> str:
    return create_topic(AdminClient({"bootstrap.servers": three.bootstrap}), "spread", PARTITIONS)


def leaders(address: str, topic: str) -> dict[int, int]:
    """Partition → leader, as the broker at this address tells it."""
    found = AdminClient({"bootstrap.servers": address}).list_topics(topic, 10).topics[topic]
    return {number: part.leader for number, part in found.partitions.items()}


def test_leaders_are_spread_evenly_and_every_broker_knows_them(three: Cluster, spread: str) -> None:
    addresses = {entry["id"]: entry["kafka"] for entry in three.processes if entry["role"] == "broker"}
    assert len(addresses) == 3
    assert len({entry["pid"] for entry in three.processes if entry["role"] == "broker"}) == 3
    told = leaders(three.bootstrap, spread)
    assert sorted(list(told.values()).count(number) for number in addresses) == [4, 4, 4]
    for address in addresses.values():
        wait_until(lambda address=address: leaders(address, spread) == told, f"the same picture from {address}")


@pytest.mark.parametrize("client", [Confluent(), KafkaPython(), AioKafka()], ids=lambda client: client.name)
def test_clients_find_every_partition(client: Confluent | KafkaPython | AioKafka, three: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": three.bootstrap})
    topic = create_topic(admin, f"all-{client.name}", PARTITIONS)
    client.produce(three.bootstrap, [Send(topic, number, [Rec(b"%d" % number)]) for number in range(PARTITIONS)])
    read = client.consume(three.bootstrap, [Want(topic, number, 1) for number in range(PARTITIONS)])
    assert {number: [record.value for record in records] for (_, number), records in read.items()} == {
        number: [b"%d" % number] for number in range(PARTITIONS)
    }


def test_the_wrong_broker_says_so(three: Cluster, spread: str) -> None:
    for number, leader in leaders(three.bootstrap, spread).items():
        other = three.process("broker", (leader + 1) % 3)["kafka"]
        with Wire(other) as wire:
            # a broker that never held the partition may know it from the metadata or not at all
            refused = {ErrorCode.not_leader_or_follower, ErrorCode.unknown_topic_or_partition}
            assert produce(wire, spread, record_batch([b"x"]), partition=number).error_code in refused
            assert fetch(wire, spread, 0, partition=number).error_code in refused


def test_a_second_broker_of_the_same_id_is_turned_away(three: Cluster, tmp_path: Path) -> None:
    own = {"log.dirs": tmp_path / "data", "listeners": "PLAINTEXT://127.0.0.1:0", "metrics.port": 0}
    config = three.process("broker", 0)["config"]
    changed = [part for name, value in own.items() for part in ("--set", f"{name}={value}")]
    done = subprocess.run(
        [*command(), "broker", "--config", config, *changed], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "DUPLICATE_BROKER_REGISTRATION: id 0 is taken by a live process" in done.stderr
    assert "give one of them another id" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_drained_broker_holds_nothing(three: Cluster, spread: str) -> None:
    env = {**os.environ, "HEADRACE_BOOTSTRAP": str(three.process("metadata")["grpc"])}

    def headrace(*words: str) -> str:
        return subprocess.run(
            [*command(), *words], env=env, capture_output=True, text=True, timeout=90, check=True
        ).stdout

    assert 1 in leaders(three.bootstrap, spread).values()
    assert headrace("cluster", "drain", "1").splitlines()[-1] == "broker 1 is empty"
    [row] = [row for row in json.loads(headrace("cluster", "brokers", "-o", "json")) if row["id"] == 1]
    assert (row["replicas"], row["leads"]) == (0, 0)
    assert 1 not in leaders(three.bootstrap, spread).values()


def test_a_dead_broker_stops_only_its_own_partitions(three: Cluster, spread: str) -> None:
    before = leaders(three.bootstrap, spread)
    three.kill("broker", 2)
    alive = [number for number, leader in before.items() if leader != 2]
    Confluent().produce(three.bootstrap, [Send(spread, number, [Rec(b"still here")]) for number in alive])
    read = Confluent().consume(three.bootstrap, [Want(spread, number, 1) for number in alive])
    assert all(records[-1].value == b"still here" for records in read.values())
