"""At least once: handle a record, then commit. A crash in between makes the last records come again, none is missed."""

# ruff: noqa: T201
from __future__ import annotations

import asyncio
import os
import uuid

from headrace.client import Admin, Consumer, Producer

SERVERS = os.environ.get("HEADRACE_BOOTSTRAP", "127.0.0.1:9094")
RECORDS = 10


class Crash(Exception):
    """The program dies here."""


async def work(topic: str, group: str, handled: list[int], crash_after: int | None) -> None:
    consumer = Consumer(
        bootstrap_servers=SERVERS, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    )
    async with consumer:
        await consumer.subscribe([topic])
        while len(set(handled)) < RECORDS:
            for record in await consumer.poll(max_records=4):
                handled.append(int(record.value))
                if len(handled) == crash_after:
                    raise Crash
            # Only now: everything that the poll returned is done.
            await consumer.commit()


async def main() -> None:
    topic = f"jobs-{uuid.uuid4().hex[:6]}"
    async with Admin(bootstrap_servers=SERVERS) as admin:
        await admin.create_topic(topic, partitions=1)
    async with Producer(bootstrap_servers=SERVERS) as producer:
        for n in range(RECORDS):
            await producer.send(topic, str(n))

    handled: list[int] = []
    try:
        await work(topic, f"{topic}-workers", handled, crash_after=6)
    except Crash:
        print("crashed after", handled)
    await work(topic, f"{topic}-workers", handled, crash_after=None)
    print("handled", handled)
    again = len(handled) - len(set(handled))
    print(f"missed {RECORDS - len(set(handled))}, again {again}")


asyncio.run(main())
