"""One owner at a time, with an epoch that only grows; who lost knows it and cannot write."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.registry.conftest import Backend

from headrace.ports import SystemClock
from headrace.registry.api import Delete, LeaseLost, Put, Registry, Session
from headrace.registry.election import Candidate, Leadership, campaign
from headrace.registry.keys import Keys
from headrace.registry.memory import MemoryRegistry, MemoryStore

CLOCK = SystemClock()


class Runner:
    """A candidate with its own client and session, running for election in a task."""

    def __init__(self, number: int, client: Registry, session: Session, root: str) -> None:
        self.candidate = Candidate(number, f"127.0.0.1:{number}")
        self.client = client
        self.session = session
        key = f"{root}controller"
        self.elected: asyncio.Task[Leadership] = asyncio.create_task(
            campaign(client, session, key, f"{key}_epoch", self.candidate, CLOCK)
        )


async def runners(backend: Backend, count: int) -> list[Runner]:
    made = []
    for number in range(count):
        client = await backend.client()
        made.append(Runner(number, client, await client.session(backend.ttl), backend.root))
    return made


async def winner(waiting: list[Runner]) -> tuple[Runner, Leadership]:
    """The one that is elected; it is taken out of `waiting`."""
    await asyncio.wait({r.elected for r in waiting}, return_when=asyncio.FIRST_COMPLETED, timeout=15)
    elected = [r for r in waiting if r.elected.done()]
    assert len(elected) == 1
    waiting.remove(elected[0])
    return elected[0], elected[0].elected.result()


async def test_three_candidates_through_every_kind_of_loss(backend: Backend, root: str) -> None:
    waiting = await runners(backend, 3)
    observer = await backend.client()

    first, led = await winner(waiting)
    assert led.epoch == 1
    assert led.valid
    held = await observer.get(led.key)
    assert held is not None
    assert Candidate.from_bytes(held.value) == first.candidate
    assert (await first.client.txn([led.guard], [Put(root + "state", b"first")])).succeeded

    await backend.revoke(first.session.lease)
    second, second_led = await winner(waiting)
    assert second_led.epoch == 2
    await asyncio.wait_for(led.lost(), 10)
    assert not led.valid
    assert not (await first.client.txn([led.guard], [Put(root + "state", b"stale")])).succeeded

    await second_led.resign()
    _, third_led = await winner(waiting)
    assert third_led.epoch == 3
    assert not (await second.client.txn([second_led.guard], [Put(root + "state", b"stale")])).succeeded
    assert (await observer.txn([third_led.guard], [Put(root + "state", b"third")])).succeeded
    epoch = await observer.get(f"{root}controller_epoch")
    assert epoch is not None
    assert epoch.value == b"3"


async def test_a_leader_cut_off_stops_before_the_next_begins(backend: Backend, root: str) -> None:
    waiting = await runners(backend, 2)
    first, led = await winner(waiting)
    valid_then: list[bool] = []
    waiting[0].elected.add_done_callback(lambda _: valid_then.append(led.valid))
    backend.pause(first.client)
    await asyncio.wait_for(asyncio.shield(waiting[0].elected), 15)
    # By its own clock it has stopped by then; that it is told may come in the same turn of a busy loop.
    await asyncio.wait_for(led.lost(), 15)
    assert valid_then == [False]
    _, next_led = await winner(waiting)
    assert next_led.epoch == 2
    backend.heal(first.client)
    other = await backend.client()
    assert not (await other.txn([led.guard], [Put(root + "state", b"stale")])).succeeded


async def test_the_key_removed_by_hand_deposes(backend: Backend, registry: Registry) -> None:
    waiting = await runners(backend, 1)
    runner, led = await winner(waiting)
    await registry.txn([], [Delete(led.key)])
    await asyncio.wait_for(led.lost(), 10)
    assert led.fenced
    assert runner.session.valid
    assert not led.valid


async def test_a_candidate_whose_session_ends_is_told(backend: Backend) -> None:
    waiting = await runners(backend, 2)
    await winner(waiting)
    await waiting[0].session.close()
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(waiting[0].elected, 10)


async def test_waiting_costs_no_calls() -> None:
    """Candidates are woken by a watch: while nothing happens they ask nothing."""
    calls = 0

    def count() -> float:
        nonlocal calls
        calls += 1
        return 0.0

    store = MemoryStore(CLOCK)
    clients = [MemoryRegistry(store, delay=count) for _ in range(3)]
    sessions = [await client.session(60) for client in clients]
    tasks = [
        asyncio.create_task(campaign(c, s, "/c", "/c_epoch", Candidate(n, ""), CLOCK))
        for n, (c, s) in enumerate(zip(clients, sessions, strict=True))
    ]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(0.1)
    settled = calls
    await asyncio.sleep(0.3)
    assert calls == settled
    for task in tasks:
        task.cancel()
    for client in clients:
        await client.close()
    store.close()


@pytest.mark.parametrize("lost", range(4))
async def test_an_election_whose_answer_was_lost_is_found_out(lost: int) -> None:
    """Whichever answer is dropped, the candidate ends up leader, and the epoch has grown by one."""
    store = MemoryStore(CLOCK)
    client = MemoryRegistry(store, request_timeout=0.01)
    session = await client.session(60)
    client.drop_answers(lost)
    keys = Keys("c")
    led = await campaign(client, session, keys.controller, keys.controller_epoch, Candidate(1, "a"), CLOCK)
    assert led.epoch == 1
    assert (await client.txn([led.guard], [Put("/x", b"")])).succeeded
    await client.close()
    store.close()


async def test_the_answer_of_the_election_itself_is_lost() -> None:
    store = MemoryStore(CLOCK)

    class LosesTxnAnswers(MemoryRegistry):
        async def txn(self, conditions, changes):  # type: ignore[no-untyped-def]
            self.drop_answers(1)
            return await super().txn(conditions, changes)

    client = LosesTxnAnswers(store, request_timeout=0.01)
    session = await client.session(60)
    led = await campaign(client, session, "/c", "/c_epoch", Candidate(1, "a"), CLOCK)
    assert led.epoch == 1
    assert store.get("/c_epoch").value == b"1"  # type: ignore[union-attr]
    await client.close()
    store.close()
