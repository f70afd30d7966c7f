"""The runs of `headrace perf`, with a line that lives on a terminal and percentiles at the end."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from headrace.cli import session
from headrace.client import BufferFull, Consumer, Producer

_LINE_SECONDS = 0.25
_TURN = 200
"""Records between two looks at the clock."""


def percentiles(seconds: Sequence[float]) -> str:
    """The latencies that matter, in milliseconds.

    >>> percentiles([0.001] * 99 + [0.050])
    'p50 1.00 ms  p95 1.00 ms  p99 50.00 ms  p99.9 50.00 ms  max 50.00 ms'
    """
    if not seconds:
        return "no latencies"
    ordered = sorted(seconds)
    parts = []
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999)):
        parts.append(f"{name} {ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000:.2f} ms")
    return "  ".join([*parts, f"max {ordered[-1] * 1000:.2f} ms"])


class Meter:
    """Counts, and rewrites one line on a terminal a few times a second."""

    def __init__(self, verb: str, size: int = 0) -> None:
        self._verb = verb
        self.began = time.perf_counter()
        self._last = (self.began, 0)
        self.count = 0
        self.bytes = size
        self._live = sys.stderr.isatty()

    def add(self, records: int, size: int) -> None:
        self.count += records
        self.bytes += size
        now = time.perf_counter()
        if self._live and now - self._last[0] >= _LINE_SECONDS:
            rate = (self.count - self._last[1]) / (now - self._last[0])
            print(f"\r{self._verb} {self.count:,}  {rate:,.0f}/s\x1b[K", end="", file=sys.stderr, flush=True)
            self._last = (now, self.count)

    def result(self) -> str:
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        took = max(time.perf_counter() - self.began, 1e-9)
        return (
            f"{self._verb} {self.count:,} records in {took:.2f} s: {self.count / took:,.0f} records/s, "
            f"{self.bytes / took / 1e6:,.1f} MB/s"
        )


def produce(topic: str, records: int, size: int, rate: float, settings: dict[str, Any], bootstrap: str | None) -> None:
    """Sends and prints the result."""

    async def work() -> None:
        value = os.urandom(size)
        took: list[float] = []
        failed: list[BaseException] = []
        async with Producer(**session.client_settings(bootstrap), **settings) as producer:
            await producer.partitions_for(topic)
            meter = Meter("produced")
            clock = time.perf_counter

            def done(sent: float, future: asyncio.Future[Any]) -> None:
                error = future.exception()
                if error is not None:
                    failed.append(error)
                else:
                    took.append(clock() - sent)

            for n in range(records):
                while True:
                    try:
                        future = producer.send_nowait(topic, value)
                        break
                    except BufferFull as full:
                        await producer.room(full)
                future.add_done_callback(partial(done, clock()))
                if rate and (ahead := meter.began + (n + 1) / rate - clock()) > 0:
                    await asyncio.sleep(ahead)
                    meter.add(1, size)
                elif rate:
                    meter.add(1, size)
                elif n % _TURN == _TURN - 1:
                    meter.add(_TURN, size * _TURN)
                    await asyncio.sleep(0)
            meter.add(records - meter.count, size * (records - meter.count))
            await producer.flush()
            await asyncio.sleep(0)
            result = meter.result()
        print(result)
        print(percentiles(took))
        if failed:
            session.fail(f"{len(failed):,} records failed, the first with: {failed[0]}")

    session.run(work())


def consume(topic: str, records: int, settings: dict[str, Any], bootstrap: str | None) -> None:
    """Reads from the beginning and prints the result; stops at the end when there are fewer records."""

    async def work() -> None:
        async with Consumer(**session.client_settings(bootstrap), max_poll_records=5_000, **settings) as consumer:
            partitions = await consumer.partitions_for(topic)
            ends = await consumer.end_offsets(*partitions)
            starts = await consumer.beginning_offsets(*partitions)
            wanted = min(records, sum(ends[p] - starts[p] for p in partitions))
            await consumer.assign(partitions)
            await consumer.seek_to_beginning()
            meter = Meter("consumed")
            while meter.count < wanted:
                found = await consumer.poll(1.0, min(5_000, wanted - meter.count))
                meter.add(len(found), sum(len(r.value or b"") + len(r.key or b"") for r in found))
            print(meter.result())

    session.run(work())


def latency(topic: str, records: int, size: int, rate: float, settings: dict[str, Any], bootstrap: str | None) -> None:
    """Sends at a rate while reading, and prints how long each record was on its way."""

    async def work() -> None:
        took: list[float] = []
        mark = os.urandom(8)
        filling = os.urandom(max(0, size - 16))
        async with (
            Producer(**session.client_settings(bootstrap), **{"linger_ms": 0, **settings}) as producer,
            Consumer(**session.client_settings(bootstrap)) as consumer,
        ):
            await consumer.assign(await consumer.partitions_for(topic))
            await consumer.seek_to_end()

            async def read() -> None:
                async for record in consumer:
                    value = record.value or b""
                    if value[:8] == mark:
                        took.append((time.perf_counter_ns() - int.from_bytes(value[8:16], "big")) / 1e9)
                        if len(took) >= records:
                            return

            reading = asyncio.create_task(read())
            began = time.perf_counter()
            for n in range(records):
                ahead = began + n / rate - time.perf_counter()
                if ahead > 0:
                    await asyncio.sleep(ahead)
                producer.send_nowait(topic, mark + time.perf_counter_ns().to_bytes(8, "big") + filling)
            await producer.flush()
            try:
                async with asyncio.timeout(30):
                    await reading
            except TimeoutError:
                session.fail(f"{records - len(took):,} of {records:,} records did not arrive within 30 s")
        print(f"{len(took):,} records of {max(size, 16)} bytes at {rate:g}/s, from send to hand-over")
        print(percentiles(took))

    session.run(work())
