"""A replica manager on real files, with time and the loop's turns in the test's hands."""

import asyncio
import random
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.broker.partition import Partition
from headrace.broker.replica_manager import ReplicaManager
from headrace.broker.stats import Stats
from headrace.cluster.image import Image
from headrace.cluster.image import Partition as State
from headrace.records.record import Record, build
from headrace.storage.config import LogConfig
from headrace.storage.files import OsFiles
from headrace.storage.recovery import open_log
from headrace.timing.purgatory import Purgatory
from headrace.timing.wheel import TimerEntry, TimingWheel

TOPIC_ID = uuid.UUID(int=7)


class ManualClock:
    """Time that moves when the test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def time_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class ManualTimer:
    """The purgatory's timer on the manual clock."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._wheel = TimingWheel(clock.time_ms())

    def schedule(self, entry: TimerEntry, delay_ms: float) -> None:
        self._wheel.add(entry, int(self._clock.time_ms() + delay_ms))

    def cancel(self, entry: TimerEntry) -> bool:
        return self._wheel.cancel(entry)

    def advance(self, seconds: float) -> None:
        self._clock.now += seconds
        for entry in self._wheel.advance(self._clock.time_ms()):
            entry.on_due()


class Bench:
    """One broker's replicas, and the levers to move them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.timer = ManualTimer(self.clock)
        self.soon: list[Callable[[], None]] = []
        self.image = Image()
        self.replicas = ReplicaManager(
            0,
            self.clock,
            Stats(),
            Purgatory("Produce", self.timer),
            Purgatory("Fetch", self.timer),
            self.soon.append,
            lambda: self.image,
        )

    def turn(self) -> None:
        """The rest of this turn of the loop."""
        while self.soon:
            self.soon.pop(0)()

    def partition(self, index: int = 0, **config: str) -> Partition:
        log = open_log(OsFiles(), str(self.path / f"t-{index}"), LogConfig.of(config))
        partition = Partition("t", TOPIC_ID, index, 0, log, 0)
        self.replicas.add(partition)
        return partition

    def lead(
        self,
        partition: Partition,
        isr: tuple[int, ...] = (0,),
        epoch: int = 0,
        version: int = 0,
        replicas: tuple[int, ...] = (),
    ) -> Partition:
        replicas = replicas or ((0, 1, 2) if len(isr) > 1 else isr)
        partition.lead(State(0, epoch, isr, replicas, version), self.clock.now)
        return partition


def batch(*values: bytes, **fields: int) -> memoryview:
    """A batch as a producer sends it."""
    records = [Record(offset=i, timestamp=1_000_000, key=None, value=value) for i, value in enumerate(values)]
    return memoryview(build(records, **fields))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    random.seed(1)
    return Bench(tmp_path)
