"""Counts words: lines come from one topic, counts go to another, keyed by word so that compaction keeps the newest."""

# ruff: noqa: T201
from __future__ import annotations

import asyncio
import os
import uuid
from collections import Counter

from headrace.client import Admin, Consumer, NewTopic, Producer

SERVERS = os.environ.get("HEADRACE_BOOTSTRAP", "127.0.0.1:9094")
TEXT = ["the log is the database", "the table is a view of the log", "the log wins"]


async def main() -> None:
    run = uuid.uuid4().hex[:6]
    lines, counts = f"lines-{run}", f"counts-{run}"
    async with Admin(bootstrap_servers=SERVERS) as admin:
        await admin.create_topics([NewTopic(lines, 3), NewTopic(counts, 1, configs={"cleanup.policy": "compact"})])

    async with Producer(bootstrap_servers=SERVERS) as producer, Consumer(bootstrap_servers=SERVERS) as consumer:
        await asyncio.gather(*(producer.send(lines, line) for line in TEXT))

        await consumer.assign(await consumer.partitions_for(lines))
        await consumer.seek_to_beginning()
        totals: Counter[str] = Counter()
        read = 0
        async for record in consumer:
            for word in record.value.decode().split():
                totals[word] += 1
                producer.send_nowait(counts, str(totals[word]), key=word)
            read += 1
            if read == len(TEXT):
                break
        await producer.flush()

    async with Consumer(bootstrap_servers=SERVERS) as consumer:
        await consumer.assign(await consumer.partitions_for(counts))
        await consumer.seek_to_beginning()
        latest: dict[str, int] = {}
        while sum(latest.values()) < sum(totals.values()):
            for record in await consumer.poll():
                latest[record.key.decode()] = int(record.value)
    for word, count in sorted(latest.items(), key=lambda item: (-item[1], item[0])):
        print(f"{count} {word}")


asyncio.run(main())
