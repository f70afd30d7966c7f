"""A store that metadata replicas follow, and writers that change it as the controller would."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from tests.integration.etcd import etcd  # noqa: F401

from headrace.cluster import codec
from headrace.cluster.codec import TopicEntry
from headrace.cluster.image import Endpoint, Partition
from headrace.metadata.server import MetadataConfig, MetadataServer, start
from headrace.ports import SystemClock
from headrace.registry.api import Delete, Put, Registry
from headrace.registry.keys import Keys
from headrace.registry.memory import MemoryRegistry, MemoryStore

KEYS = Keys("c1")
ORDERS = uuid.UUID(int=1)


class Cluster:
    """One store, any number of replicas."""

    def __init__(self, writer: Registry, stack: AsyncExitStack, store: MemoryStore | None = None) -> None:
        self.writer = writer
        self.store = store
        self._stack = stack

    async def replica(
        self, name: str = "m0", registry: Registry | None = None, port: int = 0, **limits: int
    ) -> MetadataServer:
        if registry is None:
            registry = MemoryRegistry(self.store, request_timeout=0.05) if self.store else self.writer
        config = MetadataConfig("c1", name, Endpoint("127.0.0.1", port), session_ttl=5.0, **limits)
        server = await start(registry, config)
        self._stack.push_async_callback(server.stop, 0.1)
        return server

    async def write(self, *changes: Put | Delete) -> int:
        return (await self.writer.txn([], changes)).revision

    async def create_orders(self, count: int = 1) -> int:
        return await self.write(
            *(Put(KEYS.partition(str(ORDERS), n), partition_value(0)) for n in range(count)),
            Put(KEYS.topic("orders"), codec.encode_topic(TopicEntry(ORDERS, count))),
        )

    async def change_orders(self, epoch: int) -> int:
        return await self.write(Put(KEYS.partition(str(ORDERS), 0), partition_value(epoch)))


def partition_value(epoch: int) -> bytes:
    return codec.encode_partition(Partition(1, 0, (1,), (1,), epoch))


def address(server: MetadataServer) -> str:
    return f"127.0.0.1:{server.port}"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    store = MemoryStore(SystemClock())
    async with AsyncExitStack() as stack:
        yield Cluster(MemoryRegistry(store), stack, store)
    store.close()
