"""The follower on real replicas over loopback gRPC."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.unit.metadata.conftest import Cluster, address

from headrace.cluster.image import Image
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.server import MetadataServer
from headrace.registry.local_etcd import free_port
from headrace.registry.memory import MemoryRegistry
from headrace.rpc import serve
from headrace.rpc.image_follower import ImageFollower
from headrace.v1 import common_pb2, metadata_pb2, metadata_pb2_grpc


class InOrder(random.Random):
    """Leaves the servers in the order given."""

    def shuffle(self, x: object) -> None:  # type: ignore[override]
        return None


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as made:
        yield made


async def follow(stack: AsyncExitStack, *servers: str, **options: float) -> ImageFollower:
    return await stack.enter_async_context(ImageFollower(servers, chance=InOrder(1), max_backoff=0.2, **options))


def epoch_is(epoch: int) -> Callable[[Image], bool]:
    def holds(image: Image) -> bool:
        partition = image.partition("orders", 0)
        return partition is not None and partition.partition_epoch == epoch

    return holds


async def until(holds: Callable[[], bool], within: float = 10.0) -> None:
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline, f"not within {within:g} s"
        await asyncio.sleep(0.005)


class Diary:
    """What a listener saw: each partition epoch, and that every picture follows the one before."""

    def __init__(self, follower: ImageFollower) -> None:
        self.epochs: list[int] = []
        self._last = follower.image
        follower.listen(self._saw)

    def _saw(self, old: Image, new: Image) -> None:
        assert old is self._last
        assert new.revision > old.revision
        self._last = new
        before, after = old.partition("orders", 0), new.partition("orders", 0)
        if after is not None and before != after:
            self.epochs.append(after.partition_epoch)


async def test_every_change_is_heard_once_and_in_order(cluster: Cluster, stack: AsyncExitStack) -> None:
    await cluster.create_orders()
    server = await cluster.replica()
    follower = await follow(stack, address(server))
    diary = Diary(follower)
    await follower.wait_for(epoch_is(0), 10)
    for epoch in range(1, 101):
        await cluster.change_orders(epoch)
    image = await follower.wait_for(epoch_is(100), 10)
    assert image is follower.image
    assert follower.image == server.cache.image
    assert diary.epochs == list(range(101))


async def test_no_change_is_missed_when_a_replica_stops(cluster: Cluster, stack: AsyncExitStack) -> None:
    await cluster.create_orders()
    replicas = [await cluster.replica("m0"), await cluster.replica("m1")]
    for replica in replicas:
        await replica.cache.loaded.wait()
    follower = await follow(stack, *(address(replica) for replica in replicas))
    diary = Diary(follower)
    await follower.wait_for(epoch_is(0), 10)
    assert follower.server == address(replicas[0])
    stopping: asyncio.Task[None] | None = None
    for epoch in range(1, 301):
        await cluster.change_orders(epoch)
        if epoch == 100:
            stopping = asyncio.create_task(replicas[0].stop(0.1))
        if epoch % 10 == 0:
            await asyncio.sleep(0)
    await follower.wait_for(epoch_is(300), 10)
    assert stopping is not None
    await stopping
    assert follower.server == address(replicas[1])
    assert diary.epochs == list(range(301))


async def test_it_waits_for_a_replica_that_is_behind_instead_of_going_back(
    cluster: Cluster, stack: AsyncExitStack
) -> None:
    await cluster.create_orders()
    assert cluster.store is not None
    late_registry = MemoryRegistry(cluster.store, request_timeout=0.05)
    ahead, late = await cluster.replica("m0"), await cluster.replica("m1", late_registry)
    await asyncio.wait_for(late.cache.loaded.wait(), 10)
    follower = await follow(stack, address(ahead), address(late))
    diary = Diary(follower)
    await follower.wait_for(epoch_is(0), 10)
    late_registry.cut()
    for epoch in range(1, 6):
        await cluster.change_orders(epoch)
    await follower.wait_for(epoch_is(5), 10)
    await ahead.stop(0.1)
    await until(lambda: follower.server == address(late))
    assert late.cache.image.revision < follower.image.revision
    await cluster.change_orders(6)
    late_registry.heal()
    await follower.wait_for(epoch_is(6), 10)
    assert diary.epochs == list(range(7))


async def test_it_comes_back_when_the_only_replica_restarts(cluster: Cluster, stack: AsyncExitStack) -> None:
    await cluster.create_orders()
    port = free_port()
    first = await cluster.replica("m0", port=port)
    follower = await follow(stack, f"127.0.0.1:{port}")
    await follower.wait_for(epoch_is(0), 10)
    await first.stop(0.1)
    await until(lambda: follower.server is None)
    await cluster.change_orders(1)
    assert epoch_is(0)(follower.image)
    await cluster.replica("m0", port=port)
    await follower.wait_for(epoch_is(1), 20)


async def test_a_silent_server_is_left_for_the_next(cluster: Cluster, stack: AsyncExitStack) -> None:
    """It accepts connections and never says a word."""
    held: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    await cluster.create_orders()
    server: MetadataServer = await cluster.replica()
    follower = await follow(stack, f"127.0.0.1:{port}", address(server), answer_timeout=0.3)
    await follower.wait_for(epoch_is(0), 10)
    assert follower.server == address(server)
    for writer in held:
        writer.close()
    silent.close()


async def test_a_replica_without_a_picture_is_left_for_the_next(cluster: Cluster, stack: AsyncExitStack) -> None:
    await cluster.create_orders()
    assert cluster.store is not None
    cut_off = MemoryRegistry(cluster.store, request_timeout=0.05)
    cut_off.cut()
    blind, server = await cluster.replica("m0", cut_off), await cluster.replica("m1")
    follower = await follow(stack, address(blind), address(server), answer_timeout=0.1)
    await follower.wait_for(epoch_is(0), 10)
    assert follower.server == address(server)


class Garbling(metadata_pb2_grpc.MetadataServicer):
    """Answers with a topic whose id is not 16 bytes."""

    async def Watch(self, request: metadata_pb2.WatchRequest, context: Any) -> AsyncIterator[Any]:
        topic = common_pb2.Topic(name="orders", topic_id=b"short")
        yield metadata_pb2.WatchResponse(snapshot=metadata_pb2.Snapshot(revision=10**9, topics=[topic]))


async def test_a_replica_that_sends_garbage_is_left_for_the_next(cluster: Cluster, stack: AsyncExitStack) -> None:
    await cluster.create_orders()
    server = await cluster.replica()
    garbling = Garbling()
    rpc = await serve(
        "127.0.0.1",
        0,
        [("headrace.v1.Metadata", lambda s: metadata_pb2_grpc.add_MetadataServicer_to_server(garbling, s))],
    )
    stack.push_async_callback(rpc.stop, 0.1)
    follower = await follow(stack, f"127.0.0.1:{rpc.port}", address(server))
    await follower.wait_for(epoch_is(0), 10)
    assert follower.server == address(server)


async def test_waiting_ends_with_a_precise_error(stack: AsyncExitStack) -> None:
    follower = await follow(stack, f"127.0.0.1:{free_port()}")
    with pytest.raises(KafkaError, match="none can be reached") as caught:
        await follower.wait_for(lambda image: bool(image.topics), 0.05)
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert not follower._waiting


async def test_a_listener_or_a_predicate_that_fails_harms_nobody_else(cluster: Cluster, stack: AsyncExitStack) -> None:
    server = await cluster.replica()
    follower = await follow(stack, address(server))

    def fails(old: Image, new: Image) -> None:
        raise RuntimeError("mine")

    def bad(image: Image) -> bool:
        return image.revision > 0 and bool(image.brokers[7])

    follower.listen(fails)
    waiting = asyncio.ensure_future(follower.wait_for(bad, 10))
    await cluster.create_orders()
    await follower.wait_for(epoch_is(0), 10)
    with pytest.raises(KeyError):
        await waiting
    follower.unlisten(fails)
    await cluster.change_orders(1)
    await follower.wait_for(epoch_is(1), 10)


def test_an_older_snapshot_is_never_shown() -> None:
    follower = ImageFollower(["127.0.0.1:1"])
    follower._take(metadata_pb2.WatchResponse(snapshot=metadata_pb2.Snapshot(revision=9)))
    with pytest.raises(Exception, match="revision 8 is older than 9"):
        follower._take(metadata_pb2.WatchResponse(snapshot=metadata_pb2.Snapshot(revision=8)))
    shown = follower.image
    follower._take(metadata_pb2.WatchResponse(delta=metadata_pb2.Delta(revision=9)))
    assert follower.image is shown


def test_pauses_grow_only_after_every_replica_was_tried() -> None:
    follower = ImageFollower(["a:1", "b:1"], first_backoff=1.0, max_backoff=6.0, chance=random.Random(3))
    pauses = []
    for failures in range(1, 40):
        follower._failures = failures
        pauses.append(follower._pause())
    assert pauses[0] == 0
    assert 0.5 <= pauses[1] <= 1
    assert 1 <= pauses[2] <= 2
    assert all(3 <= pause <= 6 for pause in pauses[5:])
