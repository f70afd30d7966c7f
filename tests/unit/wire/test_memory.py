"""Memory stays flat whatever is sent."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import struct
from dataclasses import replace

from conftest import frame, until

from headrace.wire.connection import Connection
from headrace.wire.frame_memory import FrameMemory
from headrace.wire.frames import FIRST_ALLOCATION


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_an_announced_frame_takes_no_memory_until_its_bytes_come(live) -> None:
    one = await live()
    before = resident_bytes()
    for _ in range(50):
        _, writer = await one.raw()
        writer.write(struct.pack(">i", 100 << 20))
    await until(lambda: one.listener.memory.used > 0 and len(one.listener.connections) == 50)
    assert one.listener.memory.used <= 50 * FIRST_ALLOCATION
    assert resident_bytes() - before < 30 << 20


async def test_frames_together_are_bounded_and_none_starves(live) -> None:
    limit = 4 << 20
    one = await live(queued_max_request_bytes=limit)
    clients = [await one.client() for _ in range(12)]
    body = b"now" + bytes(3 << 20)
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, one.listener.memory.used)
            await asyncio.sleep(0)

    watcher = asyncio.ensure_future(watch())
    answers = await asyncio.gather(*(client.send(0, 3, [body]) for client in clients))
    watcher.cancel()
    assert all(answer == body for answer in answers)
    assert most <= limit + len(body) + 12 * 65536 + FIRST_ALLOCATION
    await until(lambda: one.listener.memory.used == 0)


async def test_a_frame_that_stands_still_gives_way(live) -> None:
    one = await live(queued_max_request_bytes=1 << 20, stalled_frame_ms=100)
    _, stalled = await one.raw()
    whole = frame(b"now" + bytes(8 << 20))
    stalled.write(whole[: 5 << 20])
    await until(lambda: one.listener.memory.used > 1 << 20)
    client = await one.client()
    body = b"now" + bytes(2 << 20)
    assert bytes(await client.send(0, 3, [body])) == body
    assert one.listener.metrics.connections_dropped == 1


def connections_in_memory() -> int:
    return sum(type(each) is Connection for each in gc.get_objects())


async def test_a_closed_connection_is_freed_without_the_collector(live, uncollected: None) -> None:
    """Half a frame, a frame of its own and an answer under way: all that a connection can hold when it ends."""
    one = await live()
    before = connections_in_memory()
    for begun in (b"\0\0", frame(b"later")[:-2], frame(b"now" + bytes(1 << 20))[: 1 << 19], frame(b"later")):
        reader, writer = await one.raw()
        writer.write(begun)
        await until(
            lambda all_of_it=begun: [each.bytes_moved() for each in one.listener.connections] == [len(all_of_it)]
        )
        writer.close()
        await until(lambda: not one.listener.connections)
        one.service.parked.clear()
        with contextlib.suppress(ConnectionError):
            await reader.read()
    await until(lambda: connections_in_memory() == before)


class Owner:
    granted = 0

    def memory_granted(self) -> None:
        self.granted += 1


def test_one_frame_at_a_time_may_pass_the_limit() -> None:
    memory = FrameMemory(100)
    first, second, third = Owner(), Owner(), Owner()
    assert memory.grow(first, 90)
    assert memory.grow(second, 50), "the first to need more than there is gets it"
    assert not memory.grow(third, 50)
    memory.forget(second)
    assert third.granted == 1
    assert memory.grow(third, 50)
    memory.give_back(190)
    assert memory.used == 0


async def test_garbage_for_seconds_and_a_good_client_goes_on(live, caplog) -> None:
    caplog.set_level("CRITICAL")
    one = await live()
    good = await one.client()
    chance = random.Random(4)
    body = b"now" + b"x" * 1000

    async def vandal() -> None:
        kind = chance.randrange(5)
        reader, writer = await asyncio.open_connection(*one.listener.address)
        if kind == 0:
            writer.write(chance.randbytes(chance.randrange(1, 3000)))
        elif kind == 1:
            writer.write(struct.pack(">i", chance.choice([2**31 - 1, -1, 100 << 20])) + chance.randbytes(300))
        elif kind == 2:
            junk = chance.randbytes(chance.randrange(0, 200))
            writer.write(frame(junk, chance.randrange(-1, 95), chance.randrange(-1, 20)))
        elif kind == 3:
            writer.write(frame(b"now" + chance.randbytes(70_000))[: chance.randrange(70_000)])
        else:
            junk = struct.pack(">I", chance.choice([0x7FFFFFFF, 0xFFFFFFFF])) * chance.randrange(1, 20)
            writer.write(frame(junk, chance.choice([3, 18, 22]), chance.randrange(0, 13)))
        try:
            await writer.drain()
            await asyncio.wait_for(reader.read(100), 0.02)
        except (ConnectionError, TimeoutError):
            pass
        writer.close()

    async def rounds(count: int) -> None:
        for _ in range(count):
            vandals = [asyncio.ensure_future(vandal()) for _ in range(10)]
            for _ in range(5):
                assert await asyncio.wait_for(good.send(0, 3, [body]), 10) == body
            await asyncio.gather(*vandals)

    await rounds(15)
    before = resident_bytes()
    await rounds(60)
    await until(lambda: len(one.listener.connections) == 1)
    assert one.listener.memory.used == 0
    assert resident_bytes() - before < 8 << 20
    assert one.listener.metrics.connections_dropped > 50


async def test_a_buffer_is_used_again_only_when_nobody_refers_to_it(live) -> None:
    one = await live()
    kept: list[memoryview] = []

    def keeping(context, body: memoryview) -> bytes:
        kept.append(body)
        return b"ok"

    table = one.listener.api.table
    table[0] = replace(table[0], call=keeping)
    client = await one.client()
    bodies = [bytes([number]) * 100_000 for number in range(8)]
    for body in bodies:
        await client.send(0, 3, [body])
    assert kept == bodies, "a frame that a handler kept was overwritten"
    buffers = {id(each.obj) for each in kept}
    assert len(buffers) == 8
    kept.clear()
    for body in bodies:
        await client.send(0, 3, [body])
        assert id(kept.pop().obj) in buffers
