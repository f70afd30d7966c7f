"""What only a real etcd can show: crashes, several endpoints, and how a local one is started."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.registry.tcp_link import TcpLink

from headrace.registry.api import Changes, Put, RegistryUnavailable
from headrace.registry.etcd import EtcdRegistry
from headrace.registry.local_etcd import LocalEtcd, LocalEtcdError, free_port


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[LocalEtcd]:
    server = LocalEtcd(tmp_path / "data", fsync=False)
    server.start()
    yield server
    server.stop()


async def put(registry: EtcdRegistry, key: str) -> int:
    """Puts until it is known to have happened."""
    async with asyncio.timeout(15):
        while True:
            try:
                return (await registry.txn([], [Put(key, b"")])).revision
            except RegistryUnavailable:
                continue


async def test_watches_and_sessions_go_on_through_kill_9(own_etcd: LocalEtcd) -> None:
    registry = EtcdRegistry([own_etcd.endpoint], request_timeout=1)
    session = await registry.session(10)
    await registry.txn([], [Put("/w/e", b"", session.lease)])
    async with registry.watch("/w/") as items:
        await anext(items)
        written = []
        for n in range(3):
            written.append(await put(registry, f"/w/{n}"))
            await asyncio.to_thread(own_etcd.kill)
            await asyncio.to_thread(own_etcd.start)
        written.append(await put(registry, "/w/last"))
        seen = [(await asyncio.wait_for(anext(items), 10)).revision for _ in written]
    assert seen == written
    assert session.valid
    assert await registry.get("/w/e") is not None
    await registry.close()


async def test_a_session_is_reported_lost_when_etcd_stays_away(own_etcd: LocalEtcd) -> None:
    registry = EtcdRegistry([own_etcd.endpoint], request_timeout=0.3)
    session = await registry.session(1)
    await asyncio.to_thread(own_etcd.kill)
    await asyncio.wait_for(session.lost(), 10)
    assert not session.valid
    await asyncio.to_thread(own_etcd.start)
    await registry.close()


async def test_a_frozen_etcd_is_noticed_by_a_silent_watch(own_etcd: LocalEtcd) -> None:
    registry = EtcdRegistry([own_etcd.endpoint], request_timeout=0.3, watch_idle=0.2)
    async with registry.watch("/w/") as items:
        await anext(items)
        own_etcd.pause()
        try:
            with pytest.raises(RegistryUnavailable):
                await registry.get("/w/")
        finally:
            own_etcd.resume()
        revision = await put(registry, "/w/a")
        changes = await asyncio.wait_for(anext(items), 10)
    # A put whose answer was lost while etcd thawed may have come first.
    assert isinstance(changes, Changes)
    assert changes.revision <= revision
    await registry.close()


async def test_a_connection_that_died_silently_costs_no_session(etcd: LocalEtcd) -> None:
    """As when a firewall forgets it. gRPC's pings alone would need 15 s to notice."""
    link = TcpLink("127.0.0.1", etcd.client_port)
    await link.open()
    registry = EtcdRegistry([link.address], request_timeout=0.3, watch_idle=0.2)
    other = EtcdRegistry([etcd.endpoint])
    session = await registry.session(2)
    async with registry.watch("/silent/") as items:
        await anext(items)
        link.stall()
        revision = await put(other, "/silent/a")
        assert (await asyncio.wait_for(anext(items), 8)).revision == revision
    await asyncio.sleep(session.ttl)
    assert session.valid
    await registry.close()
    await other.close()
    await link.close()


async def test_a_loop_with_slow_turns_keeps_its_session(etcd: LocalEtcd) -> None:
    """A process with too many clients for its share of a core goes on owning what it owns."""
    registry = EtcdRegistry([etcd.endpoint])
    session = await registry.session(3)
    turns = 0
    while turns < 20 and session.valid:
        time.sleep(0.3)
        await asyncio.sleep(0)
        turns += 1
    assert turns == 20
    assert session.valid
    await registry.close()


async def test_the_next_endpoint_is_used_when_one_fails(etcd: LocalEtcd) -> None:
    links = [TcpLink("127.0.0.1", etcd.client_port) for _ in range(2)]
    for link in links:
        await link.open()
    nobody = f"127.0.0.1:{free_port()}"
    registry = EtcdRegistry([nobody, *(f"http://{link.address}" for link in links)], request_timeout=2)
    async with registry.watch("/failover/") as items:
        start = (await asyncio.wait_for(anext(items), 10)).revision
        links[0].cut()
        first = await put(registry, "/failover/a")
        assert first > start
        assert (await asyncio.wait_for(anext(items), 10)).revision == first
        links[0].heal()
        links[1].cut()
        second = await put(registry, "/failover/b")
        assert (await asyncio.wait_for(anext(items), 10)).revision == second
    await registry.close()
    for link in links:
        await link.close()


async def test_a_store_that_went_back_gives_a_snapshot(own_etcd: LocalEtcd) -> None:
    """As after a restore from an older backup: the revision that was seen is in the future now."""
    registry = EtcdRegistry([own_etcd.endpoint])
    async with registry.watch("/w/", after=1_000_000) as items:
        snapshot = await asyncio.wait_for(anext(items), 10)
        assert snapshot.revision < 1_000_000
        revision = await put(registry, "/w/a")
        assert (await asyncio.wait_for(anext(items), 10)).revision == revision
    await registry.close()


def test_a_taken_port_is_said_plainly(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LocalEtcdError, match=rf"client port 127\.0\.0\.1:{port} .*in use"):
            LocalEtcd(tmp_path, client_port=port).start()


def test_a_directory_in_use_is_said_plainly(own_etcd: LocalEtcd) -> None:
    with pytest.raises(LocalEtcdError, match=rf"in use by another etcd \(pid {own_etcd.pid}\)"):
        LocalEtcd(own_etcd.data_dir).start()


def test_a_failing_start_shows_the_end_of_the_log(tmp_path: Path) -> None:
    with pytest.raises(LocalEtcdError, match="election"):
        LocalEtcd(tmp_path, options=("--election-timeout=1",)).start()
