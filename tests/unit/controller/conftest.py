"""A little cluster on each kind of registry."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from tests.integration.etcd import etcd  # noqa: F401
from tests.unit.controller.little_cluster import LittleCluster

from headrace.ports import SystemClock
from headrace.registry.api import Registry
from headrace.registry.etcd import EtcdRegistry
from headrace.registry.memory import MemoryRegistry, MemoryStore


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    made = MemoryStore(SystemClock())
    yield made
    made.close()


@pytest.fixture
async def in_memory(store: MemoryStore) -> AsyncIterator[LittleCluster]:
    """A cluster whose registry can be disturbed."""

    async def connect() -> Registry:
        return MemoryRegistry(store, request_timeout=0.1)

    cluster = LittleCluster(connect, "little", ttl=2.0)
    yield cluster
    await cluster.close()


@pytest.fixture(params=["memory", "etcd"])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[LittleCluster]:
    """The same cluster on both kinds of registry."""
    if request.param == "memory":
        store = MemoryStore(SystemClock())

        async def connect() -> Registry:
            return MemoryRegistry(store)

        made = LittleCluster(connect, "little", ttl=2.0)
        yield made
        await made.close()
        store.close()
        return
    server = request.getfixturevalue("etcd")

    async def connect_etcd() -> Registry:
        return EtcdRegistry([server.endpoint])

    made = LittleCluster(connect_etcd, uuid4().hex, ttl=2.0)
    yield made
    await made.close()
