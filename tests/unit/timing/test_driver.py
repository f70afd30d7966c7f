"""The wheel on a real loop: never early, nothing armed while nothing waits."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable
from typing import cast

from headrace.errors import KafkaError
from headrace.timing.driver import TimerDriver
from headrace.timing.purgatory import DelayedOperation, Purgatory
from headrace.timing.wheel import TimerEntry


class Alarm(TimerEntry):
    __slots__ = ("call",)

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__()
        self.call = call

    def on_due(self) -> None:
        self.call()


async def test_entries_ring_in_order_and_never_early() -> None:
    driver = TimerDriver()
    loop = asyncio.get_running_loop()
    rang: list[int] = []
    early: list[float] = []
    done = asyncio.Event()

    def alarm(delay: int) -> None:
        due = loop.time() + delay / 1000

        def ring() -> None:
            rang.append(delay)
            # The loop itself may be early by its clock's resolution, a nanosecond here.
            early.extend([due - loop.time()] if loop.time() < due - 1e-6 else [])
            if len(rang) == 5:
                done.set()

        driver.schedule(Alarm(ring), delay)

    for delay in (60, 5, 25, 1, 43):
        alarm(delay)
    await asyncio.wait_for(done.wait(), 5)
    assert rang == [1, 5, 25, 43, 60]
    assert early == []
    assert not driver.armed
    driver.close()


class StoppedLoop:
    """A loop between two milliseconds, that notes for when it is asked to call back."""

    def __init__(self) -> None:
        self.calls: list[float] = []

    def time(self) -> float:
        return 1.0004

    def call_at(self, when: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        self.calls.append(when)
        return asyncio.TimerHandle(when, callback, (), asyncio.get_running_loop())


async def test_part_of_a_millisecond_is_rounded_up() -> None:
    loop = StoppedLoop()
    driver = TimerDriver(cast(asyncio.AbstractEventLoop, loop))
    driver.schedule(Alarm(lambda: None), 5)
    driver.schedule(Alarm(lambda: None), 9)
    driver.schedule(Alarm(lambda: None), 1)
    assert loop.calls == [1.006, 1.002]


async def test_nothing_is_armed_while_nothing_waits() -> None:
    driver = TimerDriver()
    assert not driver.armed
    done = asyncio.Event()
    cancelled = Alarm(lambda: None)
    driver.schedule(cancelled, 1)
    driver.schedule(Alarm(done.set), 30)
    assert driver.cancel(cancelled)
    await asyncio.wait_for(done.wait(), 5)
    assert not driver.armed
    assert len(driver) == 0


async def test_one_alarm_however_many_wait() -> None:
    driver = TimerDriver()
    loop = asyncio.get_running_loop()
    before = len(loop._scheduled)  # type: ignore[attr-defined]
    for n in range(1000):
        driver.schedule(Alarm(lambda: None), 10_000 + n)
    assert len(loop._scheduled) == before + 1  # type: ignore[attr-defined]
    driver.close()


async def test_an_entry_that_rings_may_cancel_and_set_others_of_the_same_moment() -> None:
    driver = TimerDriver()
    rang: list[str] = []
    done = asyncio.Event()
    victim = Alarm(lambda: rang.append("victim"))
    later = Alarm(lambda: (rang.append("later"), done.set()))

    def first() -> None:
        rang.append("first")
        driver.cancel(victim)
        driver.cancel(later)
        driver.schedule(later, 20)

    first_alarm = Alarm(first)
    for entry in (first_alarm, victim, later):
        driver._wheel.add(entry, driver.now_ms() + 5)
    driver._arm()
    await asyncio.wait_for(done.wait(), 5)
    assert rang == ["first", "later"]


async def test_a_failing_entry_does_not_stop_the_others() -> None:
    driver = TimerDriver()
    done = asyncio.Event()

    def fail() -> None:
        raise RuntimeError("on purpose")

    driver.schedule(Alarm(fail), 1)
    driver.schedule(Alarm(done.set), 2)
    await asyncio.wait_for(done.wait(), 5)


class Pending(DelayedOperation):
    """With room for what an operation of the broker holds: what to answer, and for which partitions."""

    __slots__ = ("answer", "needs")

    def __init__(self, answer: object, needs: object) -> None:
        super().__init__()
        self.answer = answer
        self.needs = needs

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None: ...

    def on_cancel(self, error: KafkaError) -> None: ...


async def test_a_million_pending_operations_would_cost_under_300_mb() -> None:
    """A fiftieth of them, each under two keys; bench/timing.py does the whole million."""
    count = 20_000
    driver = TimerDriver()
    purgatory = Purgatory("fetch", driver)
    keys = [("topic", n) for n in range(1000)]
    gc.collect()
    tracemalloc.start()
    for n in range(count):
        purgatory.add(Pending(None, None), (keys[n % 1000], keys[(n + 1) % 1000]), 500 + n % 30_000)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    driver.close()
    assert purgatory.size == count
    assert size / count * 1_000_000 < 300e6
