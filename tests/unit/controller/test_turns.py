from __future__ import annotations

import asyncio

import pytest

from headrace.controller.turns import Turns
from headrace.errors import ErrorCode, KafkaError


async def test_one_at_a_time_in_order_and_urgent_ones_first() -> None:
    turns, order, inside = Turns(limit=10), [], 0

    async def work(name: str, urgent: bool = False) -> None:
        nonlocal inside
        async with turns.turn(urgent=urgent):
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            order.append(name)
            inside -= 1

    await asyncio.gather(work("a"), work("b"), work("c"), work("election", urgent=True))

    assert order == ["a", "election", "b", "c"]
    assert not turns.taken


async def test_the_line_is_bounded_but_not_for_what_is_urgent() -> None:
    turns, go_on = Turns(limit=1), asyncio.Event()

    async def work(urgent: bool = False) -> None:
        async with turns.turn(urgent=urgent):
            await go_on.wait()

    tasks = [asyncio.ensure_future(work(urgent)) for urgent in (False, False, True, True)]
    await asyncio.sleep(0)
    with pytest.raises(KafkaError) as refused:
        await work()
    assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    go_on.set()
    await asyncio.gather(*tasks)


async def test_whoever_stops_waiting_does_not_block_the_others() -> None:
    turns, go_on, done = Turns(limit=10), asyncio.Event(), []

    async def work(name: str) -> None:
        async with turns.turn():
            await go_on.wait()
            done.append(name)
        if name == "first":
            # It has been given the turn, but has not run since.
            tasks["granted"].cancel()

    tasks = {name: asyncio.ensure_future(work(name)) for name in ("first", "leaves", "granted", "last")}
    await asyncio.sleep(0)
    tasks["leaves"].cancel()
    go_on.set()
    await tasks["last"]

    assert done == ["first", "last"]
    assert tasks["leaves"].cancelled()
    assert tasks["granted"].cancelled()
    assert not turns.taken
