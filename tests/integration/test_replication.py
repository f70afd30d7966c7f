"""Replicas that move, fail, are read from and lose sight of etcd, on three brokers with two disks and a rack each."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator

import grpc
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode
from tests.integration.bouncing import Bouncer, Load, check_records, in_sync, leader_of, read_all, say
from tests.integration.cluster import Cluster, wait_until
from tests.integration.raw import PRODUCE, Wire, body, decode, framed, produce_request, record_batch
from tests.integration.topics import make_topic, replicas_of, write

from headrace.v1 import controller_pb2 as pb
from headrace.v1 import controller_pb2_grpc
from headrace.wire.client import Client
from headrace.wire.protocol import ApiKey

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
SETTINGS = {
    "broker.session.timeout.ms": "2000",
    "replica.selector.class": SELECTOR,
    "replica.lag.time.max.ms": "4000",
    "auto.leader.rebalance.enable": "false",
    "default.replication.factor": "3",
}
ETCD_AWAY = float(os.environ.get("HEADRACE_ETCD_AWAY", "6"))
Three = tuple[Cluster, Bouncer, AdminClient]
pytestmark = pytest.mark.timeout(180 + ETCD_AWAY)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    cluster = Cluster(tmp_path_factory.mktemp("racks") / "data", brokers=3, settings=SETTINGS).start()
    bouncer = Bouncer(cluster)
    for i in range(3):
        dirs = ",".join(str(cluster.data / f"broker-{i}" / name) for name in "ab")
        with open(cluster.process("broker", i)["config"], "a") as config:
            config.write(f"broker.rack=rack-{i}\nlog.dirs={dirs}\n")
        bouncer.signal("broker", i, signal.SIGTERM)
    for i in range(3):
        bouncer.wait_gone("broker", i)
        bouncer.start("broker", i)
    try:
        yield cluster, bouncer, AdminClient({"bootstrap.servers": cluster.bootstrap})
    finally:
        bouncer.close()
        cluster.stop()


class Reading:
    """A consumer that reads on and on, and knows when it last got something."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.last = 0.0
        self._stop = threading.Event()
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reading", "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.last = time.monotonic()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)
        self._consumer.close()


async def ask_controller(cluster: Cluster, method: str, request: object) -> object:
    """Calls whichever controller is active."""
    last: Exception | None = None
    for i in range(2):
        async with grpc.aio.insecure_channel(cluster.process("controller", i)["grpc"]) as channel:
            try:
                return await getattr(controller_pb2_grpc.ControllerStub(channel), method)(request, timeout=30)
            except grpc.aio.AioRpcError as error:
                last = error
    raise AssertionError(last)


def sent_by(cluster: Cluster, broker: int) -> float:
    """Bytes that a broker has sent to consumers so far."""
    with urllib.request.urlopen(f"http://{cluster.process('broker', broker)['metrics']}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("kafka_server_brokertopicmetrics_bytesout")
    )


def test_a_consumer_reads_from_the_replica_in_its_rack(three: Three) -> None:
    cluster, _, admin = three
    topic = make_topic(admin, "near", [0, 1, 2])
    write(cluster.bootstrap, topic, 100, 1000)
    before = [sent_by(cluster, i) for i in range(3)]
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "near",
            "client.rack": "rack-2",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []

    def read(until: int) -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message.value())
        return len(found) >= until

    wait_until(lambda: read(100), "the first records")
    for first in (100, 101, 102):
        # A follower learns of the high watermark at once, not with its next long poll.
        write(cluster.bootstrap, topic, 1, 1000, first)
        began = time.monotonic()
        wait_until(lambda upto=first + 1: read(upto), "a new record from the follower")
        say(f"read from a follower {1000 * (time.monotonic() - began):.0f} ms after its acknowledgement")
    consumer.close()
    assert [int(value.split()[0]) for value in found] == list(range(103))
    sent = [after - earlier for after, earlier in zip([sent_by(cluster, i) for i in range(3)], before, strict=True)]
    assert sent[2] >= 103_000, sent
    assert sent[0] == sent[1] == 0, "the leader only said where to read"


async def test_a_partition_moves_and_its_factor_changes(three: Three) -> None:
    cluster, _, admin = three
    topic = make_topic(admin, "moved", [0])
    write(cluster.bootstrap, topic, 500)
    host, port = cluster.bootstrap.split(",")[0].split(":")
    client = await Client.connect(host, int(port))
    try:
        for replicas in ([0, 1, 2], [2, 1], [1]):
            move = {"name": topic, "partitions": [{"partition_index": 0, "replicas": replicas}]}
            answer = await client.request(
                ApiKey.ALTER_PARTITION_REASSIGNMENTS,
                1,
                {"timeout": 30_000, "allow_replication_factor_change": True, "topics": [move]},
            )
            assert answer.responses[0].partitions[0].error_code == 0
            wait_until(lambda wanted=replicas: replicas_of(admin, topic) == wanted, f"replicas {replicas}")
            wait_until(lambda wanted=replicas: in_sync(admin, topic, len(wanted)), f"{replicas} in sync")
        nothing = await client.request(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"timeout": 30_000, "topics": None})
        assert nothing.topics == ()
    finally:
        client.close()
    assert len(read_all(cluster.bootstrap, topic, 0)) == 500
    wait_until(
        lambda: not list(cluster.data.glob(f"broker-0/*/{topic}-0")), "the old replica's files to be on their way out"
    )


async def test_a_broker_is_drained(three: Three) -> None:
    cluster, _, admin = three
    topic = make_topic(admin, "drained", [0, 1], [1, 0], [1, 2])
    write(cluster.bootstrap, topic, 100)

    def held() -> list[tuple[str, int]]:
        topics = admin.list_topics(timeout=10).topics
        return [(name, i) for name, t in topics.items() for i, p in t.partitions.items() if 1 in p.replicas]

    answer = await ask_controller(cluster, "DrainBroker", pb.DrainBrokerRequest(broker_id=1))
    assert {(p.topic, p.partition) for p in answer.moving} >= {(topic, 0), (topic, 1), (topic, 2)}
    stuck = {(s.partition.topic, s.partition.partition) for s in answer.stuck}
    for name, _ in stuck:
        assert len(replicas_of(admin, name)) == 3, "only what has a replica everywhere has nowhere to go"
    wait_until(lambda: set(held()) <= stuck, "broker 1 to hold no more than what cannot move")
    assert len(read_all(cluster.bootstrap, topic, 0)) == 100


def test_a_disk_that_fails_takes_only_its_own_partitions(three: Three) -> None:
    cluster, bouncer, admin = three
    big, small = make_topic(admin, "big", [0, 2, 1]), make_topic(admin, "small", [0, 2, 1])
    write(cluster.bootstrap, big, 300, 1000)
    write(cluster.bootstrap, small, 10)
    # No file of the process can grow beyond 100 kB now: the disk under the larger log fails at its next write.
    pid = bouncer.pid("broker", 0)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    write(cluster.bootstrap, big, 100, 1000, first=300)
    assert leader_of(admin, big) in (1, 2)
    write(cluster.bootstrap, small, 10, first=10)
    assert leader_of(admin, small) == 0, "the other disk serves on"
    assert [int(v.split()[0]) for v in read_all(cluster.bootstrap, big, 0).values()] == list(range(400))
    assert "goes offline" in bouncer.log("broker", 0)
    bouncer.signal("broker", 0, signal.SIGTERM)
    bouncer.wait_gone("broker", 0)
    bouncer.start("broker", 0)
    wait_until(lambda: in_sync(admin, big) and in_sync(admin, small), "the mended broker back in sync")


def test_a_damaged_segment_takes_its_disk_and_the_others_serve(three: Three) -> None:
    cluster, bouncer, admin = three
    topic, other = make_topic(admin, "damaged", [0, 2, 1]), make_topic(admin, "sound", [0, 2, 1])
    write(cluster.bootstrap, topic, 300, batch_num_messages=1)
    write(cluster.bootstrap, other, 10)
    [segment] = cluster.data.glob(f"broker-0/*/{topic}-0/{0:020d}.log")
    with segment.open("r+b") as file:
        file.seek(8)
        file.write(b"\xff" * 40)  # the header of the first batch: its length, its checksum
    assert [int(v.split()[0]) for v in read_all(cluster.bootstrap, topic, 0).values()] == list(range(300))
    assert leader_of(admin, topic) in (1, 2)
    assert "goes offline" in bouncer.log("broker", 0)
    write(cluster.bootstrap, topic, 10, first=300)
    assert leader_of(admin, other) == 0, "the other disk serves on"
    write(cluster.bootstrap, other, 10, first=10)
    bouncer.signal("broker", 0, signal.SIGTERM)
    bouncer.wait_gone("broker", 0)
    shutil.rmtree(segment.parent)  # what an operator does: the replica is copied anew
    bouncer.start("broker", 0)
    wait_until(lambda: in_sync(admin, topic) and in_sync(admin, other), "the mended broker back in sync")


def test_a_paused_leader_is_not_believed_when_it_wakes(three: Three) -> None:
    """What reaches it while it sleeps it appends as the leader it was: nobody confirms it, and it is cut off again."""
    cluster, bouncer, admin = three
    topic = make_topic(admin, "paused", [0, 1, 2])
    write(cluster.bootstrap, topic, 10)
    with Wire(cluster.process("broker", 0)["kafka"], timeout=60) as wire:
        bouncer.signal("broker", 0, signal.SIGSTOP)
        try:
            wire.send(framed(body(produce_request(topic, record_batch([b"of the zombie"])))))
            write(cluster.bootstrap, topic, 10, first=10)
        finally:
            bouncer.signal("broker", 0, signal.SIGCONT)
        answer = decode(wire.receive(), PRODUCE, 9).responses[0].partition_responses[0]
    assert answer.error_code != ErrorCode.none
    wait_until(lambda: in_sync(admin, topic), "the one that slept in sync again")
    assert [int(v.split()[0]) for v in read_all(cluster.bootstrap, topic, 0).values()] == list(range(20))
    logs = [cluster.data.glob(f"broker-{i}/*/{topic}-0/{0:020d}.log") for i in range(3)]
    assert len({file.read_bytes() for found in logs for file in found}) == 1, "three logs, one content"


def test_records_flow_while_etcd_is_away(three: Three) -> None:
    """For `HEADRACE_ETCD_AWAY` seconds; that it is minutes changes nothing but the time this takes."""
    cluster, bouncer, admin = three
    topic = make_topic(admin, "alone", [0, 1, 2], min_insync_replicas="2")
    epochs = [bouncer.log("broker", i).count("is registered with epoch") for i in range(3)]
    load = Load(cluster.bootstrap, topic, 1)
    reading = Reading(cluster.bootstrap, topic)
    try:
        wait_until(lambda: load.acked_since(0), "first acknowledgements")
        bouncer.signal("etcd", 0, signal.SIGSTOP)
        began = time.monotonic()
        try:
            while time.monotonic() < began + ETCD_AWAY:
                now = time.monotonic()
                wait_until(lambda at=now: load.acked_since(at), "acknowledgements while etcd is away", 5)
                wait_until(lambda at=now: reading.last > at, "records for a consumer while etcd is away", 5)
                wait_until(lambda at=now: time.monotonic() > at + 1, "the next second")
        finally:
            bouncer.signal("etcd", 0, signal.SIGCONT)
        back = time.monotonic()

        def makes_topics() -> bool:
            name = f"after-{time.monotonic_ns()}"
            return admin.create_topics([NewTopic(name, 1, 3)])[name].exception(30) is None

        wait_until(makes_topics, "new topics", 60)
        wait_until(lambda: in_sync(admin, topic), "everyone in sync again", 60)
        say(f"all is as before {time.monotonic() - back:.1f} s after etcd was away for {ETCD_AWAY:g} s")
        wait_until(lambda: load.acked_since(time.monotonic() - 1), "writes go on")
    finally:
        load.stop()
        reading.stop()
    say(f"longest time without an acknowledgement: {1000 * load.longest_gap(began):.0f} ms")
    assert not load.failures, load.failures[:3]
    check_records(load, cluster.bootstrap)
    again = [bouncer.log("broker", i).count("is registered with epoch") for i in range(3)]
    say(f"registrations before and after: {epochs}, {again}")


def test_an_offline_partition_says_so_and_can_be_had_back_at_a_price(three: Three) -> None:
    cluster, bouncer, admin = three
    topic = make_topic(admin, "lonely", [1, 2])
    bouncer.signal("broker", 2, signal.SIGTERM)
    bouncer.wait_gone("broker", 2)
    write(cluster.bootstrap, topic, 5)
    bouncer.signal("broker", 1, signal.SIGKILL)
    bouncer.wait_gone("broker", 1)
    bouncer.start("broker", 2)
    wait_until(lambda: leader_of(admin, topic) == -1, "the partition to be offline: its last in-sync replica is dead")
    found = admin.list_topics(topic, 10).topics[topic].partitions[0]
    assert found.isrs == [1], "only broker 1 holds everything that was acknowledged"
    bouncer.start("broker", 1)
    wait_until(lambda: leader_of(admin, topic) == 1, "broker 1 to lead again")
    assert len(read_all(cluster.bootstrap, topic, 0)) == 5
