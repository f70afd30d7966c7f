"""Two members of a group, the second one later: each is told what it gets and what it must let go of.

With the cooperative-sticky assignor only what moves is revoked; the rest is read on without a pause.
"""

# ruff: noqa: T201
from __future__ import annotations

import asyncio
import os
import uuid

from headrace.client import Admin, Consumer, TopicPartition

SERVERS = os.environ.get("HEADRACE_BOOTSTRAP", "127.0.0.1:9094")


class Told:
    """Prints what it hears. A real one would commit or flush in `on_revoked`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def on_assigned(self, partitions: set[TopicPartition]) -> None:
        print(f"{self._name} gets {len(partitions)}")

    async def on_revoked(self, partitions: set[TopicPartition]) -> None:
        print(f"{self._name} gives back {len(partitions)}")


def member(group: str) -> Consumer:
    return Consumer(
        bootstrap_servers=SERVERS,
        group_id=group,
        partition_assignment_strategy="cooperative-sticky",
        heartbeat_interval_ms=200,
        session_timeout_ms=6_000,
    )


async def main() -> None:
    topic = f"shared-{uuid.uuid4().hex[:6]}"
    async with Admin(bootstrap_servers=SERVERS) as admin:
        await admin.create_topic(topic, partitions=4)
    async with member(f"{topic}-readers") as first:
        await first.subscribe([topic], Told("first"))
        while len(first.assignment()) < 4:
            await first.poll(0.2)
        async with member(f"{topic}-readers") as second:
            await second.subscribe([topic], Told("second"))
            while not len(first.assignment()) == len(second.assignment()) == 2:
                await asyncio.gather(first.poll(0.2), second.poll(0.2))
        while len(first.assignment()) < 4:
            await first.poll(0.2)
    print("done")


asyncio.run(main())
