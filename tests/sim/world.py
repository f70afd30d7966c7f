"""A whole cluster in one process: controllers, metadata replicas, brokers and their clients on simulated machines.

Everything random comes from one seed, through generators of their own for the network, the faults, the workload and
each process, so that a change in one of them disturbs the others as little as possible.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import zlib
from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any

from tests.sim.loop import PROCESS, Process, SimLoop
from tests.sim.network import WORLD, Network
from tests.sim.registry import SimRegistry, SimStore
from tests.sim.rpc import SimRpc
from tests.sim.wire import SimListener, SimWireClient

from headrace.broker.server import BrokerService, Outside
from headrace.cluster.configs import Settings
from headrace.cluster.image import Endpoint
from headrace.controller.server import ControllerService
from headrace.coordinator import server as coordinator
from headrace.coordinator.server import CoordinatorService
from headrace.metadata import server as metadata
from headrace.registry.keys import Keys
from headrace.rpc import channels as rpc_channels
from headrace.rpc.image_follower import ImageFollower
from headrace.storage.memory_files import Crash, MemoryFiles

CLUSTER = "sim"
METADATA_PORT = CONTROLLER_PORT = 9094
WALL_BEGIN_MS = 1_700_000_000_000
LOG_DIR = "/data"
MOST_VIOLATIONS = 5
"""What one wrong thing leads to fills pages."""

WATCH_LIMITS = {"history_limit": 60, "pending_limit": 12}
"""So little that a reader which stood still, or comes back, has often to start again from a snapshot."""
FEW_SESSIONS = 2
"""Fetch sessions of a broker in every fourth seed: not enough for its followers."""

SETTINGS = {
    "cluster.id": CLUSTER,
    "metrics.port": "0",
    "broker.session.timeout.ms": "3000",
    "replica.lag.time.max.ms": "3000",
    "replica.fetch.wait.max.ms": "2000",
    "replica.fetch.backoff.ms": "500",
    "replica.socket.timeout.ms": "5000",
    "request.timeout.ms": "8000",
    "leader.imbalance.check.interval.seconds": "15",
    "replica.high.watermark.checkpoint.interval.ms": "5000",
    "log.flush.offset.checkpoint.interval.ms": "6000",
    "log.cleaner.enable": "false",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "3",
    "offsets.commit.timeout.ms": "3000",
    "group.initial.rebalance.delay.ms": "500",
    "group.min.session.timeout.ms": "2000",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "2000",
    "group.consumer.heartbeat.interval.ms": "2000",
}


class SimClock:
    """A machine's clock: its wall time is off by `skew_ms`, and may jump."""

    def __init__(self, loop: SimLoop, skew_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms

    def time_ms(self) -> int:
        return WALL_BEGIN_MS + int(self._loop.now * 1000) + self.skew_ms

    def monotonic(self) -> float:
        return self._loop.now

    async def sleep(self, seconds: float) -> None:
        loop = self._loop
        over: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, _ring, over)
        try:
            await over
        finally:
            timer.cancel()


def _ring(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)


class Violation(Exception):
    """A rule was broken."""


class Machine:
    """A host that runs one role, and starts it again whenever it ends; its disk and its clock outlast the process."""

    def __init__(self, world: World, name: str, main: Callable[[Machine], Any]) -> None:
        self.world = world
        self.name = name
        self.files = MemoryFiles()
        self.clock = SimClock(world.loop, world.chance("skew").randint(-200, 200) if name != "etcd" else 0)
        self.process: Process | None = None
        self.registry: SimRegistry | None = None
        self.service: Any = None
        self.ready = False
        """Whether it has started completely."""
        self.starts = 0
        self.wanted = True
        self._main = main

    @property
    def running(self) -> bool:
        return self.process is not None

    def start(self) -> None:
        if self.process is not None or not self.wanted:
            return
        self.starts += 1
        process = self.process = Process(self.world.loop, self.name, self.name)
        self.registry = self.world.registry()
        self.ready = False
        process.spawn(self._run(process), name=self.name)

    async def _run(self, process: Process) -> None:
        try:
            await self._main(self)
            reason = "ended"
        except Crash:
            return
        except Exception as error:
            reason = f"ended: {error}"
        self.world.note(f"{self.name} {reason}")
        self.kill()
        self.world.later(self.world.faults.uniform(0.5, 3.0), self.start)

    def kill(self, *, silent: bool = False) -> None:
        """The process ends here and now; `silent`: and nobody tells its peers."""
        process = self.process
        if process is None:
            return
        self.process = None
        self.service = None
        self.ready = False
        process.kill()
        self.files.before = _refuse_the_dead
        self.files.locks.clear()
        self.world.network.process_died(process, silent=silent)
        self.world.loop.call_soon(self._let_disk_go, context=WORLD)

    def _let_disk_go(self) -> None:
        if self.files.before is _refuse_the_dead:
            self.files.before = None

    async def stop(self) -> None:
        """Stops the service in order; a process that does not manage it is killed."""
        process, service = self.process, self.service
        assert process is not None
        stopped = process.spawn(service.stop(), name="stop")
        for _ in range(300):
            await asyncio.sleep(0.1)
            if stopped.done() or not process.alive:
                break
        if self.process is process:
            if stopped.done() and not stopped.cancelled() and stopped.exception() is not None:
                self.world.violated(f"{self.name} could not stop: {stopped.exception()!r}")
            self.kill()

    def lose_power(self, chance: Random) -> None:
        """The process ends, and what was not synced is lost or torn."""
        self.kill(silent=True)
        self.files.crash(chance)

    def lose_disk(self) -> None:
        self.kill(silent=True)
        self.files = MemoryFiles()


def _refuse_the_dead(operation: str, path: str) -> None:
    raise Crash


class World:
    """The cluster of one seed. `run` until `done`; `trace_hash` says what happened."""

    def __init__(
        self, seed: int, brokers: int = 3, controllers: int = 2, metadata_replicas: int = 2, coordinators: int = 0
    ) -> None:
        rpc_channels._correlation_ids = itertools.count(1)
        self.seed = seed
        self.loop = SimLoop()
        self.began = self.loop.now
        self.counts: Counter[str] = Counter()
        self.timeline: deque[str] = deque(maxlen=4_000)
        self.violations: list[str] = []
        self._hash = hashlib.blake2b(digest_size=16)
        self._pending_trace: list[tuple[object, ...]] = []
        self.faults = self.chance("faults")
        self.network = Network(self.loop, self.chance("network"), self.trace, self.count)
        self.rpc = SimRpc(self.network)
        self.keys = Keys(CLUSTER)
        self.etcd_delays = self.chance("etcd")
        self.store = SimStore(SimClock(self.loop))
        self.metadata_servers = ",".join(f"metadata-{n}:{METADATA_PORT}" for n in range(metadata_replicas))
        self.controllers = [Machine(self, f"controller-{n}", self._controller(n)) for n in range(controllers)]
        self.metadata = [Machine(self, f"metadata-{n}", self._metadata(n)) for n in range(metadata_replicas)]
        self.brokers = [Machine(self, f"broker-{n}", self._broker(n)) for n in range(brokers)]
        self.coordinators = [Machine(self, f"coordinator-{n}", self._coordinator(n)) for n in range(coordinators)]
        self.machines = [*self.controllers, *self.metadata, *self.brokers, *self.coordinators]
        self._follower: ImageFollower | None = None

    def chance(self, name: str) -> Random:
        """A generator of its own for each purpose; does not depend on PYTHONHASHSEED."""
        return Random(f"{self.seed}/{name}")

    # --- what happened

    @property
    def now(self) -> float:
        return self.loop.now - self.began

    def trace(self, *what: object) -> None:
        """Part of the trace: the same seed gives the same, byte for byte."""
        process = PROCESS.get()
        self._pending_trace.append((self.loop.now, process.name if process else "-", *what))
        if len(self._pending_trace) >= 512:
            self._flush_trace()

    def _flush_trace(self) -> None:
        self._hash.update(repr(self._pending_trace).encode())
        self._pending_trace.clear()

    @property
    def trace_hash(self) -> str:
        self._flush_trace()
        return self._hash.hexdigest()

    def note(self, text: str) -> None:
        """A line of the timeline, and part of the trace."""
        self.timeline.append(f"{self.now:9.3f}  {text}")
        self.trace(text)

    def count(self, fault: str) -> None:
        self.counts[fault] += 1

    def violated(self, text: str) -> None:
        if len(self.violations) < MOST_VIOLATIONS:
            self.note(f"VIOLATION: {text}")
            self.violations.append(text)

    # --- time

    def later(self, seconds: float, callback: Any, *args: Any) -> None:
        self.loop.call_later(seconds, callback, *args, context=WORLD)

    def spawn(self, coroutine: Any, name: str) -> asyncio.Task[Any]:
        """A task of the world's own: faults and checks."""
        return self.loop.create_task(coroutine, name=name, context=WORLD.copy())

    # --- processes

    def registry(self) -> SimRegistry:
        return SimRegistry(self.store, request_timeout=2.0, delay=self._etcd_delay)

    def _etcd_delay(self) -> float:
        delays = self.etcd_delays
        slow = delays.random() < 0.01
        return delays.uniform(0.02, 0.3) if slow else 0.0002 + delays.expovariate(1_000)

    def settings(self, number: int, **more: str) -> Settings:
        given = {**SETTINGS, "node.id": str(number), "metadata.servers": self.metadata_servers}
        if self.seed % 4 == 3:
            given["max.incremental.fetch.session.cache.slots"] = str(FEW_SESSIONS)
        return Settings(given | {name.replace("_", "."): value for name, value in more.items()})

    def _controller(self, number: int) -> Callable[[Machine], Any]:
        async def main(machine: Machine) -> None:
            settings = self.settings(number, grpc_listener=f"{machine.name}:{CONTROLLER_PORT}")
            service = ControllerService(
                settings,
                machine.registry,
                clock=machine.clock,
                random=self.chance(f"{machine.name}/{machine.starts}"),
                channels=self.rpc.channels(),
                serve=self.rpc.serve,
            )
            machine.service = service
            await service.start()
            machine.ready = True
            await service._task

        return main

    def _metadata(self, number: int) -> Callable[[Machine], Any]:
        async def main(machine: Machine) -> None:
            config = metadata.MetadataConfig(
                CLUSTER, f"replica-{number}", Endpoint(machine.name, METADATA_PORT), session_ttl=3.0, **WATCH_LIMITS
            )
            service = await metadata.start(machine.registry, config, machine.clock, self.rpc.serve)
            machine.service = service
            machine.ready = True
            await service.failed()

        return main

    def _broker(self, number: int) -> Callable[[Machine], Any]:
        async def main(machine: Machine) -> None:
            settings = self.settings(
                number,
                listeners=f"PLAINTEXT://{machine.name}:9092",
                grpc_listener=f"{machine.name}:9095",
                log_dirs=LOG_DIR,
            )
            service = BrokerService(
                settings,
                machine.registry,
                clock=machine.clock,
                random=self.chance(f"{machine.name}/{machine.starts}"),
                outside=Outside(
                    files=machine.files,
                    channels=self.rpc.channels(),
                    serve=self.rpc.serve,
                    listener=lambda *given: SimListener(self.network, *given),
                    connect=self.connect,
                ),
            )
            machine.service = service
            await service.start()
            machine.ready = True
            await service.serve_until_lost()

        return main

    def _coordinator(self, number: int) -> Callable[[Machine], Any]:
        async def main(machine: Machine) -> None:
            settings = self.settings(
                number, listeners=f"PLAINTEXT://{machine.name}:9092", grpc_listener=f"{machine.name}:9095"
            )
            service = CoordinatorService(
                settings,
                machine.registry,
                clock=machine.clock,
                random=self.chance(f"{machine.name}/{machine.starts}"),
                outside=coordinator.Outside(
                    channels=self.rpc.channels(),
                    serve=self.rpc.serve,
                    listener=lambda *given: SimListener(self.network, *given),
                    connect=lambda host, port, client_id: self.connect(host, port, client_id, 4.0),
                ),
            )
            machine.service = service
            await service.start()
            machine.ready = True
            await service.serve_until_lost()

        return main

    async def connect(self, host: str, port: int, client_id: str, timeout: float) -> SimWireClient:
        return await SimWireClient.connect(self.network, host, port, timeout)

    def follower(self) -> ImageFollower:
        """The picture of the cluster that the workload's clients share, as those on one machine could."""
        if self._follower is None:
            clock, chance = SimClock(self.loop), self.chance("clients")
            follower = ImageFollower(self.metadata_servers.split(","), self.rpc.channels(), clock=clock, chance=chance)
            Process(self.loop, "clients", "clients").spawn(follower._follow(), name="follow the metadata service")
            self._follower = follower
        return self._follower

    # --- running

    def run(self, seconds: float) -> None:
        """Runs for so many simulated seconds, or until a rule is broken."""
        self.loop.run(self.loop.now + seconds, self.violations)

    def close(self) -> None:
        for machine in self.machines:
            if machine.process is not None:
                machine.process.kill()
        self.loop.close()


class TimelineHandler(logging.Handler):
    """What the production code logs, in the timeline of whichever world runs."""

    world: World | None = None

    def emit(self, record: logging.LogRecord) -> None:
        world = self.world
        if world is None:
            return
        process = PROCESS.get()
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text += f" ({error!r})"
        world.timeline.append(f"{world.now:9.3f}  {process.name if process else 'world':<13} {text}")
        world.trace(record.name, record.levelno, zlib.crc32(record.msg.encode()))
        if error is not None and record.levelno >= logging.ERROR:
            world.violated(f"unforeseen in {process.name if process else 'the world'}: {text}")


TIMELINE = TimelineHandler(logging.INFO)


def watch_logs() -> None:
    """Sends the production code's log lines to the timeline, and nowhere else."""
    logger = logging.getLogger("headrace")
    logger.handlers = [TIMELINE]
    logger.setLevel(logging.INFO)
    logger.propagate = False
