"""The native client's producer with its defaults, many records under way at a time."""

from __future__ import annotations

import asyncio

from tests.sim.checker import Checker, Key, Sent
from tests.sim.workload import Client
from tests.sim.world import World

from headrace.client import Producer, RecordMetadata
from headrace.client.cluster import Outside
from headrace.errors import KafkaError

MOST_WAITING = 40


class NativeProducer(Client):
    """Idempotent, acks=all: nothing it is told to be stored is lost, twice there or out of order."""

    def __init__(self, world: World, checker: Checker, name: str, topic: str) -> None:
        super().__init__(world, name)
        self.checker = checker
        self.topic = topic
        self.delivered = 0
        self.working = True
        self.waiting = 0

    @property
    def busy(self) -> bool:
        return self.waiting > 0

    async def run(self) -> None:
        producer = await self._connected()
        numbers: dict[int, int] = {}
        while self.working:
            await self.pause(self.chance.expovariate(0.6))
            found = self.follower.image.topics.get(self.topic)
            if not self.working or found is None or self.waiting > MOST_WAITING:
                continue
            for _ in range(self.chance.randint(1, 6)):
                index = self.chance.randrange(len(found.partitions))
                number = numbers[index] = numbers.get(index, -1) + 1
                value = f"{self.name}/{index}:{number}".encode()
                self.checker.sent[value] = Sent(f"{self.name}/{index}", number, True)
                try:
                    future = producer.send_nowait(self.topic, value, partition=index)
                except KafkaError:
                    continue  # it has not heard of the topic yet
                self.waiting += 1
                self.process.spawn(self._settle(future, (found.id, index), value))

    async def _connected(self) -> Producer:
        while True:
            producer = Producer(
                outside=Outside(self.clock, self.world.rpc.channels(), self.chance),
                bootstrap_servers=self.world.metadata_servers,
                client_id=self.name,
                request_timeout_ms=4000,
                delivery_timeout_ms=30000,
            )
            try:
                await producer.start()
                return producer
            except KafkaError:
                await self.pause(0.5)

    async def _settle(self, future: asyncio.Future[RecordMetadata], key: Key, value: bytes) -> None:
        try:
            stored = await future
        except KafkaError as error:
            self.world.trace("not produced", self.name, error.code.name)
        else:
            self.delivered += 1
            self.checker.acknowledged(key, stored.offset, [value])
            self.world.trace("produced", self.name, key[1], stored.offset)
        finally:
            self.waiting -= 1
