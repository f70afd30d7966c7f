"""What survives a stop, a kill -9 and a wrong second start."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource
from tests.integration.cluster import Cluster, arguments, free_port, wait_until
from tests.integration.kafka_clients import CODECS, Confluent, Rec, Send, Want, confluent_producer
from tests.integration.topics import create_topic

RECORDS = [Rec(b"value %d" % number, b"key", (("h", b"1"),)) for number in range(300)]


def filled(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    create_topic(admin, "kept", len(CODECS), retention_ms="86400001")
    Confluent().produce(
        cluster.bootstrap, [Send("kept", number, RECORDS, codec) for number, codec in enumerate(CODECS)]
    )


def check(cluster: Cluster) -> None:
    """All that `filled` wrote is there, and there is room for more."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    wait_until(
        lambda: all(part.leader >= 0 for part in admin.list_topics("kept", 10).topics["kept"].partitions.values()),
        "leaders after the start",
    )
    resource = ConfigResource(ConfigResource.Type.TOPIC, "kept")
    assert admin.describe_configs([resource])[resource].result(30)["retention.ms"].value == "86400001"
    wants = [Want("kept", number, len(RECORDS)) for number in range(len(CODECS))]
    for records in Confluent().consume(cluster.bootstrap, wants).values():
        assert [(each.value, each.key, each.headers) for each in records] == [
            (each.value, each.key, each.headers) for each in RECORDS
        ]
    Confluent().produce(cluster.bootstrap, [Send("after", 0, [Rec(b"more")])])
    assert Confluent().consume(cluster.bootstrap, [Want("after", 0, 1)])["after", 0][0].value == b"more"


def test_everything_is_back_after_a_stop(cluster_at: Callable[..., Cluster]) -> None:
    cluster = cluster_at()
    cluster.start()
    filled(cluster)
    assert cluster.stop() == 0
    cluster.start()
    check(cluster)
    assert cluster.stop() == 0


def test_a_kill_loses_nothing_acknowledged(cluster_at: Callable[..., Cluster]) -> None:
    cluster = cluster_at()
    cluster.start()
    filled(cluster)
    create_topic(AdminClient({"bootstrap.servers": cluster.bootstrap}), "killed")
    acknowledged: set[int] = set()
    stop = threading.Event()

    def write() -> None:
        producer = confluent_producer(cluster.bootstrap, acks="all", **{"message.timeout.ms": 5000, "linger.ms": 1})
        number = 0
        while not stop.is_set():
            producer.produce(
                "killed",
                b"%d" % number,
                on_delivery=lambda error, message: None if error else acknowledged.add(int(message.value())),
            )
            number += 1
            producer.poll(0.001)
        producer.purge()
        producer.flush(1)

    # the address is read while cluster.json is there: a kill removes it
    writer = threading.Thread(target=write)
    writer.start()
    wait_until(lambda: len(acknowledged) > 2000, "two thousand acknowledged records")
    cluster.kill_all()
    stop.set()
    writer.join(30)
    cluster.start()
    check(cluster)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    assert admin.list_topics("killed", 10).topics["killed"].error is None
    read = Confluent().consume(cluster.bootstrap, [Want("killed", 0, len(acknowledged))])["killed", 0]
    lost = acknowledged - {int(record.value or b"-1") for record in read}
    assert not lost, f"{len(lost)} of {len(acknowledged)} acknowledged records are lost, first {min(lost)}"
    assert cluster.stop() == 0


def refused(line: list[str]) -> str:
    """What a start that must fail says."""
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)
    said = done.stdout + done.stderr
    assert done.returncode > 0, f"ended with {done.returncode}:\n{said}"
    assert "Traceback" not in said, said
    return said


def test_a_directory_in_use_is_said_plainly(own_cluster: Cluster) -> None:
    said = refused(arguments(own_cluster.data, free_port()))
    assert str(own_cluster.data) in said.replace("\n", "")
    assert "in use" in " ".join(said.split())
    assert own_cluster.processes, "and the running cluster still says where it is"


def test_a_taken_port_is_said_plainly(own_cluster: Cluster, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert str(port) in refused(arguments(tmp_path / "data", port))


@pytest.mark.parametrize(
    ("name", "value", "says"), [("log.retention.ms", "soon", "soon"), ("auto.create.topics.enable", "maybe", "maybe")]
)
def test_a_wrong_setting_stops_the_start(
    name: str, value: str, says: str, own_cluster: Cluster, tmp_path: Path
) -> None:
    said = refused(arguments(tmp_path / "data", free_port(), settings={name: value}))
    assert name in said
    assert says in said


def test_the_description_names_processes_that_run(own_cluster: Cluster) -> None:
    description = own_cluster.description
    assert description["bootstrap"] == f"127.0.0.1:{own_cluster.port}"
    assert {entry["role"] for entry in description["processes"]} >= {"broker"}
    for entry in description["processes"]:
        own_cluster.kill(entry["role"], entry["id"], signal.Signals(signal.SIGCONT))


def test_the_end_of_etcd_is_said_and_a_start_brings_everything_back(cluster_at: Callable[..., Cluster]) -> None:
    cluster = cluster_at().start()
    filled(cluster)
    cluster.kill("etcd", 0)
    wait_until(lambda: "etcd (pid" in cluster.output(), "a word about it")
    cluster.kill_all()
    cluster.start()
    assert "still starting" in cluster.output(), "what the killed one had registered has to expire"
    check(cluster)
