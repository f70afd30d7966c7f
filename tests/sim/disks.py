"""Disks that fail and power that goes: whatever costs a broker records that it had written.

Rule 1 promises an acknowledged record only while one member of the ISR survives with its disk. So one broker loses
records only when somebody else in sync holds everything, and no other one does until it is back in sync everywhere.
When several lose their power at once, the partitions of which nobody in sync was spared are excused from that rule, and
from no other.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from typing import Any

from tests.sim.checker import Checker
from tests.sim.world import Machine, World

from headrace.records.batch import read_header
from headrace.storage.memory_files import Crash

CALLS = ("append", "write", "rename", "remove", "sync", "sync_dir", "truncate", "mkdir")
UNCHECKED = 16
"""Bytes at the beginning of a batch (base offset, length, leader epoch) that no checksum of Kafka's format covers."""

Kind = tuple[str, float, Callable[[], Coroutine[Any, Any, None]]]


class Disks:
    """The faults; `checker.fragile` are the brokers that have lost, or are about to lose, what they had written."""

    def __init__(self, world: World, checker: Checker) -> None:
        self.world = world
        self.checker = checker
        self.chance = world.faults
        self.active = True
        self.kinds: list[Kind] = [
            ("power loss", 2, self._power_loss),
            ("power loss of several", 0.7, self._power_loss_of_several),
            ("power loss in a disk call", 2, self._crash_in_call),
            ("power loss around a restart", 1, self._power_loss_around_restart),
            ("lost disk", 0.5, self._lose_disk),
            ("failing disk", 1, self._fail),
            ("full disk", 1, self._fill),
            ("bit rot in an index", 1, self._rot_index),
            ("bit rot in a segment", 0.7, self._rot_segment),
        ]
        self._armed = False
        """Whether something is about to happen to the fragile."""
        self._bad: dict[Machine, None] = {}
        """Whose disk has to be replaced before all can be well."""

    def heal(self) -> None:
        """Every disk works from now on."""
        self.active = self._armed = False
        for machine in self._bad:
            machine.lose_disk()
        self._bad.clear()
        for machine in self.world.brokers:
            broken = machine.files.capacity is not None or machine.files.before is not None
            machine.files.before = machine.files.capacity = None
            if broken:
                machine.kill()  # a log dir that went offline stays so until the next start

    def look_after_fragile(self) -> None:
        """Brokers that lost records are whole again once they are in every ISR they belong to."""
        fragile, brokers = self.checker.fragile, self.world.brokers
        if self._armed or not fragile or not all(brokers[n].ready and brokers[n].running for n in fragile):
            return
        states = self.checker.states().values()
        if all(number in state.isr for state in states for number in fragile & set(state.replicas)):
            fragile.clear()

    def _expendable(self) -> Machine | None:
        """A broker whose records somebody else holds."""
        self.look_after_fragile()
        brokers = self.world.brokers
        if self.checker.fragile:
            return None
        number = self.chance.randrange(len(brokers))
        for key, state in self.checker.states().items():
            if number not in state.isr:
                continue
            if len(state.replicas) == 1:
                self.checker.of(key).excused = f"its only replica, on broker {number}, lost its disk"
            elif not {*state.isr, *state.elr} - {number}:
                return None
        if brokers[number].process is None:
            return None
        self.checker.fragile.add(number)
        return brokers[number]

    def _say(self, fault: str, what: str) -> None:
        self.world.count(fault)
        self.world.note(f"fault: {what}")

    # --- power

    async def _power_loss(self) -> None:
        machine = self._expendable()
        if machine is not None:
            self._say("power loss", f"{machine.name} loses its power")
            machine.lose_power(self.chance)
            await asyncio.sleep(self.chance.uniform(0.2, 6.0))
            machine.start()

    async def _power_loss_of_several(self) -> None:
        self.look_after_fragile()
        fragile, brokers = self.checker.fragile, self.world.brokers
        if fragile:
            return
        fragile |= set(self.chance.sample(range(len(brokers)), self.chance.randint(2, len(brokers))))
        for key, state in self.checker.states().items():
            if {*state.isr, *state.elr} <= fragile:
                self.checker.of(key).excused = "all who were in sync lost their power at once"
        lost = [brokers[number] for number in sorted(fragile)]
        self._say("power loss of several", f"{', '.join(machine.name for machine in lost)} lose their power")
        for machine in lost:
            machine.lose_power(self.chance)
        for machine in lost:
            self.world.later(self.chance.uniform(0.2, 6.0), machine.start)

    async def _power_loss_around_restart(self) -> None:
        """What a stop in order left must be durable, and a start must not be taken for a part of it."""
        machine = self._expendable()
        if machine is None or not machine.ready or self._armed:
            return
        self._say("power loss around a restart", f"{machine.name} is stopped in order, and its power goes")
        self._armed = True
        await machine.stop()
        if self.chance.random() < 0.7:
            machine.start()
            await asyncio.sleep(self.chance.uniform(0.1, 4.0))
        self._armed = False
        if self.active:
            self.world.note(f"{machine.name} loses its power")
            machine.lose_power(self.chance)
            await asyncio.sleep(self.chance.uniform(0.0, 3.0))
        machine.start()

    async def _crash_in_call(self) -> None:
        """The power goes during one of the next calls to the disk."""
        machine = self._expendable()
        if machine is None:
            return
        left = self.chance.randint(1, 40)
        wanted = self.chance.choice([*CALLS, "any", "any"])
        process = machine.process
        self._armed = True

        def before(operation: str, path: str) -> None:
            nonlocal left
            if wanted in (operation, "any"):
                left -= 1
                if left == 0:
                    self._armed = False
                    self._say("power loss in a disk call", f"{machine.name} loses its power in {operation} of {path}")
                    machine.kill(silent=True)
                    self.world.later(0.0, machine.files.crash, self.chance)
                    self.world.later(self.chance.uniform(0.2, 6.0), machine.start)
                    raise Crash

        machine.files.before = before
        await asyncio.sleep(self.chance.uniform(2.0, 10.0))
        if machine.process is process and machine.files.before is before:
            machine.files.before = None
            self._armed = False

    async def _lose_disk(self) -> None:
        machine = self._expendable()
        if machine is not None:
            self._say("lost disk", f"{machine.name} comes back with an empty disk")
            machine.lose_disk()
            await asyncio.sleep(self.chance.uniform(0.2, 6.0))
            machine.start()

    # --- disks that refuse, and disks that lie

    async def _fail(self) -> None:
        """EIO from now on: of every call, or of `sync` alone, and then what was not synced is gone from the cache."""
        machine = self._expendable()
        if machine is None:
            return
        only_sync = self.chance.random() < 0.5
        unsynced: set[str] = set()

        def before(operation: str, path: str) -> None:
            if operation == "sync" or not only_sync:
                unsynced.add(path)
                raise OSError(errno.EIO, "input/output error", path)

        self._say("failing disk", f"{'sync' if only_sync else 'every call'} fails on the disk of {machine.name}")
        machine.files.before = before
        await self._serviced(machine, lambda: machine.files.before is before, unsynced if only_sync else set())

    async def _fill(self) -> None:
        machine = self._expendable()
        if machine is None:
            return
        files, room = machine.files, self.chance.choice([0, 50, 400])
        self._say("full disk", f"the disk of {machine.name} has {room} bytes left")
        files.capacity = files.used() + room
        await self._serviced(machine, lambda: machine.files is files and files.capacity is not None, set())

    async def _serviced(self, machine: Machine, broken: Callable[[], bool], unsynced: set[str]) -> None:
        """Somebody sees to the disk after a while, and starts the broker again."""
        self._armed = True
        await asyncio.sleep(self.chance.uniform(0.5, 8.0))
        if not self.active or not broken():
            self._armed = self._armed and not self.active
            return
        machine.kill()
        machine.files.capacity = None
        for path in sorted(unsynced):
            if machine.files.exists(path):
                machine.files.node(path).survive(self.chance)
        self._armed = False
        self.world.note(f"the disk of {machine.name} works again")
        await asyncio.sleep(self.chance.uniform(0.0, 2.0))
        machine.start()

    def _files(self, machine: Machine, *suffixes: str) -> list[str]:
        files = machine.files
        return [path for path in files.paths() if path.endswith(suffixes) and files.node(path).data]

    def _flip(self, machine: Machine, path: str, at: int) -> None:
        node = machine.files.node(path)
        bit = 1 << self.chance.randrange(8)
        node.data[at] ^= bit
        self.world.note(f"bit {bit} of byte {at} of {path} on {machine.name} is wrong")

    async def _rot_index(self) -> None:
        """An index is only a way to find things: nothing is lost with it."""
        machine = self.chance.choice(self.world.brokers)
        found = self._files(machine, ".index", ".timeindex")
        if found:
            self._say("bit rot in an index", f"an index of {machine.name} rots")
            path = self.chance.choice(found)
            self._flip(machine, path, self.chance.randrange(len(machine.files.node(path).data)))

    async def _rot_segment(self) -> None:
        """No one may take a damaged batch for a good one; in the end the disk is replaced."""
        machine = self._expendable()
        found = self._files(machine, ".log") if machine is not None else []
        if machine is None or not found:
            return
        path = self.chance.choice(found)
        data = machine.files.node(path).data
        position = 0
        starts = []
        while position < len(data):
            starts.append(position)
            position += read_header(data, position).size
        begin = self.chance.choice(starts)
        size = read_header(data, begin).size
        self._say("bit rot in a segment", f"a segment of {machine.name} rots")
        self._flip(machine, path, begin + self.chance.randrange(UNCHECKED, size))
        self._armed = True
        self._bad[machine] = None
        await asyncio.sleep(self.chance.uniform(2.0, 15.0))
        if self.active:
            self.world.note(f"the disk of {machine.name} is replaced")
            machine.lose_disk()
            del self._bad[machine]
            self._armed = False
            await asyncio.sleep(self.chance.uniform(0.2, 3.0))
            machine.start()
