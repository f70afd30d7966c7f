"""The controller's word, carried out by a broker: old words, and a disk that does not go along."""

import asyncio
import errno
import random

import pytest
from tests.unit.broker.conftest import TOPIC_ID, Bench

from headrace.broker.control import ReplicaControl, Word
from headrace.broker.partition import Partition
from headrace.cluster.image import Partition as State
from headrace.errors import ErrorCode, KafkaError
from headrace.storage.config import LogConfig
from headrace.storage.log_dirs import LogDirs
from headrace.storage.memory_files import MemoryFiles


class Followers:
    """Notes who is followed."""

    def __init__(self) -> None:
        self.followed: dict[str, int] = {}

    def follow(self, partition: Partition) -> None:
        self.followed[repr(partition)] = partition.leader

    def stop(self, partition: Partition) -> None:
        self.followed.pop(repr(partition), None)


class Broker:
    """Broker 0 without its services."""

    def __init__(self, bench: Bench) -> None:
        self.files = MemoryFiles()
        self.dirs = LogDirs(
            self.files, ["/a"], node_id=0, cluster_id="c", config_of=lambda _: LogConfig.of({}), random=random.Random(1)
        )
        self.dirs.load()
        self.followers = Followers()
        self.control = ReplicaControl(bench.replicas, self.dirs, self.followers, bench.clock, lambda: 1)

    async def hear(self, state: State) -> None:
        assert not await self.control.leader_and_isr(Word(1, 1), [("t", TOPIC_ID, 0, state)])


def test_an_old_word_that_comes_late_does_not_end_the_following(bench: Bench) -> None:
    """A request over a connection that broke can arrive after what was said since."""
    led = State(leader=0, leader_epoch=4, isr=(0, 1), replicas=(0, 1), partition_epoch=7)
    follows = State(leader=1, leader_epoch=5, isr=(0, 1), replicas=(0, 1), partition_epoch=8)

    async def run() -> Broker:
        broker = Broker(bench)
        for state in (led, follows, led):
            await broker.hear(state)
        return broker

    assert asyncio.run(run()).followers.followed == {"t-0": 1}


def test_a_new_leader_follows_nobody(bench: Bench) -> None:
    async def run() -> Broker:
        broker = Broker(bench)
        await broker.hear(State(leader=1, leader_epoch=5, isr=(0, 1), replicas=(0, 1), partition_epoch=8))
        await broker.hear(State(leader=0, leader_epoch=6, isr=(0, 1), replicas=(0, 1), partition_epoch=9))
        return broker

    assert asyncio.run(run()).followers.followed == {}


def test_what_a_controller_said_before_deletes_nothing_of_what_it_said_since(bench: Bench) -> None:
    """A partition that comes back must not go with a late order to let it go, or with an old list of all there is."""
    state = State(leader=1, leader_epoch=5, isr=(1,), replicas=(0, 1), partition_epoch=8)

    async def run() -> None:
        control = Broker(bench).control
        await control.leader_and_isr(Word(1, 1, 3), [("t", TOPIC_ID, 0, state)])
        with pytest.raises(KafkaError) as late:
            await control.stop_replica(Word(1, 1, 2), [(TOPIC_ID, 0, 5, True)])
        assert late.value.code is ErrorCode.INVALID_UPDATE_VERSION
        with pytest.raises(KafkaError):
            await control.leader_and_isr(Word(1, 1, 1), [], full=True)
        assert bench.replicas.find(TOPIC_ID, 0) is not None
        await control.leader_and_isr(Word(2, 1, 1), [], full=True)  # another controller counts anew
        assert bench.replicas.find(TOPIC_ID, 0) is None

    asyncio.run(run())


def test_a_new_partition_that_cannot_be_synced_takes_the_log_dir_offline(bench: Bench) -> None:
    def fails(operation: str, path: str) -> None:
        if operation == "sync":
            raise OSError(errno.EIO, "bad sector", path)

    async def run() -> Broker:
        broker = Broker(bench)
        broker.files.before = fails
        await broker.hear(State(leader=0, leader_epoch=0, isr=(0,), replicas=(0,), partition_epoch=0))
        await asyncio.get_running_loop().shutdown_default_executor()
        await asyncio.sleep(0)
        return broker

    assert not asyncio.run(run()).dirs.dirs[0].online
