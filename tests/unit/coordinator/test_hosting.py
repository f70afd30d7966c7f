"""A partition's timers when the process stood still: what members said meanwhile counts before their sessions end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from headrace.coordinator.appending import PartitionWriter
from headrace.coordinator.calls import Heartbeat, JoinGroup, SyncGroup
from headrace.coordinator.config import GroupConfig
from headrace.coordinator.groups import Shard
from headrace.coordinator.hosting import GroupClock, Hosting
from headrace.coordinator.records import State
from headrace.errors import ErrorCode
from headrace.ports import SystemClock
from headrace.timing.driver import TimerDriver

SESSION_MS = 200
STALL_SECONDS = 0.6


class StoresAtOnce:
    """A sender whose broker answers in the next turn of the loop."""

    def __init__(self) -> None:
        self.clock = SystemClock()

    def ready(self, writer: PartitionWriter) -> None:
        asyncio.get_running_loop().call_soon(self._store, writer)

    def _store(self, writer: PartitionWriter) -> None:
        writer.next_batch(self.clock)
        if writer.settle(None, 0, self.clock.monotonic(), 5.0) is not None:
            self.ready(writer)


class Nothing:
    """A log without records."""

    async def load(self, partition: int, last: int) -> State:
        return State({}, {}, {})


@pytest.fixture
async def hosting() -> AsyncIterator[Hosting]:
    config = GroupConfig(group_min_session_timeout_ms=1, group_initial_rebalance_delay_ms=0)
    timers = TimerDriver()
    made = Hosting(
        0,
        0,
        1,
        Shard(config, lambda: "id"),
        GroupClock(SystemClock()),
        timers,
        StoresAtOnce(),  # type: ignore[arg-type]
        Nothing(),  # type: ignore[arg-type]
        lambda hosting, fenced: None,
    )
    await made.start()
    yield made
    made.stop()
    timers.close()


async def ask(hosting: Hosting, call: Any) -> Any:
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    call.token = answer.set_result
    hosting.handle(call)
    return await asyncio.wait_for(answer, 5)


async def member(hosting: Hosting) -> Callable[[], Heartbeat]:
    joined = await ask(
        hosting, JoinGroup("g", session_timeout_ms=SESSION_MS, protocols=(("range", b""),), client_id="c", version=3)
    )
    assert joined.error is ErrorCode.NONE
    synced = await ask(hosting, SyncGroup("g", joined.generation_id, joined.member_id))
    assert synced.error is ErrorCode.NONE
    return lambda: Heartbeat("g", joined.generation_id, joined.member_id)


async def test_a_heartbeat_that_waited_while_the_process_stood_still_counts(hosting: Hosting) -> None:
    heartbeat = await member(hosting)
    time.sleep(STALL_SECONDS)
    # The timers ring before the sockets are read: that is how a loop wakes from a stopped process.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (await ask(hosting, heartbeat())).error is ErrorCode.NONE
    await asyncio.sleep(0)
    assert hosting.shard.describe_groups(["g"])[0].state == "Stable"


async def test_who_said_nothing_is_out_all_the_same(hosting: Hosting) -> None:
    await member(hosting)
    time.sleep(STALL_SECONDS)
    async with asyncio.timeout(10):
        while hosting.shard.describe_groups(["g"])[0].state != "Empty":
            await asyncio.sleep(0.01)
