"""The native client against a real cluster, in good weather and in bad."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.integration.cluster import Cluster
from tests.integration.proxy import CuttingProxy

from headrace.client import (
    Admin,
    BufferFull,
    ClusterUnreachable,
    Consumer,
    ConsumerRecord,
    ErrorCode,
    KafkaError,
    Producer,
    RecordMetadata,
    RoundRobin,
    TopicPartition,
    sync,
)
from headrace.rpc.channels import Channels


def native(cluster: Cluster) -> str:
    """Where native clients begin."""
    return str(cluster.process("metadata")["grpc"])


@pytest.fixture
def servers(own_cluster: Cluster) -> str:
    return native(own_cluster)


@pytest.fixture
async def admin_client(servers: str) -> AsyncIterator[Admin]:
    async with Admin(bootstrap_servers=servers) as admin:
        yield admin


@pytest.fixture
async def topic(admin_client: Admin) -> str:
    name = f"native-{uuid.uuid4().hex[:8]}"
    await admin_client.create_topic(name, partitions=3)
    return name


async def read_all(servers: str, *partitions: TopicPartition) -> list[ConsumerRecord]:
    """Everything in the partitions now."""
    async with Consumer(bootstrap_servers=servers) as consumer:
        ends = await consumer.end_offsets(*partitions)
        await consumer.assign(partitions)
        await consumer.seek_to_beginning()
        found: list[ConsumerRecord] = []
        async with asyncio.timeout(60):
            while any([await consumer.position(p) < end for p, end in ends.items()]):
                found += await consumer.poll()
        return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_what_goes_in_comes_out(servers: str, topic: str, codec: str) -> None:
    rows = [
        (b"k", b"v", ()),
        (None, b"x" * 50_000, ()),
        (b"gone", None, ()),
        ("ключ", "värde", (("name", b"value"), ("none", None))),
    ]
    async with Producer(bootstrap_servers=servers, compression_type=codec) as producer:
        places = await asyncio.gather(
            *(
                producer.send(topic, value, key=key, headers=headers, partition=1, timestamp=1000 + n)
                for n, (key, value, headers) in enumerate(rows)
            )
        )
    found = await read_all(servers, TopicPartition(topic, 1))
    assert [place.offset for place in places] == [record.offset for record in found] == [0, 1, 2, 3]
    assert places[2] == RecordMetadata(topic, 1, 2, 1002)
    assert [(r.key, r.value, tuple(r.headers), r.timestamp) for r in found] == [
        (b"k", b"v", (), 1000),
        (None, b"x" * 50_000, (), 1001),
        (b"gone", None, (), 1002),
        ("ключ".encode(), "värde".encode(), (("name", b"value"), ("none", None)), 1003),
    ]


async def test_keys_go_where_kafka_clients_send_them(own_cluster: Cluster, servers: str, topic: str) -> None:
    from confluent_kafka import Producer as Theirs

    keys = [b"key-%d" % n for n in range(50)]
    where: dict[bytes, int] = {}
    theirs = Theirs({"bootstrap.servers": own_cluster.bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        theirs.produce(
            topic, b"", key, on_delivery=lambda error, message: where.update({message.key(): message.partition()})
        )
    theirs.flush(30)
    async with Producer(bootstrap_servers=servers) as producer:
        places = await asyncio.gather(*(producer.send(topic, b"", key=key) for key in keys))
    assert {key: place.partition for key, place in zip(keys, places, strict=True)} == where


async def test_who_made_a_topic_knows_it(cluster_at: Callable[..., Cluster]) -> None:
    cluster = cluster_at(brokers=2).start()
    metadata = cluster.process("metadata")["pid"]
    async with Admin(bootstrap_servers=native(cluster)) as admin:
        os.kill(metadata, signal.SIGSTOP)
        asyncio.get_running_loop().call_later(0.5, os.kill, metadata, signal.SIGCONT)
        await admin.create_topic("made", partitions=3)
        assert "made" in admin.image.topics


async def test_many_records_keep_their_order(servers: str, topic: str) -> None:
    async with Producer(bootstrap_servers=servers, partitioner=RoundRobin()) as producer:
        futures = [producer.send_nowait(topic, b"%d" % n) for n in range(9_000)]
        await producer.flush()
        assert all(future.done() for future in futures)
    found = await read_all(servers, *(TopicPartition(topic, i) for i in range(3)))
    assert len(found) == 9_000
    for index in range(3):
        values = [int(r.value) for r in found if r.partition == index]
        assert values == sorted(values)
        assert len(values) == 3_000


@pytest.mark.parametrize("acks", ["0", "1", "all"])
async def test_acknowledgements(servers: str, topic: str, acks: str) -> None:
    async with Producer(bootstrap_servers=servers, acks=acks) as producer:
        placed = await producer.send(topic, b"v", partition=0)
    assert placed.offset == (-1 if acks == "0" else 0)
    assert [r.value for r in await read_all(servers, TopicPartition(topic, 0))] == [b"v"]


async def test_places_in_a_log(servers: str, topic: str, admin_client: Admin) -> None:
    where = TopicPartition(topic, 0)
    async with Producer(bootstrap_servers=servers) as producer:
        for n in range(10):
            await producer.send(topic, b"%d" % n, partition=0, timestamp=1_000 * n)
    async with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        await consumer.assign([where])
        assert await consumer.position(where) == 0
        assert await consumer.lag(where) == 10
        consumer.seek(where, 7)
        assert [r.value for r in await consumer.poll(10)] == [b"7", b"8", b"9"]
        await consumer.seek_to_timestamp(4_500)
        assert (await consumer.poll(10, max_records=1))[0].offset == 5
        assert await consumer.position(where) == 6
        assert (await consumer.offsets_for_times({where: 99_000_000}))[where] is None
        await consumer.seek_to_end(where)
        assert await consumer.lag(where) == 0
        consumer.seek(where, 0)
        consumer.pause(where)
        assert await consumer.poll(0.3) == []
        consumer.resume(where)
        assert len(await consumer.poll(10)) == 10
        assert await admin_client.delete_records({where: 6}) == {where: 6}
        consumer.seek(where, 2)
        found: list[ConsumerRecord] = []
        while not found:
            found = await consumer.poll(10)
        assert found[0].offset == 6, "out of range starts over as auto_offset_reset says"


async def test_without_a_reset_policy_out_of_range_is_an_error(servers: str, topic: str) -> None:
    async with Consumer(bootstrap_servers=servers, auto_offset_reset="none") as consumer:
        await consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 99)
        with pytest.raises(KafkaError) as raised:
            await consumer.poll(20)
        assert raised.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_records_arrive_as_they_are_written(servers: str, topic: str) -> None:
    async with Producer(bootstrap_servers=servers) as producer, Consumer(bootstrap_servers=servers) as consumer:
        await consumer.assign([TopicPartition(topic, i) for i in range(3)])
        await consumer.seek_to_end()
        sent = [b"%d" % n for n in range(30)]

        async def read() -> list[bytes]:
            found = []
            async for record in consumer:
                found.append(record.value)
                if len(found) == len(sent):
                    break
            return found

        reading = asyncio.create_task(read())
        for value in sent:
            await producer.send(topic, value, key=value)
        assert sorted(await asyncio.wait_for(reading, 30)) == sorted(sent)


async def test_topics_and_settings(admin_client: Admin) -> None:
    name = f"admin-{uuid.uuid4().hex[:8]}"
    await admin_client.create_topic(name, partitions=2, configs={"retention.ms": "5000"})
    assert name in await admin_client.list_topics()
    with pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS"):
        await admin_client.create_topic(name)
    await admin_client.create_partitions(name, 3)
    await admin_client.create_partitions(name, 4, [[0]])
    (folder,) = (await admin_client.describe_log_dirs(0)).log_dirs
    where = TopicPartition(name, 0)
    assert await admin_client.alter_replica_log_dirs(0, {where: folder.path}) == {where: None}
    (refused,) = (await admin_client.alter_replica_log_dirs(0, {where: "/nowhere"})).values()
    assert refused is not None
    assert refused.code is ErrorCode.LOG_DIR_NOT_FOUND
    with pytest.raises(KafkaError, match="INVALID_PARTITIONS"):
        await admin_client.create_partitions(name, 1)
    await admin_client.alter_configs("topic", name, set={"segment.bytes": "1048576"}, delete=["retention.ms"])
    settings = {e.name: e for e in await admin_client.describe_configs("topic", name)}
    assert (settings["segment.bytes"].value, settings["segment.bytes"].source) == ("1048576", "topic")
    assert settings["retention.ms"].source != "topic"
    assert len((await admin_client.describe_topics([name]))[name].partitions) == 4
    assert await admin_client.delete_topics([name]) == {name: None}
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        await admin_client.describe_topics([name])


async def test_a_topic_that_does_not_exist_is_said_soon(servers: str) -> None:
    async with Producer(bootstrap_servers=servers) as producer:
        with pytest.raises(KafkaError, match="there is no topic no-such-topic"):
            await producer.send("no-such-topic", b"v")


async def test_a_cluster_that_does_not_answer_is_named() -> None:
    with pytest.raises(ClusterUnreachable, match=r"127\.0\.0\.1:1"):
        await Producer(bootstrap_servers="127.0.0.1:1", connect_timeout_ms=300).start()


def test_the_sync_facade(servers: str) -> None:
    name = f"sync-{uuid.uuid4().hex[:8]}"
    with sync.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(name, partitions=1)
    with sync.Producer(bootstrap_servers=servers) as producer:
        futures = [producer.send_nowait(name, b"%d" % n) for n in range(100)]
        assert producer.send(name, b"last").offset == 100
        assert [future.result().offset for future in futures] == list(range(100))
    with sync.Consumer(bootstrap_servers=servers) as consumer:
        consumer.assign(consumer.partitions_for(name))
        consumer.seek_to_beginning()
        values = []
        for record in consumer:
            values.append(record.value)
            if record.value == b"last":
                break
        assert len(values) == 101


async def test_serializers_partitioner_and_interceptors(servers: str, topic: str) -> None:
    acknowledged: list[int] = []
    committed: list[int] = []

    class Outgoing:
        def on_send(self, topic: str, key: Any, value: Any, headers: Any) -> tuple[Any, Any, Any]:
            return key, {**value, "seen": True}, (*headers, ("by", b"interceptor"))

        def on_acknowledgement(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
            assert error is None
            assert metadata is not None
            acknowledged.append(metadata.partition)

    class Incoming:
        def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
            return [record for record in records if record.value["n"] != 1]

        def on_commit(self, offsets: object) -> None:
            committed.append(1)

    async with Producer(
        bootstrap_servers=servers,
        value_serializer=lambda value: json.dumps(value).encode(),
        partitioner=lambda topic, key, value, count: count - 1,
        interceptors=[Outgoing()],
    ) as producer:
        for n in range(3):
            await producer.send(topic, {"n": n})
    async with Consumer(
        bootstrap_servers=servers, value_deserializer=json.loads, interceptors=[Incoming()]
    ) as consumer:
        await consumer.assign([TopicPartition(topic, 2)])
        await consumer.seek_to_beginning()
        found: list[ConsumerRecord] = []
        while len(found) < 2:
            found += await consumer.poll(10)
        assert await consumer.position(TopicPartition(topic, 2)) == 3
    assert [record.value for record in found] == [{"n": 0, "seen": True}, {"n": 2, "seen": True}]
    assert found[0].headers == (("by", b"interceptor"),)
    assert acknowledged == [2, 2, 2]


async def test_a_full_buffer_pushes_back_and_comes_free(servers: str, topic: str) -> None:
    async with Producer(bootstrap_servers=servers, buffer_memory=10_000, linger_ms=100) as producer:
        for _ in range(9):
            producer.send_nowait(topic, b"x" * 1_000, partition=0)
        with pytest.raises(BufferFull):
            producer.send_nowait(topic, b"x" * 1_000, partition=0)
        await producer.room()
        await asyncio.gather(*(producer.send(topic, b"y" * 1_000, partition=0) for _ in range(50)))
    assert len(await read_all(servers, TopicPartition(topic, 0))) == 50 + 9


async def test_what_a_topic_refuses_fails_alone(servers: str, admin_client: Admin) -> None:
    name = f"small-{uuid.uuid4().hex[:8]}"
    await admin_client.create_topic(name, partitions=1, configs={"max.message.bytes": "2000"})
    async with Producer(bootstrap_servers=servers) as producer:
        futures = [producer.send_nowait(name, b"x" * size) for size in (100, 1_500, 5_000, 100, 1_500, 200)]
        results = await asyncio.gather(*futures, return_exceptions=True)
    assert [isinstance(result, KafkaError) for result in results] == [False, False, True, False, False, False]
    refused = results[2]
    assert isinstance(refused, KafkaError)
    assert refused.code is ErrorCode.MESSAGE_TOO_LARGE
    found = await read_all(servers, TopicPartition(name, 0))
    assert [len(record.value) for record in found] == [100, 1_500, 100, 1_500, 200]


class ProxiedChannels(Channels):
    """Channels that reach one address through a proxy."""

    def __init__(self, address: str, proxy: CuttingProxy) -> None:
        super().__init__()
        self._through = {address: proxy.address}

    def get(self, address: str) -> Any:
        return super().get(self._through.get(address, address))


async def test_cut_connections_lose_double_and_reorder_nothing(own_cluster: Cluster, servers: str, topic: str) -> None:
    broker = str(own_cluster.process("broker")["grpc"])
    host, _, port = broker.rpartition(":")
    proxy = CuttingProxy(seed=5, least=4_000, most=80_000)
    proxy.upstream = (host, int(port))
    producer = Producer(bootstrap_servers=servers, retry_backoff_ms=20)
    producer._cluster.channels = ProxiedChannels(broker, proxy)
    try:
        async with producer:
            load = Load(producer, topic)
            running = asyncio.create_task(load.run())
            proxy.cutting = True
            deadline = time.monotonic() + 60
            while proxy.cuts < 15:
                assert time.monotonic() < deadline, f"only {proxy.cuts} cuts"
                await asyncio.sleep(0.02)
            proxy.cutting = False
            await load.until(100)
            load.stop()
            await asyncio.wait_for(running, 60)
    finally:
        proxy.close()
    found = await read_all(servers, TopicPartition(topic, 0))
    assert [int(record.value) for record in found] == list(range(load.sent))
    assert {a.offset for a in load.acknowledged} == set(range(load.sent))


class Load:
    """A producer with the default settings that sends numbered records to one partition until told to stop."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self.acknowledged: list[RecordMetadata] = []
        self.sent = 0
        self._stop = False

    def _done(self, future: asyncio.Future[RecordMetadata]) -> None:
        self.acknowledged.append(future.result())

    async def run(self) -> None:
        while not self._stop:
            for _ in range(20):
                future = self._producer.send_nowait(self._topic, b"%d" % self.sent, partition=0)
                future.add_done_callback(self._done)
                self.sent += 1
            await asyncio.sleep(0.005)
        await self._producer.flush()
        await asyncio.sleep(0)

    async def until(self, more: int, seconds: float = 60.0) -> None:
        """Returns when `more` records than now are acknowledged."""
        goal = len(self.acknowledged) + more
        deadline = time.monotonic() + seconds
        while len(self.acknowledged) < goal:
            assert time.monotonic() < deadline, f"{len(self.acknowledged)} of {goal} were acknowledged in {seconds} s"
            await asyncio.sleep(0.02)

    def stop(self) -> None:
        self._stop = True


async def through(cluster: Cluster, trouble: Callable[[Load], object], replicas: int = 1) -> None:
    """Sends through `trouble`, and checks that every record is there once and in order."""
    servers = ",".join(str(p["grpc"]) for p in cluster.processes if p["role"] == "metadata")
    async with Admin(bootstrap_servers=servers) as admin:
        await admin.create_topic("load", partitions=1, replication_factor=replicas)
    async with Producer(bootstrap_servers=servers, request_timeout_ms=3_000) as producer:
        load = Load(producer, "load")
        running = asyncio.create_task(load.run())
        try:
            await load.until(200)
            await trouble(load)  # type: ignore[misc]
            await load.until(200)
        finally:
            load.stop()
            async with asyncio.timeout(90):
                await running
    found = await read_all(servers, TopicPartition("load", 0))
    assert [int(r.value) for r in found] == list(range(load.sent)), "each record once, in order"
    assert {a.offset for a in load.acknowledged} == set(range(load.sent))


async def test_a_paused_broker_loses_doubles_and_reorders_nothing(cluster_at: Callable[..., Cluster]) -> None:
    cluster = cluster_at().start()

    async def pause(load: Load) -> None:
        pid = cluster.process("broker")["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            # Longer than a request may take, so that batches are given up and sent again.
            await asyncio.sleep(4)
        finally:
            os.kill(pid, signal.SIGCONT)

    await through(cluster, pause)


async def test_a_killed_broker_loses_doubles_and_reorders_nothing(cluster_at: Callable[..., Cluster]) -> None:
    cluster = cluster_at().start()

    async def kill(load: Load) -> None:
        await asyncio.to_thread(cluster.kill_all)
        await asyncio.to_thread(cluster.start)

    await through(cluster, kill)


async def test_a_killed_leader_loses_doubles_and_reorders_nothing(cluster_at: Callable[..., Cluster]) -> None:
    cluster = cluster_at(brokers=3).start()
    servers = native(cluster)

    async def kill(load: Load) -> None:
        async with Admin(bootstrap_servers=servers) as admin:
            leader = (await admin.describe_topics(["load"]))["load"].partitions[0].leader
        cluster.kill("broker", leader)

    await through(cluster, kill, replicas=3)
