"""Records that come again count once: the result remembers the keys it has, in the same transaction as itself.

The store here is SQLite. Offsets are kept in it too, so that position, result and keys can never disagree.
"""

# ruff: noqa: T201
from __future__ import annotations

import asyncio
import os
import sqlite3
import uuid

from headrace.client import Admin, Consumer, Producer

SERVERS = os.environ.get("HEADRACE_BOOTSTRAP", "127.0.0.1:9094")


class Ledger:
    """The sum of all payments, each counted once."""

    def __init__(self) -> None:
        self._db = sqlite3.connect(":memory:", isolation_level=None)
        self._db.execute("create table payments (id text primary key, amount integer)")
        self._db.execute("create table position (partition integer primary key, offset integer)")

    def position(self, partition: int) -> int:
        found = self._db.execute("select offset from position where partition = ?", (partition,)).fetchone()
        return int(found[0]) if found else 0

    def apply(self, payment: str, amount: int, partition: int, offset: int) -> None:
        with self._db:
            self._db.execute("begin")
            self._db.execute("insert or ignore into payments values (?, ?)", (payment, amount))
            self._db.execute("insert or replace into position values (?, ?)", (partition, offset + 1))

    def total(self) -> int:
        return int(self._db.execute("select coalesce(sum(amount), 0) from payments").fetchone()[0])


async def main() -> None:
    topic = f"payments-{uuid.uuid4().hex[:6]}"
    async with Admin(bootstrap_servers=SERVERS) as admin:
        await admin.create_topic(topic, partitions=2)
    async with Producer(bootstrap_servers=SERVERS) as producer:
        # A client of ours retried by itself: payments 3 and 4 were sent twice.
        for payment in (1, 2, 3, 4, 3, 4, 5):
            await producer.send(topic, str(payment * 10), key=f"payment-{payment}")

    ledger = Ledger()
    for _ in range(2):
        # The second run reads nothing again: it goes on where the ledger is.
        async with Consumer(bootstrap_servers=SERVERS) as consumer:
            partitions = await consumer.partitions_for(topic)
            ends = await consumer.end_offsets(*partitions)
            await consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, ledger.position(partition.partition))
            while any([await consumer.position(p) < ends[p] for p in partitions]):
                for record in await consumer.poll():
                    ledger.apply(record.key.decode(), int(record.value), record.partition, record.offset)
        print("total", ledger.total())


asyncio.run(main())
