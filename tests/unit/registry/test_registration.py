"""Who may hold a broker id, and who finds out that it lost it."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from uuid import uuid4

import pytest
from tests.unit.registry.conftest import Backend

from headrace.errors import ErrorCode
from headrace.ports import SystemClock
from headrace.registry.api import Registry
from headrace.registry.registration import DuplicateBroker, Fenced, Registration, keep_registered, register

CLOCK = SystemClock()


def process(directory: str = "dir-1", rack: str | None = None) -> Registration:
    return Registration("1", "127.0.0.1", {"kafka": 9092, "grpc": 9094}, directory, uuid4().hex, rack)


async def soon(awaitable):
    return await asyncio.wait_for(awaitable, 15)


def test_a_registration_of_a_newer_version_can_be_read() -> None:
    me = process()
    newer = {**json.loads(me.to_bytes()), "features": {"x": 1}}
    assert Registration.from_bytes(json.dumps(newer).encode()) == me


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'{"id": "1"}'])
def test_what_is_no_registration_is_said_to_be_none(value: bytes) -> None:
    with pytest.raises(ValueError, match="no registration"):
        Registration.from_bytes(value)


async def test_the_epoch_is_the_create_revision_of_what_everyone_can_read(
    backend: Backend, registry: Registry, root: str
) -> None:
    session = await registry.session(backend.ttl)
    me = process(rack="a")
    registered = await register(registry, session, root + "brokers/1", me)
    held = await registry.get(root + "brokers/1")
    assert held is not None
    assert held.create_revision == registered.epoch
    assert Registration.from_bytes(held.value) == me
    assert registered.valid


async def test_another_directory_is_refused_while_the_id_is_taken(backend: Backend, root: str) -> None:
    key = root + "brokers/1"
    first, second = await backend.client(), await backend.client()
    session = await first.session(backend.ttl)
    registered = await register(first, session, key, process("dir-1"))
    newcomer = await second.session(backend.ttl)
    with pytest.raises(DuplicateBroker, match=r"id 1 is taken .*dir-1.*dir-2") as refused:
        await register(second, newcomer, key, process("dir-2"))
    assert refused.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert registered.valid
    await session.close()
    taken = await register(second, newcomer, key, process("dir-2"))
    assert taken.epoch > registered.epoch


async def test_the_same_directory_takes_over_at_once_and_fences_the_old_process(backend: Backend, root: str) -> None:
    key = root + "brokers/1"
    old, new = await backend.client(), await backend.client()
    old_session, new_session = await old.session(30), await new.session(30)
    before = await register(old, old_session, key, process())
    after = await register(new, new_session, key, process())
    assert after.epoch > before.epoch
    await soon(before.lost())
    assert before.fenced
    assert not before.valid
    assert old_session.valid
    assert after.valid
    # The old lease no longer carries the key.
    await old_session.close()
    assert (await new.get(key)).create_revision == after.epoch  # type: ignore[union-attr]


async def test_a_lost_lease_brings_a_new_epoch(backend: Backend, root: str) -> None:
    key = root + "brokers/1"
    client = await backend.client()
    async with aclosing(keep_registered(client, key, process(), backend.ttl, CLOCK)) as epochs:
        first = await soon(anext(epochs))
        backend.cut(client)
        await soon(first.lost())
        assert not first.fenced
        backend.heal(client)
        second = await soon(anext(epochs))
        assert second.epoch > first.epoch
        assert second.valid
    assert await client.get(key) is None


async def test_a_process_that_was_replaced_while_away_stops(backend: Backend, root: str) -> None:
    key = root + "brokers/1"
    old, new = await backend.client(), await backend.client()
    async with aclosing(keep_registered(old, key, process(), backend.ttl, CLOCK)) as epochs:
        first = await soon(anext(epochs))
        backend.cut(old)
        taken = await register(new, await new.session(30), key, process())
        await soon(first.lost())
        backend.heal(old)
        with pytest.raises(Fenced, match="must stop"):
            await soon(anext(epochs))
    assert taken.valid


async def test_a_process_that_is_replaced_while_it_runs_stops(backend: Backend, root: str) -> None:
    key = root + "brokers/1"
    old, new = await backend.client(), await backend.client()
    async with aclosing(keep_registered(old, key, process(), 30, CLOCK)) as epochs:
        await soon(anext(epochs))
        taken = await register(new, await new.session(30), key, process())
        with pytest.raises(Fenced, match="taken away"):
            await soon(anext(epochs))
    assert taken.valid
