"""Coordinators that die, sleep and come back: no committed offset is lost or goes back, and groups go on."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator

import grpc
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from tests.integration.cluster import EXTERNAL, Cluster, command, wait_until
from tests.integration.conftest import running
from tests.integration.group_members import Member, committed, members, produce_values, wait_for_shares
from tests.integration.raw import Closed, Wire, body, framed, produce, record_batch
from tests.integration.topics import create_topic

from headrace.cluster.coordination import partition_for
from headrace.coordinator import sharing
from headrace.records.record import Record, build
from headrace.v1 import broker_pb2, common_pb2, metadata_pb2, metadata_pb2_grpc
from headrace.v1.broker_pb2_grpc import BrokerStub

OFFSETS = "__consumer_offsets"
PARTITIONS = 50
FIND_COORDINATOR, OFFSET_COMMIT = 10, 8


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two brokers and two coordinators, each a process."""
    if EXTERNAL:
        pytest.skip("HEADRACE_TEST_BOOTSTRAP names a server whose processes are not known")
    yield from running(Cluster(tmp_path_factory.mktemp("coordinators") / "data", brokers=2))


@pytest.fixture(scope="module")
def topic(two: Cluster) -> str:
    return create_topic(AdminClient({"bootstrap.servers": two.bootstrap}), "failover", 4)


def picture(cluster: Cluster) -> metadata_pb2.Snapshot:
    with grpc.insecure_channel(cluster.description["grpc"]) as channel:
        return metadata_pb2_grpc.MetadataStub(channel).GetMetadata(metadata_pb2.GetMetadataRequest()).snapshot


def owners(cluster: Cluster) -> dict[int, tuple[int, int]]:
    """Partition of the offsets topic → coordinator and epoch."""
    return {each.partition: (each.coordinator, each.epoch) for each in picture(cluster).offsets_owners}


def owner_of(cluster: Cluster, group: str) -> int:
    partition = partition_for(group, PARTITIONS)
    return int(wait_until(lambda: owners(cluster).get(partition), f"an owner of {group}")[0])


def group_owned_by(cluster: Cluster, coordinator: int) -> str:
    for _ in range(1000):
        group = f"group-{uuid.uuid4().hex[:8]}"
        if owner_of(cluster, group) == coordinator:
            return group
    raise AssertionError(f"coordinator {coordinator} owns nothing")


def both_have_a_share(cluster: Cluster) -> bool:
    """Whether each has all that is its own: until then, a partition that changes hands is nobody's for a moment."""
    return {index: owner for index, (owner, _) in owners(cluster).items()} == {
        index: sharing.owner_of(index, (0, 1)) for index in range(PARTITIONS)
    }


class Coordinators:
    """Kills coordinators, and starts them again as a person would."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pids = {number: int(cluster.process("coordinator", number)["pid"]) for number in (0, 1)}
        self._own: list[subprocess.Popen[bytes]] = []

    def signal(self, number: int, how: int) -> None:
        os.kill(self._pids[number], how)

    def start(self, number: int) -> None:
        config = self._cluster.process("coordinator", number)["config"]
        log = (self._cluster.data / "logs" / f"coordinator-{number}.log").open("ab")
        process = subprocess.Popen(
            [*command(), "coordinator", "--config", config], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        log.close()
        self._own.append(process)
        self._pids[number] = process.pid

    def close(self) -> None:
        for process in self._own:
            process.terminate()
            process.wait(30)


@pytest.fixture(scope="module")
def coordinators(two: Cluster) -> Iterator[Coordinators]:
    found = Coordinators(two)
    yield found
    found.close()


class Committer:
    """Commits ever larger offsets for a group, and reads them back: what was acknowledged is never less later."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._bootstrap, self.group, self._topic = bootstrap, group, topic
        self.acknowledged = 0
        self.went_back: list[tuple[int, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": self.group})
        offset = 0
        while not self._stop.is_set():
            offset += 1
            try:
                consumer.commit(offsets=[TopicPartition(self._topic, 0, offset)], asynchronous=False)
                self.acknowledged = offset
            except KafkaException:
                time.sleep(0.05)
            try:
                found = consumer.committed([TopicPartition(self._topic, 0)], 5)[0].offset
            except KafkaException:
                continue
            if found < self.acknowledged:
                self.went_back.append((self.acknowledged, found))
        consumer.close()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)


def test_no_commit_is_lost_when_its_coordinator_is_killed(two: Cluster, topic: str, coordinators: Coordinators) -> None:
    wait_until(lambda: both_have_a_share(two), "both coordinators to have a share")
    committers = [Committer(two.bootstrap, group_owned_by(two, number % 2), topic) for number in range(6)]
    wait_until(lambda: all(each.acknowledged > 5 for each in committers), "some commits")
    coordinators.signal(0, signal.SIGKILL)
    wait_until(lambda: {owner for owner, _ in owners(two).values()} == {1} and len(owners(two)) == 50, "the heir", 30)
    reached = [each.acknowledged for each in committers]
    wait_until(
        lambda: all(each.acknowledged > before for each, before in zip(committers, reached, strict=True)),
        "commits after the failover",
        60,
    )
    coordinators.start(0)
    wait_until(lambda: both_have_a_share(two), "the one that came back to have its share", 30)
    reached = [each.acknowledged for each in committers]
    wait_until(
        lambda: all(each.acknowledged > before for each, before in zip(committers, reached, strict=True)),
        "commits after the hand-over",
        60,
    )
    for each in committers:
        each.stop()
    assert [each.went_back for each in committers] == [[]] * 6
    for each in committers:
        assert committed(two.bootstrap, each.group, topic, 1)[0] >= each.acknowledged


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_that_rebalances_goes_on_with_the_next_coordinator(
    protocol: str, two: Cluster, topic: str, coordinators: Coordinators
) -> None:
    wait_until(lambda: both_have_a_share(two), "both coordinators to have a share", 30)
    group = group_owned_by(two, 1)
    share = {(topic, index) for index in range(4)}
    first = Member(two.bootstrap, group, [topic], **{"group.protocol": protocol})
    with members(first):
        wait_for_shares([first], share)
        # It joins, and the coordinator dies while the group rebalances.
        second = Member(two.bootstrap, group, [topic], **{"group.protocol": protocol})
        with members(second):
            coordinators.signal(1, signal.SIGKILL)
            wait_for_shares([first, second], share, 60)
            produce_values(two.bootstrap, topic, 4, [b"%d" % number for number in range(40)])
            wait_until(lambda: len(first.records) + len(second.records) >= 40, "the records", 30)
    coordinators.start(1)
    wait_until(lambda: both_have_a_share(two), "the one that came back to have its share", 30)


def commit_request(group: str, topic: str, offset: int) -> object:
    kind = load_request_schema(OFFSET_COMMIT, 8)
    parts = vars(__import__(kind.__module__, fromlist=["_"]))
    partition = parts["OffsetCommitRequestPartition"](
        partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
    )
    of_topic = parts["OffsetCommitRequestTopic"](name=topic, partitions=(partition,))
    return kind(
        group_id=group, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None, topics=(of_topic,)
    )


def coordinator_address(cluster: Cluster, group: str) -> str:
    with Wire(cluster.bootstrap.split(",")[0]) as wire:
        found = wire.call(load_request_schema(FIND_COORDINATOR, 2)(key=group, key_type=0))
        assert found.error_code is ErrorCode.none
        return f"{found.host}:{found.port}"


def test_one_that_slept_past_its_lease_can_change_nothing(two: Cluster, topic: str, coordinators: Coordinators) -> None:
    wait_until(lambda: both_have_a_share(two), "both coordinators to have a share", 30)
    group = group_owned_by(two, 0)
    partition = partition_for(group, PARTITIONS)
    asleep, epoch = owners(two)[partition]
    with Wire(coordinator_address(two, group), timeout=60) as zombie:
        answer = zombie.call(commit_request(group, topic, 5))
        assert answer.topics[0].partitions[0].error_code is ErrorCode.none
        coordinators.signal(asleep, signal.SIGSTOP)
        try:
            wait_until(lambda: owners(two).get(partition, (asleep, 0))[0] != asleep, "another owner", 30)
            consumer = Consumer({"bootstrap.servers": two.bootstrap, "group.id": group})

            def commit() -> bool:
                try:
                    consumer.commit(offsets=[TopicPartition(topic, 0, 100)], asynchronous=False)
                except KafkaException:
                    return False
                return True

            wait_until(commit, "a commit with the new owner", 30)
            # It lies in the sleeper's socket, and is the first thing it sees.
            zombie.send(framed(body(commit_request(group, topic, 7))))
        finally:
            coordinators.signal(asleep, signal.SIGCONT)
        try:
            late = zombie.receive()
            assert late
        except Closed:
            pass
        assert committed(two.bootstrap, group, topic, 1) == [100]
        consumer.close()
    # Whatever it may send, the leader refuses it: by its epoch, whoever carries it.
    refused = produce_as_owner(two, partition, epoch)
    assert refused.error.code == common_pb2.PRODUCER_FENCED, refused
    wait_until(lambda: both_have_a_share(two), "the sleeper to have its share again", 30)
    assert committed(two.bootstrap, group, topic, 1) == [100]


def produce_as_owner(cluster: Cluster, partition: int, epoch: int) -> broker_pb2.ProduceResponse.PartitionResult:
    snapshot = picture(cluster)
    topic = next(each for each in snapshot.topics if each.name == OFFSETS)
    leader = next(node for node in snapshot.brokers if node.id == topic.partitions[partition].leader)
    batch = build([Record(0, 0, b"k", b"v")], producer_id=epoch, producer_epoch=0, base_sequence=10_000)
    request = broker_pb2.ProduceRequest(
        acks=-1,
        timeout_ms=5000,
        partitions=[
            broker_pb2.ProduceRequest.PartitionData(
                partition=common_pb2.TopicPartition(topic=OFFSETS, partition=partition),
                records=bytes(batch),
                owner_epoch=epoch,
            )
        ],
    )
    with grpc.insecure_channel(f"{leader.grpc.host}:{leader.grpc.port}") as channel:
        return BrokerStub(channel).Produce(request, timeout=20).partitions[0]


def test_nobody_else_writes_to_the_offsets_topic(two: Cluster) -> None:
    snapshot = picture(two)
    topic = next(each for each in snapshot.topics if each.name == OFFSETS)
    leader = topic.partitions[0].leader
    with Wire(two.process("broker", leader)["kafka"]) as wire:
        refused = produce(wire, OFFSETS, record_batch([b"mine"]))
    assert refused.error_code is ErrorCode.invalid_topic_exception
    assert produce_as_owner(two, 0, 0).error.code == common_pb2.INVALID_TOPIC_EXCEPTION


def test_the_offsets_topic_cannot_be_deleted_or_grown(two: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": two.bootstrap})
    with pytest.raises(KafkaException, match="TOPIC_EXCEPTION"):
        admin.delete_topics([OFFSETS])[OFFSETS].result(30)
    with pytest.raises(KafkaException, match="TOPIC_EXCEPTION"):
        admin.create_partitions([NewPartitions(OFFSETS, 60)])[OFFSETS].result(30)
    with pytest.raises(KafkaException, match="TOPIC_EXCEPTION"):
        admin.create_topics([NewTopic("__transaction_state", 1, 1)])["__transaction_state"].result(30)
