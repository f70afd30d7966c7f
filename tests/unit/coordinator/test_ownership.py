"""Claims in the registry: everyone gets a share, nobody takes what another serves, a successor waits for no lease."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

from headrace.cluster import codec
from headrace.cluster.image import Endpoint, Image, Node, Partition, Topic
from headrace.coordinator.ownership import Claims
from headrace.ports import SystemClock
from headrace.registry.api import Put
from headrace.registry.keys import Keys
from headrace.registry.memory import MemoryRegistry, MemoryStore

KEYS = Keys("test")
PARTITIONS = 12


class World:
    """A store, a picture that everyone sees, and coordinators that claim."""

    def __init__(self) -> None:
        self.store = MemoryStore(SystemClock())
        part = Partition(0, 0, (0,), (0,))
        topic = Topic("__consumer_offsets", uuid.UUID(int=1), (part,) * PARTITIONS)
        self.image = Image(topics={topic.name: topic})
        self.running: dict[int, Process] = {}

    async def start(self, number: int) -> Process:
        process = Process(number, self)
        await process.start()
        self.running[number] = process
        self.show()
        return process

    def show(self) -> None:
        """Everyone hears who is alive."""
        nodes = {n: Node(n, 1, Endpoint("h", 1)) for n in self.running}
        self.image = Image(topics=self.image.topics, coordinators=nodes)
        for process in self.running.values():
            process.claims.look()

    def holders(self) -> dict[int, int]:
        found = {}
        for index in range(PARTITIONS):
            held = self.store.get(KEYS.offsets_owner(index))
            if held is not None:
                found[index] = codec.decode_offsets_owner(held.value, held.create_revision).coordinator
        return found


class Process:
    def __init__(self, number: int, world: World) -> None:
        self.number, self.world = number, world
        self.epochs: dict[int, int] = {}

    async def start(self) -> None:
        registry = self.registry = MemoryRegistry(self.world.store)
        self.session = await registry.session(30)
        self.claims = Claims(self.number, registry, KEYS, self.session, lambda: self.world.image, self)
        self.task = asyncio.create_task(self.claims.run())

    def held(self) -> dict[int, int]:
        return self.epochs

    def take(self, partition: int, epoch: int) -> None:
        self.epochs[partition] = epoch

    def drop(self, partition: int) -> None:
        assert self.world.store.get(KEYS.offsets_owner(partition)) is not None, "served until the key goes, not after"
        del self.epochs[partition]

    async def leave(self) -> None:
        self.die()
        await self.session.close()
        self.world.show()

    def die(self) -> None:
        """Without a word: its lease goes on."""
        self.task.cancel()
        del self.world.running[self.number]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def test_shares_move_to_newcomers_and_back() -> None:
    world = World()
    first = await world.start(0)
    await until(lambda: len(first.epochs) == PARTITIONS)
    before = dict(first.epochs)
    second = await world.start(1)
    await until(lambda: set(world.holders().values()) == {0, 1} and len(world.holders()) == PARTITIONS)
    assert first.epochs.keys() & second.epochs.keys() == set()
    assert all(second.epochs[index] > before[index] for index in second.epochs), "a newer owner has a larger epoch"
    assert all(first.epochs[index] == before[index] for index in first.epochs), "what stays is not interrupted"
    await second.leave()
    await until(lambda: len(first.epochs) == PARTITIONS)
    await first.leave()


async def test_what_a_dead_one_holds_is_left_alone_until_its_lease_ends() -> None:
    world = World()
    first = await world.start(0)
    await until(lambda: len(first.epochs) == PARTITIONS)
    first.die()
    second = await world.start(1)
    await asyncio.sleep(0.2)
    assert second.epochs == {}
    await first.session.close()
    world.show()
    await until(lambda: len(second.epochs) == PARTITIONS)
    await second.leave()


async def test_a_new_process_with_the_same_id_takes_its_predecessors_place_at_once() -> None:
    world = World()
    first = await world.start(0)
    await until(lambda: len(first.epochs) == PARTITIONS)
    first.die()
    again = await world.start(0)
    await until(lambda: len(again.epochs) == PARTITIONS)
    assert all(again.epochs[index] > first.epochs[index] for index in again.epochs)
    await again.leave()


async def test_a_claim_nobody_can_read_is_replaced() -> None:
    world = World()
    registry = MemoryRegistry(world.store)
    await registry.txn([], [Put(KEYS.offsets_owner(3), b"rubbish")])
    first = await world.start(0)
    await until(lambda: len(first.epochs) == PARTITIONS)
    await first.leave()


async def test_nothing_is_kept_from_others_when_the_registry_does_not_answer() -> None:
    world = World()
    first = await world.start(0)
    await until(lambda: len(first.epochs) == PARTITIONS)
    first.registry.drop_answers(1)
    second = await world.start(1)
    await until(lambda: len(first.epochs) + len(second.epochs) == PARTITIONS and bool(second.epochs))
    await until(lambda: world.holders() == {**dict.fromkeys(first.epochs, 0), **dict.fromkeys(second.epochs, 1)})
    assert len(second.epochs) > 1
    await second.leave()
    await first.leave()
