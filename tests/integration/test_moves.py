"""Replicas on their way, moved by kafka-python: held back by a throttle, called back, and taken to another disk."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import ElectionType
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import NodeNotReadyError, NoError, NoReassignmentInProgressError, UnknownBrokerIdError
from kafka.structs import TopicPartitionReplica
from tests.integration.bouncing import Bouncer, in_sync, leader_of, read_all
from tests.integration.cluster import Cluster, command, wait_until
from tests.integration.topics import make_topic, replicas_of, write

SETTINGS = {
    "auto.leader.rebalance.enable": "false",
    "log.segment.delete.delay.ms": "0",
    "replica.fetch.max.bytes": "10000",
}
COUNT, SIZE = 300, 1000
pytestmark = pytest.mark.timeout(180)


class Three:
    """Three brokers, of which the first has a second disk."""

    def __init__(self, cluster: Cluster, bouncer: Bouncer) -> None:
        self.cluster = cluster
        self.bouncer = bouncer
        self.disks = [cluster.data / "broker-0", cluster.data / "second"]
        with open(cluster.process("broker", 0)["config"], "a") as config:
            config.write(f"log.dirs={','.join(map(str, self.disks))}\n")
        self.restart(0)
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        self.python = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)

    def restart(self, broker: int) -> None:
        self.bouncer.signal("broker", broker, signal.SIGTERM)
        self.bouncer.wait_gone("broker", broker)
        self.bouncer.start("broker", broker)

    def topic(self, name: str, **config: str) -> TopicPartition:
        """One partition on brokers 0 and 1, with records."""
        make_topic(self.admin, name, [0, 1], **config)
        write(self.cluster.bootstrap, name, COUNT, SIZE, batch_num_messages=5)
        return TopicPartition(name, 0)

    def numbers(self, topic: str) -> list[int]:
        """What a consumer reads, in its order."""
        return [int(value.split()[0]) for value in read_all(self.cluster.bootstrap, topic, 0).values()]

    def folders(self, broker: int, topic: str) -> list[Path]:
        """Every folder of a partition's replica, also those that wait to be removed."""
        places = self.disks if broker == 0 else [self.cluster.data / f"broker-{broker}"]
        return [found for place in places for found in place.glob(f"{topic}-0*")]

    def copied(self, broker: int, topic: str) -> int:
        return sum(log.stat().st_size for folder in self.folders(broker, topic) for log in folder.glob("*.log"))

    def set_rates(self, side: str, how: AlterConfigOpType, rate: str | None) -> None:
        name = f"{side}.replication.throttled.rate"
        for broker in map(str, range(3)):
            asked = ConfigResource(ConfigResource.Type.BROKER, broker)
            asked.add_incremental_config(ConfigEntry(name, rate, incremental_operation=how))
            self.admin.incremental_alter_configs([asked])[asked].result(30)

            def known(of: str = broker) -> bool:
                asked = ConfigResource(ConfigResource.Type.BROKER, of)
                return (self.admin.describe_configs([asked])[asked].result(30)[name].value == "1") == (rate == "1")

            wait_until(known, f"broker {broker} to know its rate")

    @contextmanager
    def throttled(self, side: str) -> Iterator[None]:
        """Replicas that catch up may have a byte a second: after their first answer they stand still."""
        self.set_rates(side, AlterConfigOpType.SET, "1")
        try:
            yield
        finally:
            self.set_rates(side, AlterConfigOpType.DELETE, None)

    def where(self, topic: str) -> list[tuple[str, bool]]:
        """The disks of broker 0 on which the partition lies, and whether that one is still being filled."""
        try:
            (broker,) = self.python.describe_log_dirs({topic: [0]}, [0])
        except (NodeNotReadyError, UnknownBrokerIdError):
            # It remembers the time when the broker was away, and does not look again by itself.
            self.python.close()
            self.python = KafkaAdminClient(bootstrap_servers=self.cluster.bootstrap)
            return []
        return [
            (disk["log_dir"], part["is_future_key"])
            for disk in broker["log_dirs"]
            for each in disk["topics"]
            if each["name"] == topic
            for part in each["partitions"]
        ]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    cluster = Cluster(tmp_path_factory.mktemp("moves") / "data", brokers=3, settings=SETTINGS).start()
    bouncer = Bouncer(cluster)
    try:
        made = Three(cluster, bouncer)
        yield made
        made.python.close()
    finally:
        bouncer.close()
        cluster.stop()


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_throttle_holds_a_move_back_until_it_is_lifted(three: Three, side: str) -> None:
    slow = three.topic(f"slow-{side}", **{f"{side}_replication_throttled_replicas": "*"})
    free = three.topic(f"free-{side}")
    moving = {"replicas": [2, 1, 0], "adding_replicas": [2], "removing_replicas": [0]}
    with three.throttled(side):
        assert three.python.alter_partition_reassignments({slow: [2, 1]}) == {slow: None}
        wait_until(lambda: three.copied(2, slow.topic), "the first bytes on broker 2")
        # Whoever is not throttled passes by: as much as the other move has to copy, and what producers write.
        assert three.python.alter_partition_reassignments({free: [2, 1]}) == {free: None}
        wait_until(lambda: replicas_of(three.admin, free.topic) == [2, 1], "the move that is not throttled")
        write(three.cluster.bootstrap, slow.topic, 20, SIZE, first=COUNT)
        assert three.python.list_partition_reassignments() == {slow: moving}
        assert three.python.list_partition_reassignments([slow, free]) == {slow: moving}
        assert replicas_of(three.admin, slow.topic) == [2, 1, 0]
        assert 0 < three.copied(2, slow.topic) < COUNT * SIZE / 2
    wait_until(lambda: replicas_of(three.admin, slow.topic) == [2, 1], "the move without its throttle")
    assert three.python.list_partition_reassignments() == {}
    wait_until(lambda: in_sync(three.admin, slow.topic, 2), "both in sync")
    assert leader_of(three.admin, slow.topic) in (1, 2)
    assert three.numbers(slow.topic) == list(range(COUNT + 20))


def test_a_move_that_is_cancelled_leaves_nothing_behind(three: Three) -> None:
    kept = three.topic("kept", leader_replication_throttled_replicas="*")
    servers = str(three.cluster.process("metadata")["grpc"])
    with three.throttled("leader"):
        subprocess.run(
            [*command(), "partitions", "move", "kept:0", "0,2", "--no-wait"],
            env={**os.environ, "HEADRACE_BOOTSTRAP": servers, "HEADRACE_PROFILES": os.devnull + "/none"},
            timeout=60,
            check=True,
        )
        wait_until(lambda: three.copied(2, "kept"), "the first bytes on broker 2")
        assert three.python.list_partition_reassignments().keys() == {kept}
        assert three.python.alter_partition_reassignments({kept: None}) == {kept: None}
        assert three.python.list_partition_reassignments() == {}
    wait_until(lambda: replicas_of(three.admin, "kept") == [0, 1], "the replicas of before")
    assert three.python.alter_partition_reassignments({kept: None}) == {kept: NoReassignmentInProgressError}
    wait_until(lambda: not three.folders(2, "kept"), "broker 2 to hold nothing of it")
    write(three.cluster.bootstrap, "kept", 20, SIZE, first=COUNT)
    assert in_sync(three.admin, "kept", 2)
    assert three.numbers("kept") == list(range(COUNT + 20))
    assert not three.folders(2, "kept")


def test_a_replica_moves_to_another_disk_and_stays_there(three: Three) -> None:
    three.topic("carried")
    (before,) = three.where("carried")
    source, target = sorted(three.disks, key=lambda disk: str(disk) != before[0])
    assert before == (str(source), False)
    replica = TopicPartitionReplica("carried", 0, 0)
    assert three.python.alter_replica_log_dirs({replica: str(target)}) == {replica: NoError}
    write(three.cluster.bootstrap, "carried", 20, SIZE, first=COUNT)
    wait_until(lambda: three.where("carried") == [(str(target), False)], "the replica on the other disk")
    assert not (source / "carried-0").exists()
    assert leader_of(three.admin, "carried") == 0, "it led all the while"
    assert three.numbers("carried") == list(range(COUNT + 20))

    three.restart(0)
    wait_until(lambda: in_sync(three.admin, "carried", 2), "both in sync")
    wait_until(lambda: three.where("carried") == [(str(target), False)], "the replica where it was before the restart")
    three.admin.elect_leaders(ElectionType.PREFERRED, [Place("carried", 0)]).result(30)
    wait_until(lambda: leader_of(three.admin, "carried") == 0, "the replica that was moved to lead")
    write(three.cluster.bootstrap, "carried", 20, SIZE, first=COUNT + 20)
    assert three.numbers("carried") == list(range(COUNT + 40))
    assert not (source / "carried-0").exists()
