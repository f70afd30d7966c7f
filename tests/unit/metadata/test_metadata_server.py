import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.unit.metadata.conftest import KEYS, ORDERS, Cluster, address, partition_value

from headrace.cluster import codec
from headrace.cluster.protos import image_from_proto
from headrace.metadata.server import MetadataServer
from headrace.registry.api import Delete, Put
from headrace.registry.etcd import EtcdRegistry
from headrace.registry.keys import Keys
from headrace.registry.local_etcd import LocalEtcd
from headrace.registry.memory import MemoryRegistry
from headrace.registry.registration import Registration
from headrace.rpc import Channels, request_header
from headrace.v1 import common_pb2, metadata_pb2, metadata_pb2_grpc


@pytest.fixture
async def channels() -> AsyncIterator[Channels]:
    made = Channels()
    yield made
    await made.close()


def stub_of(server: MetadataServer, channels: Channels) -> metadata_pb2_grpc.MetadataStub:
    return metadata_pb2_grpc.MetadataStub(channels.get(address(server)))


def watch_after(revision: int) -> metadata_pb2.WatchRequest:
    return metadata_pb2.WatchRequest(header=request_header("test"), after_revision=revision)


async def until(holds: Callable[[], bool], within: float = 10.0) -> None:
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline, f"not within {within:g} s"
        await asyncio.sleep(0.005)


async def test_the_picture_is_served_whole_or_by_topic(cluster: Cluster, channels: Channels) -> None:
    revision = await cluster.create_orders(3)
    server = await cluster.replica()
    stub = stub_of(server, channels)
    header = request_header("test")
    whole = await stub.GetMetadata(metadata_pb2.GetMetadataRequest(header=header), timeout=5)
    assert whole.header.correlation_id == header.correlation_id
    assert image_from_proto(whole.snapshot) == server.cache.image
    assert whole.snapshot.revision >= revision
    assert whole.snapshot.cluster_id == "c1"
    some = await stub.GetMetadata(metadata_pb2.GetMetadataRequest(topics=["orders", "lost"]), timeout=5)
    assert [len(topic.partitions) for topic in some.snapshot.topics] == [3]
    assert dict(some.topic_errors)["lost"].code == common_pb2.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_watch_begins_with_a_snapshot_and_goes_on_with_changes(cluster: Cluster, channels: Channels) -> None:
    await cluster.create_orders()
    server = await cluster.replica()
    call = stub_of(server, channels).Watch(watch_after(0))
    first = await call.read()
    assert image_from_proto(first.snapshot).topics == server.cache.image.topics
    for epoch in (1, 2, 3):
        revision = await cluster.change_orders(epoch)
        response = await call.read()
        assert response.delta.revision == revision
        (change,) = response.delta.changes
        assert change.partitions.topic_id == ORDERS.bytes
        assert change.partitions.partitions[0].partition_epoch == epoch
    call.cancel()
    await until(lambda: server.cache.fanout.readers == 0)


async def test_a_watch_resumes_after_a_revision(cluster: Cluster, channels: Channels) -> None:
    server = await cluster.replica(history_limit=6)
    await asyncio.wait_for(server.cache.loaded.wait(), 5)
    await cluster.create_orders()
    revisions = [await cluster.change_orders(epoch) for epoch in range(1, 20)]
    await until(lambda: server.cache.image.revision >= revisions[-1])
    stub = stub_of(server, channels)
    call = stub.Watch(watch_after(revisions[-3]))
    assert [(await call.read()).delta.revision for _ in range(2)] == revisions[-2:]
    call = stub.Watch(watch_after(revisions[0]))
    assert (await call.read()).snapshot.revision >= revisions[-1]


async def test_a_slow_reader_gets_a_snapshot_and_holds_no_memory(cluster: Cluster, channels: Channels) -> None:
    """It takes nothing while far more is written than the network's own buffers hold."""
    await cluster.create_orders()
    server = await cluster.replica(pending_limit=8, history_limit=16)
    fanout = server.cache.fanout
    call = stub_of(server, channels).Watch(watch_after(0))
    before = (await call.read()).snapshot.revision
    text = "x" * 500_000
    written = 0
    for number in range(200):
        written = await cluster.write(
            Put(KEYS.config("topics", "orders"), codec.encode_configs({"k": f"{number}{text}"}))
        )
        await until(lambda revision=written: fanout.revision >= revision)  # type: ignore[misc]
        assert all(reader.pending <= 8 for reader in fanout._readers)
        assert fanout.history_weight <= 16
    deltas, snapshot = 0, None
    while snapshot is None:
        response = await asyncio.wait_for(call.read(), 20)
        if response.HasField("snapshot"):
            snapshot = response.snapshot
        else:
            assert response.delta.revision > before
            before, deltas = response.delta.revision, deltas + 1
    assert snapshot.revision >= written
    assert image_from_proto(snapshot) == server.cache.image
    assert deltas < 150
    last = await cluster.change_orders(1)
    assert (await asyncio.wait_for(call.read(), 20)).delta.revision == last


async def test_a_cut_from_the_registry_is_served_through_and_caught_up(cluster: Cluster, channels: Channels) -> None:
    await cluster.create_orders()
    assert cluster.store is not None
    registry = MemoryRegistry(cluster.store, request_timeout=0.05)
    server = await cluster.replica(registry=registry)
    stub = stub_of(server, channels)
    call = stub.Watch(watch_after(0))
    await call.read()
    registry.cut()
    missed = [await cluster.change_orders(epoch) for epoch in range(1, 5)]
    cluster.store.compact(missed[-1])
    assert (await stub.GetMetadata(metadata_pb2.GetMetadataRequest(), timeout=5)).snapshot.topics
    registry.heal()
    caught_up = await asyncio.wait_for(call.read(), 10)
    assert caught_up.snapshot.topics[0].partitions[0].partition_epoch == 4


async def test_groups_find_their_coordinator(cluster: Cluster, channels: Channels) -> None:
    offsets = uuid.UUID(int=2)
    await cluster.write(
        *(Put(KEYS.partition(str(offsets), n), partition_value(0)) for n in range(50)),
        Put(KEYS.topic("__consumer_offsets"), codec.encode_topic(codec.TopicEntry(offsets, 50))),
        Put(KEYS.offsets_owner(22), codec.encode_offsets_owner(7)),
        Put(KEYS.coordinator(7), Registration("7", "h", {"kafka": 1, "grpc": 2}, "", "i").to_bytes()),
    )
    server = await cluster.replica()
    request = metadata_pb2.FindCoordinatorRequest(group_ids=["hello", "other"])
    found, lost = (await stub_of(server, channels).FindCoordinator(request, timeout=5)).coordinators
    assert (found.group_id, found.node.id, found.node.kafka.port) == ("hello", 7, 1)
    assert (lost.group_id, lost.error.code) == ("other", common_pb2.COORDINATOR_NOT_AVAILABLE)


async def test_a_replica_registers_itself_and_leaves(cluster: Cluster, channels: Channels) -> None:
    assert cluster.store is not None
    store = cluster.store
    server = await cluster.replica("pod-1")
    await until(lambda: store.get(KEYS.metadata("pod-1")) is not None)
    value = store.get(KEYS.metadata("pod-1"))
    assert value is not None
    assert Registration.from_bytes(value.value).ports == {"grpc": server.port}
    call = stub_of(server, channels).Watch(watch_after(0))
    await call.read()
    began = time.monotonic()
    await server.stop(grace=30)
    assert time.monotonic() - began < 15
    assert store.get(KEYS.metadata("pod-1")) is None
    assert await call.read() is grpc.aio.EOF


async def test_nothing_is_served_before_the_first_picture(cluster: Cluster, channels: Channels) -> None:
    assert cluster.store is not None
    registry = MemoryRegistry(cluster.store, request_timeout=0.05)
    registry.cut()
    await cluster.create_orders()
    server = await cluster.replica(registry=registry)
    health = health_pb2_grpc.HealthStub(channels.get(address(server)))
    answer = asyncio.ensure_future(stub_of(server, channels).GetMetadata(metadata_pb2.GetMetadataRequest(), timeout=10))
    status = (await health.Check(health_pb2.HealthCheckRequest())).status
    assert status == health_pb2.HealthCheckResponse.NOT_SERVING
    registry.heal()
    assert [topic.name for topic in (await answer).snapshot.topics] == ["orders"]


async def test_on_a_real_etcd(etcd: LocalEtcd, channels: Channels) -> None:
    registry = EtcdRegistry([etcd.endpoint])
    await registry.txn([], [Delete(Keys("c1").root, prefix=True)])
    async with AsyncExitStack() as stack:
        cluster = Cluster(registry, stack)
        await cluster.create_orders(100)
        server = await cluster.replica()
        call = stub_of(server, channels).Watch(watch_after(0))
        snapshot = (await asyncio.wait_for(call.read(), 10)).snapshot
        assert len(snapshot.topics[0].partitions) == 100
        revision = await cluster.change_orders(1)
        assert (await asyncio.wait_for(call.read(), 10)).delta.revision == revision
    await registry.close()
