"""When a session counts as valid, to the moment: on a clock that the test moves."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count

from headrace.registry.api import Put, RegistryUnavailable
from headrace.registry.memory import MemoryRegistry, MemoryStore
from headrace.registry.session import LeaseSession


class ManualClock:
    """Time passes in `advance` and nowhere else."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = count()

    def time_ms(self) -> int:
        return int(self._now * 1000)

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), future))
        await future

    async def advance(self, seconds: float) -> None:
        end = self._now + seconds
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            self._now, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)
            await self._settle()
        self._now = end

    async def _settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


class SlowLessor:
    """Answers each keep-alive `delay` seconds after it was sent."""

    def __init__(self, clock: ManualClock, delay: float) -> None:
        self.clock = clock
        self.delay = delay
        self.silent = False
        self.ttl = 9.0

    async def keep_alive(self, lease: int, timeout: float) -> float:
        if self.silent:
            await self.clock.sleep(timeout)
            raise RegistryUnavailable("silent")
        await self.clock.sleep(self.delay)
        return self.ttl

    async def revoke(self, lease: int) -> None:
        raise RegistryUnavailable("silent")


async def test_validity_counts_from_when_the_answered_keep_alive_was_sent() -> None:
    clock = ManualClock()
    lessor = SlowLessor(clock, delay=2.0)
    session = LeaseSession(lessor, clock, 1, 9.0, clock.monotonic(), lambda _: None)
    await clock.advance(5.5)  # sent at 3, answered at 5: good until 12, not until 14
    lessor.silent = True
    await clock.advance(6.4)
    assert session.valid
    await clock.advance(0.2)
    assert not session.valid
    await asyncio.wait_for(session.lost(), 1)
    session.abandon()


async def test_an_answer_after_the_deadline_does_not_bring_it_back() -> None:
    """Also when the loop was stuck, and the late answer is looked at before the deadline's own timer."""
    clock = ManualClock()
    answer: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    class Lessor(SlowLessor):
        async def keep_alive(self, lease: int, timeout: float) -> float:
            return await answer

    session = LeaseSession(Lessor(clock, 0), clock, 1, 9.0, clock.monotonic(), lambda _: None)
    await clock.advance(3.0)
    clock._now = 10.0
    assert not session.valid
    answer.set_result(9.0)
    await clock._settle()
    assert not session.valid
    session.abandon()


async def test_valid_turns_false_by_the_clock_alone() -> None:
    """As after a process was stopped for longer than its lease: no task has run yet, and it knows."""
    clock = ManualClock()
    session = LeaseSession(SlowLessor(clock, delay=0.0), clock, 1, 9.0, clock.monotonic(), lambda _: None)
    assert session.valid
    clock._now = 9.0
    assert not session.valid
    session.abandon()


async def test_closing_does_not_fail_when_the_store_is_away() -> None:
    clock = ManualClock()
    session = LeaseSession(SlowLessor(clock, delay=0.0), clock, 1, 9.0, clock.monotonic(), lambda _: None)
    await session.close()
    assert not session.valid


async def test_no_lease_ends_while_the_whole_store_is_away() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    owner, other = MemoryRegistry(store), MemoryRegistry(store)
    session = await owner.session(10)
    await owner.txn([], [Put("/e", b"", session.lease)])
    await clock.advance(5)
    store.available = False
    await clock.advance(60)
    assert not session.valid
    store.available = True
    assert await other.get("/e") is not None
    await clock.advance(11)
    assert await other.get("/e") is None
    await owner.close()
    store.close()
