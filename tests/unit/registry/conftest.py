"""Three stores behind the same door: every contract test runs on all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol
from uuid import uuid4

import pytest
from tests.integration.etcd import etcd  # noqa: F401
from tests.sim.registry import SimRegistry, SimStore
from tests.unit.registry.tcp_link import TcpLink

from headrace.ports import SystemClock
from headrace.registry.api import Registry
from headrace.registry.etcd import EtcdRegistry
from headrace.registry.local_etcd import LocalEtcd
from headrace.registry.memory import MemoryRegistry, MemoryStore


class Backend(Protocol):
    """A store, and the power to disturb one client's way to it."""

    ttl: float
    root: str

    async def client(self) -> Registry: ...
    def cut(self, client: Registry) -> None: ...
    def pause(self, client: Registry) -> None: ...
    def heal(self, client: Registry) -> None: ...
    async def compact(self, revision: int) -> None: ...
    async def revoke(self, lease: int) -> None: ...
    async def close(self) -> None: ...


class EtcdBackend:
    ttl = 1.0

    def __init__(self, server: LocalEtcd) -> None:
        self.root = f"/{uuid4().hex}/"
        self.server = server
        self._direct = EtcdRegistry([server.endpoint])
        self._clients: dict[int, tuple[EtcdRegistry, TcpLink]] = {}

    async def client(self) -> EtcdRegistry:
        link = TcpLink("127.0.0.1", self.server.client_port)
        await link.open()
        client = EtcdRegistry([link.address], request_timeout=2, watch_idle=0.3)
        self._clients[id(client)] = (client, link)
        return client

    def link(self, client: Registry) -> TcpLink:
        return self._clients[id(client)][1]

    def cut(self, client: Registry) -> None:
        self.link(client).cut()

    def pause(self, client: Registry) -> None:
        self.link(client).pause()

    def heal(self, client: Registry) -> None:
        self.link(client).heal()

    async def compact(self, revision: int) -> None:
        await self._direct.compact(revision)

    async def revoke(self, lease: int) -> None:
        await self._direct.revoke(lease)

    async def close(self) -> None:
        for client, link in self._clients.values():
            await client.close()
            await link.close()
        await self._direct.close()


class MemoryBackend:
    ttl = 0.3
    root = "/test/"

    def __init__(self, kind: type[MemoryRegistry] = MemoryRegistry, store: type[MemoryStore] = MemoryStore) -> None:
        self.store = store(SystemClock())
        self._kind = kind
        self._clients: list[MemoryRegistry] = []

    async def client(self) -> MemoryRegistry:
        client = self._kind(self.store, request_timeout=0.05)
        self._clients.append(client)
        return client

    def cut(self, client: Registry) -> None:
        assert isinstance(client, MemoryRegistry)
        client.cut()

    pause = cut

    def heal(self, client: Registry) -> None:
        assert isinstance(client, MemoryRegistry)
        client.heal()

    async def compact(self, revision: int) -> None:
        self.store.compact(revision)

    async def revoke(self, lease: int) -> None:
        self.store.revoke(lease)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        self.store.close()


@pytest.fixture(params=["memory", "simulation", "etcd"])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    made: Backend
    if request.param == "etcd":
        made = EtcdBackend(request.getfixturevalue("etcd"))
    else:
        made = MemoryBackend() if request.param == "memory" else MemoryBackend(SimRegistry, SimStore)
    yield made
    await made.close()


@pytest.fixture
async def registry(backend: Backend) -> Registry:
    return await backend.client()


@pytest.fixture
def root(backend: Backend) -> str:
    return backend.root


async def eventually(check: Callable[[], Awaitable[bool]], within: float = 10.0) -> None:
    deadline = time.monotonic() + within
    while not await check():
        assert time.monotonic() < deadline, f"not within {within:g} s"
        await asyncio.sleep(0.02)
