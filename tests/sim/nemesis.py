"""What goes wrong, and when: one fault after the other, out of the seed.

A process that is killed loses nothing that it wrote; that may happen to anyone at any time. What costs a broker records
is in `disks`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tests.sim.checker import Checker, Key
from tests.sim.disks import Disks, Kind
from tests.sim.groups import Member
from tests.sim.world import Machine, World

from headrace.cluster.image import NO_LEADER, Partition


class Nemesis:
    """Runs until it is stopped; `heal` makes everything whole again."""

    def __init__(self, world: World, checker: Checker, members: Sequence[Member] = ()) -> None:
        self.world = world
        self.members = members
        self.checker = checker
        self.chance = world.faults
        self.pace = self.chance.choice([0.15, 0.4, 1.0])
        """Faults a second."""
        self.disks = Disks(world, checker)
        self.active = True
        self._kinds: list[Kind] = [
            ("kill", 3, self._kill),
            ("kill of leader after leader", 1.5, self._chase),
            ("kill in the middle of something", 2, self._ambush),
            ("pause", 2, self._pause),
            ("partition", 2, self._partition),
            ("one-sided cut", 2, self._one_sided),
            ("slow link", 1, self._slow),
            ("flaky network", 1, self._flaky),
            ("cut from etcd", 2, self._cut_from_etcd),
            ("etcd down", 1, self._etcd_down),
            ("lost answers of etcd", 1, self._drop_answers),
            ("compaction of etcd", 0.5, self._compact),
            ("rolling restart", 1, self._restart),
            *self.disks.kinds,
            ("late words of a controller", 1, self._late_words),
            ("pause or kill of a member", 2 if members else 0, self._hurt_member),
            ("clock jump", 0.5, self._clock_jump),
        ]
        # Each seed has its favourites, so that some combinations come up often enough to matter.
        self._weights = [weight * self.chance.choice([0, 0.3, 1, 3]) for _, weight, _ in self._kinds]
        if not any(self._weights):
            self._weights[0] = 1

    async def run(self) -> None:
        while self.active:
            await asyncio.sleep(self.chance.expovariate(self.pace))
            if not self.active:
                return
            name, _, work = self.chance.choices(self._kinds, self._weights)[0]
            self.world.spawn(self._guarded(name, work), name)

    async def _guarded(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.disks.look_after_fragile()
        await work()

    def heal(self) -> None:
        """Every fault ends now."""
        self.active = False
        world = self.world
        world.network.break_rate = 0.0
        world.network.ambush = None
        world.network.heal()
        world.store.available = True
        self.disks.heal()
        for machine in world.machines:
            if machine.registry is not None:
                machine.registry.heal()
                machine.registry._drop_answers = 0
            if machine.process is not None and machine.process.paused:
                machine.process.resume()
            machine.start()
        for member in self.members:
            if member.process is not None and member.process.paused:
                member.process.resume()
            member.start()
        world.note("everything is healed")

    # --- who

    def _target(self, *, brokers_only: bool = False) -> Machine | None:
        """Somebody to hurt."""
        machines = self.world.brokers if brokers_only else self.world.machines
        running = [machine for machine in machines if machine.process is not None]
        return self.chance.choice(running) if running else None

    # --- what

    def _say(self, fault: str, what: str) -> None:
        self.world.count(fault)
        self.world.note(f"fault: {what}")

    async def _kill(self) -> None:
        machine = self._target()
        if machine is not None:
            self._say("kill", f"{machine.name} is killed")
            machine.kill()
            await asyncio.sleep(self.chance.choice([0.05, 0.5, 2.0, 6.0]) * self.chance.random())
            machine.start()

    async def _chase(self) -> None:
        """Kills a leader the moment it acknowledged something, and its successor a moment after the election."""
        if self.checker.on_acknowledged is not None:
            return
        acknowledged: asyncio.Future[Key] = asyncio.get_running_loop().create_future()

        def told(key: Key) -> None:
            self.checker.on_acknowledged = None
            acknowledged.set_result(key)

        self.checker.on_acknowledged = told
        key = await acknowledged
        state = self.checker.states().get(key)
        if not self.active or state is None or state.leader == NO_LEADER:
            return
        killed = [self.world.brokers[state.leader]]
        self._say("kill of leader after leader", f"{killed[0].name} is killed after its acknowledgement")
        killed[0].kill()
        successor = await self._successor(key, state.leader)
        await asyncio.sleep(self.chance.uniform(0.0, 0.006))
        if successor is not None and self.active:
            killed.append(self.world.brokers[successor])
            self.world.note(f"{killed[1].name} is killed after its election")
            killed[1].kill()
            await asyncio.sleep(self.chance.uniform(0.0, 6.0))
        for machine in killed:
            machine.start()

    async def _ambush(self) -> None:
        """Kills somebody a few steps after a message reached it: at any await of what that set in motion."""
        machine, network = self._target(), self.world.network
        if machine is None or network.ambush is not None:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def strike() -> None:
            network.ambush = None
            reached.set_result(None)

        process = network.ambush = machine.process
        network.strike = strike
        await reached
        for _ in range(self.chance.randint(0, 12)):
            await asyncio.sleep(0)
        if self.active and machine.process is process:
            self._say("kill in the middle of something", f"{machine.name} is killed in the middle of something")
            machine.kill()
            await asyncio.sleep(self.chance.uniform(0.0, 4.0))
            machine.start()

    async def _successor(self, key: Key, leader: int) -> int | None:
        """Who is elected next; None when that takes too long."""
        elected: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def told(changed: Key, state: Partition) -> None:
            if changed == key and state.leader not in (leader, NO_LEADER) and not elected.done():
                elected.set_result(state.leader)

        self.checker.on_partition = told
        try:
            async with asyncio.timeout(8.0):
                return await elected
        except TimeoutError:
            return None
        finally:
            self.checker.on_partition = None

    async def _pause(self) -> None:
        machine = self._target()
        if machine is None or machine.process is None or machine.process.paused:
            return
        seconds = self.chance.choice([0.5, 2.0, 4.0, 8.0]) * self.chance.uniform(0.5, 1.0)
        self._say("pause", f"{machine.name} stands still for {seconds:.1f} s")
        process = machine.process
        process.pause()
        await asyncio.sleep(seconds)
        if process.alive and process.paused:
            process.resume()

    def _hosts(self) -> list[str]:
        return [machine.name for machine in self.world.machines]

    async def _partition(self) -> None:
        hosts = self._hosts()
        side = [host for host in hosts if self.chance.random() < 0.35]
        self._say("partition", f"{', '.join(side) or 'nobody'} cut off from the rest")
        for one in side:
            for other in hosts:
                if other not in side:
                    self.world.network.cut(one, other)
                    self.world.network.cut(other, one)
        await self._heal_later()

    async def _one_sided(self) -> None:
        one, other = self.chance.sample(self._hosts(), 2)
        self._say("one-sided cut", f"nothing gets from {one} to {other}")
        self.world.network.cut(one, other)
        await self._heal_later()

    async def _heal_later(self) -> None:
        await asyncio.sleep(self.chance.choice([1.0, 4.0, 10.0]) * self.chance.random())
        self.world.network.heal()
        self.world.note("the network is whole")

    async def _slow(self) -> None:
        one, other = self.chance.sample(self._hosts(), 2)
        factor = self.chance.choice([10, 100, 1000])
        self._say("slow link", f"{one} to {other} is {factor} times slower")
        self.world.network.slow_down(one, other, factor)
        await self._heal_later()

    async def _flaky(self) -> None:
        self._say("flaky network", "connections break now and then")
        self.world.network.break_rate = self.chance.choice([0.001, 0.01, 0.03])
        await asyncio.sleep(self.chance.uniform(1, 8))
        self.world.network.break_rate = 0.0

    async def _cut_from_etcd(self) -> None:
        machine = self._target()
        if machine is not None and machine.registry is not None:
            registry = machine.registry
            seconds = self.chance.choice([1.0, 4.0, 8.0]) * self.chance.uniform(0.5, 1.0)
            self._say("cut from etcd", f"{machine.name} cannot reach etcd for {seconds:.1f} s")
            registry.cut()
            await asyncio.sleep(seconds)
            registry.heal()

    async def _etcd_down(self) -> None:
        store = self.world.store
        if not store.available:
            return
        seconds = self.chance.choice([0.5, 3.0, 6.0]) * self.chance.uniform(0.5, 1.0)
        self._say("etcd down", f"etcd has no leader for {seconds:.1f} s")
        store.available = False
        await asyncio.sleep(seconds)
        store.available = True

    async def _drop_answers(self) -> None:
        machine = self._target()
        if machine is not None and machine.registry is not None:
            self._say("lost answers of etcd", f"{machine.name} loses etcd's next answers")
            machine.registry.drop_answers(self.chance.randint(1, 3))

    async def _compact(self) -> None:
        store = self.world.store
        if store.compacted < store.revision:
            self._say("compaction of etcd", "etcd forgets its history")
            store.compact(store.revision)

    async def _restart(self) -> None:
        machine = self._target(brokers_only=True)
        if machine is None or not machine.ready or machine.process is None:
            return
        self._say("rolling restart", f"{machine.name} is stopped in order")
        await machine.stop()
        await asyncio.sleep(self.chance.random())
        machine.start()

    async def _late_words(self) -> None:
        """What a controller says to a broker is held up until another controller is in its place."""
        active = next((m for m in self.world.controllers if m.ready and m.service.controller.active), None)
        if active is None or active.registry is None:
            return
        hearer, other = self.chance.sample(self.world.brokers, 2)
        self._say("late words of a controller", f"nothing gets from {active.name} to {hearer.name}")
        registry = active.registry
        self.world.network.cut(active.name, hearer.name)
        other.kill()
        other.start()
        await asyncio.sleep(self.chance.uniform(0.5, 2.0))
        if not self.active:
            return
        self.world.note(f"{active.name} cannot reach etcd")
        registry.cut()
        await asyncio.sleep(self.chance.uniform(3.5, 6.0))
        self.world.network.heal()
        self.world.note("the network is whole")
        await asyncio.sleep(1.0)
        registry.heal()

    async def _hurt_member(self) -> None:
        """A member of a group stands still, perhaps for longer than its session, or it dies and another one comes."""
        member = self.chance.choice(self.members)
        process = member.process
        if process is None or process.paused:
            return
        if self.chance.random() < 0.5:
            seconds = self.chance.uniform(1.0, 12.0)
            self._say("pause of a member", f"{member.name} stands still for {seconds:.1f} s")
            process.pause()
            await asyncio.sleep(seconds)
            process.resume()
        else:
            self._say("kill of a member", f"{member.name} is killed")
            member.kill()
            await asyncio.sleep(self.chance.uniform(0.0, 5.0))
            member.start()

    async def _clock_jump(self) -> None:
        machine = self.chance.choice(self.world.machines)
        jump = self.chance.choice([-5_000, -100, 100, 5_000])
        self._say("clock jump", f"the clock of {machine.name} jumps by {jump} ms")
        machine.clock.skew_ms += jump
