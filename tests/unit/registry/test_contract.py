"""What every registry does: keys, transactions, leases, watches. Runs on etcd and on the in-memory registry."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.registry.conftest import Backend, EtcdBackend, eventually

from headrace.registry.api import (
    Changes,
    CreateRevision,
    Delete,
    Event,
    LeaseLost,
    ModRevision,
    Put,
    Registry,
    RegistryUnavailable,
    Snapshot,
)


async def put(registry: Registry, key: str, value: bytes = b"v", lease: int = 0) -> int:
    return (await registry.txn([], [Put(key, value, lease)])).revision


async def soon(awaitable):
    return await asyncio.wait_for(awaitable, 10)


async def test_a_key_keeps_its_create_revision_and_moves_its_mod_revision(registry: Registry, root: str) -> None:
    key = root + "k"
    assert await registry.get(key) is None
    created = await put(registry, key, b"1")
    changed = await put(registry, key, b"2")
    item = await registry.get(key)
    assert item is not None
    assert (item.value, item.create_revision, item.mod_revision) == (b"2", created, changed)
    assert changed == created + 1


async def test_a_key_put_again_after_removal_is_a_new_one(registry: Registry, root: str) -> None:
    key = root + "k"
    await put(registry, key)
    await registry.txn([], [Delete(key)])
    again = await put(registry, key)
    item = await registry.get(key)
    assert item is not None
    assert item.create_revision == again


async def test_all_conditions_or_nothing(registry: Registry, root: str) -> None:
    a, b = root + "a", root + "b"
    revision = await put(registry, a)
    refused = await registry.txn([ModRevision(a, revision), CreateRevision(b, revision)], [Put(a, b"x"), Put(b, b"x")])
    assert not refused.succeeded
    assert refused.revision == revision
    assert await registry.get(b) is None
    done = await registry.txn([ModRevision(a, revision), CreateRevision(b, 0)], [Put(a, b"x"), Put(b, b"y")])
    assert done.succeeded
    assert done.revision == revision + 1
    stale = await registry.txn([ModRevision(a, revision)], [Put(a, b"z")])
    assert not stale.succeeded
    kept = await registry.txn([CreateRevision(a, revision)], [Delete(b)])
    assert kept.succeeded


async def test_a_transaction_that_changes_nothing_makes_no_revision(registry: Registry, root: str) -> None:
    before = await put(registry, root + "a")
    assert (await registry.txn([], [Delete(root + "none")])).revision == before
    assert (await registry.txn([CreateRevision(root + "a", before)], [])).succeeded


async def test_what_etcd_would_refuse_is_refused_by_name(registry: Registry, root: str) -> None:
    with pytest.raises(ValueError, match="twice"):
        await registry.txn([], [Put(root + "a", b""), Put(root + "a", b"")])
    with pytest.raises(ValueError, match="put and deleted"):
        await registry.txn([], [Put(root + "a", b""), Delete(root, prefix=True)])
    many = [Put(f"{root}{n}", b"") for n in range(registry.max_txn_ops)]
    assert (await registry.txn([CreateRevision(p.key, 0) for p in many], many)).succeeded
    with pytest.raises(ValueError, match="at most"):
        await registry.txn([], [*many, Put(root + "one more", b"")])


async def test_snapshot_is_one_revision_in_key_order_and_no_neighbours(registry: Registry, root: str) -> None:
    for name in ("b/2", "b/10", "b/é", "bc", "b/1"):
        last = await put(registry, root + name)
    snapshot = await registry.snapshot(root + "b/")
    assert [item.key for item in snapshot.items] == [root + name for name in ("b/1", "b/10", "b/2", "b/é")]
    assert snapshot.revision == last
    await registry.txn([], [Delete(root + "b/", prefix=True)])
    assert [item.key for item in (await registry.snapshot(root)).items] == [root + "bc"]


async def test_a_large_snapshot_comes_whole(registry: Registry, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.registry.etcd._PAGE", 10)
    keys = [f"{root}{n:03}" for n in range(101)]
    await registry.txn([], [Put(key, b"") for key in keys])
    assert [item.key for item in (await registry.snapshot(root)).items] == keys


async def test_watch_begins_with_a_snapshot_and_goes_on_by_revision(registry: Registry, root: str) -> None:
    first = await put(registry, root + "a", b"1")
    async with registry.watch(root) as items:
        snapshot = await soon(anext(items))
        assert isinstance(snapshot, Snapshot)
        assert [(item.key, item.value) for item in snapshot.items] == [(root + "a", b"1")]
        await put(registry, "/elsewhere" + root, b"x")
        result = await registry.txn([], [Put(root + "a", b"2"), Put(root + "b", b"3"), Delete(root + "none")])
        gone = await registry.txn([], [Delete(root, prefix=True)])
        r = result.revision
        assert await soon(anext(items)) == Changes(
            r, (Event(root + "a", b"2", first, r), Event(root + "b", b"3", r, r))
        )
        g = gone.revision
        assert await soon(anext(items)) == Changes(g, (Event(root + "a", None, 0, g), Event(root + "b", None, 0, g)))


async def test_watch_after_a_revision_gives_exactly_what_came_later(registry: Registry, root: str) -> None:
    revisions = [await put(registry, f"{root}{n}") for n in range(5)]
    async with registry.watch(root, after=revisions[1]) as items:
        assert [(await soon(anext(items))).revision for _ in range(3)] == revisions[2:]


async def test_a_reader_that_is_far_behind_gets_all_of_it(registry: Registry, root: str) -> None:
    start = await put(registry, root)
    async with registry.watch(root, after=start) as items:
        written = [await put(registry, root) for _ in range(300)]
        assert [(await soon(anext(items))).revision for _ in written] == written


async def test_a_cancelled_wait_loses_nothing(registry: Registry, root: str) -> None:
    async with registry.watch(root) as items:
        await soon(anext(items))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(items), 0.05)
        revision = await put(registry, root + "a")
        assert (await soon(anext(items))).revision == revision


async def test_a_revision_of_many_large_keys_is_not_split(registry: Registry, root: str) -> None:
    """Over 1.5 MB in one response etcd fragments it, which shows when a watch catches up on history."""
    before = await put(registry, root + "before")
    for n in range(4):
        await registry.txn([], [Put(f"{root}{i}", b"%d" % n * 10_000) for i in range(100)])
    async with registry.watch(root, after=before) as items:
        for n in range(4):
            changes = await soon(anext(items))
            assert isinstance(changes, Changes)
            assert changes.revision == before + 1 + n
            assert len(changes.events) == 100


@pytest.mark.parametrize("disturbance", ["cut", "pause"])
async def test_watch_resumes_where_it_was(backend: Backend, root: str, disturbance: str) -> None:
    watcher, writer = await backend.client(), await backend.client()
    async with watcher.watch(root) as items:
        await soon(anext(items))
        expected = [await put(writer, root + "a")]
        assert (await soon(anext(items))).revision == expected[0]
        getattr(backend, disturbance)(watcher)
        missed = [await put(writer, f"{root}{n}") for n in range(10)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(items), 0.2)
        backend.heal(watcher)
        assert [(await soon(anext(items))).revision for _ in missed] == missed


async def test_watch_neither_misses_nor_repeats_while_connections_drop(backend: Backend, root: str) -> None:
    watcher, writer = await backend.client(), await backend.client()
    async with watcher.watch(root) as items:
        await soon(anext(items))
        written, seen = [], []
        for n in range(60):
            written.append(await put(writer, f"{root}{n % 7}"))
            if n % 10 == 0:
                backend.cut(watcher)
                backend.heal(watcher)
            if n % 3 == 0:
                seen.append((await soon(anext(items))).revision)
        while len(seen) < len(written):
            seen.append((await soon(anext(items))).revision)
        assert seen == written


async def test_compacted_while_away_gives_a_fresh_snapshot(backend: Backend, root: str) -> None:
    watcher, writer = await backend.client(), await backend.client()
    await put(writer, root + "gone")
    async with watcher.watch(root) as items:
        await soon(anext(items))
        backend.cut(watcher)
        # The removal is the very revision that is compacted: a resume at it would not show it.
        removed = (await writer.txn([], [Delete(root + "gone")])).revision
        await backend.compact(removed)
        backend.heal(watcher)
        snapshot = await soon(anext(items))
        assert isinstance(snapshot, Snapshot)
        assert snapshot.items == ()
        last = await put(writer, root + "a")
        assert (await soon(anext(items))).revision == last


async def test_compaction_of_what_was_seen_needs_no_snapshot(backend: Backend, root: str) -> None:
    watcher, writer = await backend.client(), await backend.client()
    async with watcher.watch(root) as items:
        await soon(anext(items))
        seen = await put(writer, root + "a")
        assert (await soon(anext(items))).revision == seen
        backend.cut(watcher)
        await backend.compact(seen)
        later = await put(writer, root + "b")
        backend.heal(watcher)
        changes = await soon(anext(items))
        assert isinstance(changes, Changes)
        assert changes.revision == later


async def test_closing_the_client_ends_its_watches(registry: Registry, root: str) -> None:
    async with registry.watch(root) as items:
        await soon(anext(items))
        waiting = asyncio.ensure_future(anext(items))
        await asyncio.sleep(0)
        await registry.close()
        with pytest.raises(StopAsyncIteration):
            await soon(waiting)
    with pytest.raises(RegistryUnavailable):
        await registry.get(root)


async def test_a_session_outlives_its_time_to_live(backend: Backend, registry: Registry, root: str) -> None:
    session = await registry.session(backend.ttl)
    revision = await put(registry, root + "e", lease=session.lease)
    await asyncio.sleep(session.ttl * 1.7)
    assert session.valid
    item = await registry.get(root + "e")
    assert item is not None
    assert (item.mod_revision, item.lease) == (revision, session.lease)


async def test_a_closed_session_takes_its_keys_along_in_one_revision(registry: Registry, root: str) -> None:
    session = await registry.session(5)
    await put(registry, root + "b", lease=session.lease)
    await put(registry, root + "a", lease=session.lease)
    kept = await put(registry, root + "kept", lease=session.lease)
    kept = await put(registry, root + "kept")
    async with registry.watch(root, after=kept) as items:
        await session.close()
        changes = await soon(anext(items))
        assert isinstance(changes, Changes)
        assert [(event.key, event.value) for event in changes.events] == [(root + "a", None), (root + "b", None)]
    assert not session.valid
    await soon(session.lost())
    with pytest.raises(LeaseLost):
        await put(registry, root + "a", lease=session.lease)
    # A transaction whose conditions fail says so, whatever its lease.
    assert not (await registry.txn([CreateRevision(root + "kept", 0)], [Put(root + "a", b"", session.lease)])).succeeded


@pytest.mark.parametrize("disturbance", ["cut", "pause"])
async def test_an_owner_cut_off_knows_before_its_keys_are_gone(backend: Backend, root: str, disturbance: str) -> None:
    owner, other = await backend.client(), await backend.client()
    session = await owner.session(backend.ttl)
    created = await put(owner, root + "e", lease=session.lease)
    async with other.watch(root, after=created) as items:
        getattr(backend, disturbance)(owner)
        gone = asyncio.ensure_future(anext(items))
        lost = asyncio.ensure_future(session.lost())
        await asyncio.wait({gone, lost}, return_when=asyncio.FIRST_COMPLETED, timeout=10)
        # A loop that stood still may tell both in one turn: what counts is that nobody acts as owner by then.
        assert not session.valid
        await soon(lost)
        await soon(gone)
    backend.heal(owner)
    await eventually(lambda: _is_none(owner, root + "e"))
    assert not session.valid


async def _is_none(registry: Registry, key: str) -> bool:
    try:
        return await registry.get(key) is None
    except RegistryUnavailable:
        return False


async def test_a_short_cut_costs_no_session(backend: Backend, root: str) -> None:
    client = await backend.client()
    session = await client.session(backend.ttl * 2)
    await put(client, root + "e", lease=session.lease)
    backend.cut(client)
    with pytest.raises(RegistryUnavailable):
        await client.get(root + "e")
    backend.heal(client)
    await asyncio.sleep(session.ttl * 1.2)
    assert session.valid


async def test_a_revoked_lease_ends_the_session(backend: Backend, registry: Registry) -> None:
    session = await registry.session(backend.ttl)
    await backend.revoke(session.lease)
    await soon(session.lost())
    assert not session.valid


async def test_unavailable_is_said_by_name_for_every_call(backend: Backend, root: str) -> None:
    client = await backend.client()
    await client.get(root)
    backend.cut(client)
    for call in (client.get(root), client.snapshot(root), client.txn([], [Put(root, b"")]), client.session(1)):
        with pytest.raises(RegistryUnavailable):
            await soon(call)
    backend.heal(client)
    await eventually(lambda: _is_none(client, root))


async def test_many_watches_of_one_client_see_the_same(backend: Backend, registry: Registry, root: str) -> None:
    start = await put(registry, root)

    async def collect(count: int) -> list[int]:
        async with registry.watch(root, after=start) as items:
            return [(await soon(anext(items))).revision for _ in range(count)]

    watchers = [asyncio.create_task(collect(20)) for _ in range(5)]
    written = [await put(registry, f"{root}{n}") for n in range(20)]
    assert all(seen == written for seen in await asyncio.gather(*watchers))
    if isinstance(backend, EtcdBackend):
        assert not registry._watches  # type: ignore[attr-defined]
