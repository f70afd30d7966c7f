"""One seed from its beginning to its verdict: a cluster comes up, is used and hurt, is healed, and is looked at."""

from __future__ import annotations

import gc
import logging
import signal
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.sim.checker import Checker
from tests.sim.groups import GroupHistory, Member
from tests.sim.loop import PROCESS, Spinning
from tests.sim.members import ConsumerMember, Holdings
from tests.sim.native import NativeProducer
from tests.sim.nemesis import Nemesis
from tests.sim.workload import Admin, Consumer, Producer, of_chance
from tests.sim.world import TIMELINE, World, watch_logs

from headrace.storage.memory_files import Crash

START_SECONDS = 30.0
RECOVERY_SECONDS = 90.0
"""Simulated seconds after the last fault within which everything must work and be in sync again."""
LOOK_SECONDS = 0.2
GROUP = "billing"
GROUPED = 3
"""Every so many seeds there are coordinators and a group; they make a seed cost twice as much."""
MAX_CPU_SECONDS = 40.0
"""Real ones for one seed; a seed takes about one, so whoever reaches this never comes to an end."""


@dataclass
class Verdict:
    """What became of a seed."""

    seed: int
    violations: list[str]
    trace_hash: str
    simulated_seconds: float
    steps: int
    checked: int
    delivered: int
    faults: Counter[str] = field(default_factory=Counter)
    timeline: list[str] = field(default_factory=list)

    def report(self, lines: int = 60) -> str:
        """What a person needs to understand it."""
        return "\n".join(
            [
                *(["  ..."] if len(self.timeline) > lines else []),
                *self.timeline[-lines:],
                f"seed {self.seed}: {len(self.violations)} violation(s)",
                *(f"  {violation}" for violation in self.violations),
                f"To see it again: .venv/bin/python -m tests.sim --seed {self.seed} --timeline 400",
            ]
        )


class Scenario:
    """The phases of a seed."""

    def __init__(self, seed: int) -> None:
        grouped = seed % GROUPED == 0
        self.world = World(
            seed,
            brokers=4 if seed % 5 == 0 else 3,
            metadata_replicas=1 + seed % 2,
            coordinators=2 if grouped else 0,
        )
        TIMELINE.world = self.world
        self.checker = Checker(self.world)
        shape = self.world.chance("shape")
        brokers = len(self.world.brokers)
        self.chaos_seconds = shape.choice([10.0, 25.0, 50.0])
        self.topics: dict[str, dict[str, Any]] = {
            "orders": {"partitions": shape.randint(1, 3), "factor": 3, "min_insync_replicas": "2"},
        }
        if shape.random() < 0.5:
            self.topics["clicks"] = {
                "partitions": shape.randint(1, 2),
                "factor": shape.randint(1, brokers),
                "min_insync_replicas": "1",
            }
        for wanted in self.topics.values():
            wanted["segment_bytes"] = shape.choice(["500", "3000", "1073741824"])
            wanted["index_interval_bytes"] = shape.choice(["0", "200", "4096"])
            wanted["flush_ms"] = shape.choice(["1000", "5000", "9223372036854775807"])
        self.clients = of_chance(self.world, self.checker, self.topics, shape)
        if shape.random() < 0.4:
            self.clients.append(NativeProducer(self.world, self.checker, "native", "orders"))
        self.groups = GroupHistory(self.world, self.checker)
        members = range(shape.randint(2, 3) if grouped else 0)
        # Every other group speaks the new protocol.
        kind = ConsumerMember if seed % (2 * GROUPED) else Member
        self.members = [kind(self.world, self.groups, f"member-{n}", GROUP, "orders") for n in members]
        holdings = Holdings(self.groups)
        for member in self.members:
            if isinstance(member, ConsumerMember):
                member.holdings = holdings
        self.nemesis = Nemesis(self.world, self.checker, self.members)

    def run(self) -> Verdict:
        world = self.world

        def hung(*_: object) -> None:
            # Whoever catches this, the world ends at the next turn.
            process = PROCESS.get()
            world.violated(f"{process.name if process else 'the world'} runs without ever waiting")
            raise Crash

        before = signal.signal(signal.SIGVTALRM, hung)
        signal.setitimer(signal.ITIMER_VIRTUAL, MAX_CPU_SECONDS, 1.0)
        try:
            self._phases()
            self._unforeseen()
        except (Spinning, Crash) as error:
            if not world.violations:
                world.violated(str(error))
        except Exception as error:  # a log that cannot be read, for one; it must not end the run of many seeds
            world.violated(f"the checks failed: {error!r}")
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)
            verdict = Verdict(
                seed=world.seed,
                violations=list(world.violations),
                trace_hash=world.trace_hash,
                simulated_seconds=world.now,
                steps=world.loop.steps,
                checked=self.checker.checked,
                delivered=sum(p.delivered for p in self._producers()),
                faults=world.counts,
                timeline=list(world.timeline),
            )
            self._close()
        return verdict

    def _phases(self) -> None:
        world = self.world
        for machine in world.machines:
            machine.start()
        for client in self.clients:
            client.start()
        for member in self.members:
            member.start()
        self._look()
        admin = self._of(Admin)[0]
        if not self._until(lambda: admin.created and all(m.ready for m in world.machines), START_SECONDS, "start"):
            return
        world.spawn(self.nemesis.run(), "nemesis")
        world.run(self.chaos_seconds)
        if world.violations:
            return
        self.nemesis.heal()
        admin.working = False
        admin.process.spawn(admin.rescue(self.checker))
        world.run(2.0)
        for producer in self._producers():
            producer.working = False
        if not self._recovered():
            return
        for consumer in self._of(Consumer):
            consumer.working = False
        world.run(1.0)
        self.checker.finish()

    def _recovered(self) -> bool:
        """Every producer gets through, every partition takes a record, every replica is in sync, all is read."""
        world = self.world
        if not self._until(lambda: not any(p.busy for p in self._producers()), RECOVERY_SECONDS, "producers"):
            return False
        probes = []
        for topic, wanted in self.topics.items():
            probe = Producer(
                world, self.checker, f"probe-{topic}", topic, acks=-1, idempotent=True, native=bool(world.seed % 2)
            )
            probe.working = False
            self.clients.append(probe)
            probes.append((probe, wanted["partitions"]))
            probe.start()
        world.run(1.0)
        done: list[bool] = []
        for probe, partitions in probes:
            probe.process.spawn(self._probe(probe, partitions, done))
        if not self._until(lambda: len(done) == len(probes), RECOVERY_SECONDS, "a record to every partition"):
            return False
        return self._until(
            lambda: self.checker.settled() is None and self._all_read() is None,
            RECOVERY_SECONDS,
            lambda: self.checker.settled() or self._all_read() or "",
        )

    async def _probe(self, probe: Producer, partitions: int, done: list[bool]) -> None:
        for index in range(partitions):
            while not await probe.deliver(index, 1):
                await probe.pause(0.5)
        done.append(True)

    def _all_read(self) -> str | None:
        ends = {}
        for key, state in self.checker.states().items():
            replica = self.checker.replica(state.leader, key)
            ends[key] = replica.log.log_end_offset if replica is not None else -1
        for consumer in self._of(Consumer):
            for key, position in consumer.positions.items():
                if key in ends and position < ends[key]:
                    return f"{consumer.name} is at {position} of {ends[key]} in {key[0]}-{key[1]}"
        if not self.members:
            return None
        topic_id, count = self.checker.topics()["orders"]
        return self.groups.missing(GROUP, "orders", {index: ends[topic_id, index] for index in range(count)})

    def _until(self, holds: Any, seconds: float, what: Any) -> bool:
        world = self.world
        # Asked now and then: these questions look at the whole cluster.
        deadline = world.now + seconds
        while not world.violations and world.now < deadline:
            if holds():
                return True
            world.run(0.25)
        if not world.violations:
            missing = what() if callable(what) else what
            world.violated(f"progress: not within {seconds:g} s after everything was well: {missing}")
        return False

    def _look(self) -> None:
        self.checker.look()
        self.world.later(LOOK_SECONDS, self._look)

    def _unforeseen(self) -> None:
        errors = [(failure["message"], failure.get("exception")) for failure in self.world.loop.failures]
        for process in self.world.loop.processes:
            errors += [(f"{process.name}: {name}", error) for name, error in process.failed_tasks()]
        for what, error in errors:
            if isinstance(error, AssertionError | TypeError | AttributeError | NameError | LookupError):
                self.world.violated(f"unforeseen: {what}: {error!r}")

    def _producers(self) -> list[Any]:
        return [*self._of(Producer), *self._of(NativeProducer)]

    def _of(self, kind: type[Any]) -> list[Any]:
        return [client for client in self.clients if isinstance(client, kind)]

    def _close(self) -> None:
        """Ends the world without a word from those who still live in it."""
        TIMELINE.world = None
        for client in self.clients:
            client.process.kill()
        for member in self.members:
            member.kill()
        self.world.close()


def run_seed(seed: int, *, bury: bool = True) -> Verdict:
    """Runs one seed; without `bury` its memory is not given back, for a process that ends soon."""
    watch_logs()
    # Nobody asks which line of which thread logged something, and finding out costs as much as the line.
    source, logging._srcfile = logging._srcfile, None  # type: ignore[attr-defined]
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.disable()
            # What is there for good is left out of the collection at the end.
            gc.freeze()
            verdict = Scenario(seed).run()
            if bury:
                # Here the last words of the dead (`finally` blocks of code that never ended) reach nobody.
                gc.collect()
    finally:
        sys.unraisablehook = hook
        logging._srcfile = source  # type: ignore[attr-defined]
        if bury:
            gc.enable()
    return verdict
