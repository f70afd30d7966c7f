"""The network between simulated processes: connections that keep order, and links that do not keep their promises.

A connection is like TCP: what is sent arrives in order or the connection breaks. A cut link holds what is sent over it;
when it heals, the bytes arrive after all, or the connection turns out to be broken. Whoever sent over a connection that
broke sends again over another one; what it had sent may still arrive, so a request can come twice, and an older one
after a newer. Links are directed, so a partition can be one-sided. A process that dies resets its connections; a
machine that loses its power says nothing, and its peers notice only when they try hard enough.
"""

from __future__ import annotations

import asyncio
import contextvars
from bisect import insort
from collections.abc import Callable
from math import log
from operator import itemgetter
from random import Random
from typing import Any, Protocol

from tests.sim.loop import PROCESS, Process, SimLoop

KEEPALIVE = 30.0
"""Seconds after which a connection over a cut link is given up (as gRPC's keep-alive does)."""

WORLD = contextvars.Context()
"""The context of what belongs to no process."""

Trace = Callable[..., None]


class Refused(OSError):
    """Nobody listens there."""


class Acceptor(Protocol):
    """A listening port."""

    process: Process

    def accept(self, connection: Connection) -> None: ...


class Connection:
    """One connection. Each side sets what it wants to be told: `received[side]` and `broken[side]`."""

    CLIENT, SERVER = 0, 1

    def __init__(self, network: Network, client: Process, server: Process) -> None:
        self.network = network
        self.sides = (client, server)
        self.open = True
        self.received: list[Callable[[Any], None] | None] = [None, None]
        self.broken: list[Callable[[], None] | None] = [None, None]
        self._last = [0.0, 0.0]
        self._sent = [0, 0]
        self._held: list[list[tuple[int, Any]]] = [[], []]

    def send(self, side: int, message: Any) -> None:
        """`side` says `message` to the other."""
        if self.open:
            network = self.network
            if network.break_rate and network.chance.random() < network.break_rate:
                network.count("broken connection")
                if network.chance.random() < 0.5:
                    self.reset()
                else:
                    self._linger(side, message)
                return
            self._transmit(side, self._number(side), message)

    def _linger(self, side: int, message: Any) -> None:
        """Over for the sender; what it said arrives later, and only then the other side learns that it is over."""
        network = self.network
        network.count("request that came late")
        broken, self.broken[side], self.received[side] = self.broken[side], None, None
        if broken is not None:
            network.loop.call_soon(broken, context=self.sides[side].context)
        when = self._last[side] = max(self._last[side], network.loop.now) + network.chance.uniform(0.0, 3.0)
        network.loop.call_at(
            when, self._arrive, side, self._number(side), message, context=self.sides[1 - side].context
        )
        network.at(when + 0.05, self.reset)

    def _number(self, side: int) -> int:
        self._sent[side] += 1
        return self._sent[side]

    def _transmit(self, side: int, number: int, message: Any) -> None:
        network = self.network
        source, target = self.sides[side], self.sides[1 - side]
        if self._held[side] or network.is_cut(source.host, target.host):
            self._hold(side, number, message)
            return
        when = max(self._last[side], network.loop.now + network.latency(source.host, target.host))
        self._last[side] = when
        network.loop.call_at(when, self._arrive, side, number, message, context=target.context)

    def _hold(self, side: int, number: int, message: Any) -> None:
        """What was under way when the link was cut may come to a stop after what was said later."""
        insort(self._held[side], (number, message), key=itemgetter(0))
        self.network.remember(self)

    def _arrive(self, side: int, number: int, message: Any) -> None:
        """In the receiver's name: it takes what has come when it runs again, and when it is dead nobody does."""
        if not self.open:
            return
        if self._held[side] or self.network.is_cut(self.sides[side].host, self.sides[1 - side].host):
            self._hold(side, number, message)
            return
        received = self.received[1 - side]
        if received is not None:
            if self.network.ambush is self.sides[1 - side]:
                self.network.strike()
            received(message)

    def healed(self) -> None:
        """The link is whole again: what was held arrives, or is found to be lost."""
        if not self.open:
            return
        for side in (0, 1):
            if self._held[side] and not self.network.is_cut(self.sides[side].host, self.sides[1 - side].host):
                if self.network.chance.random() < 0.3:
                    self.reset()
                    return
                held, self._held[side] = self._held[side], []
                for number, message in held:
                    self._transmit(side, number, message)

    @property
    def stuck(self) -> bool:
        return self.open and any(self._held)

    def reset(self, silent_side: int | None = None, notice_after: float = 0.0) -> None:
        """Both sides learn that it is over; not the `silent_side`, which knows or is dead."""
        if not self.open:
            return
        self.open = False
        self.network.forget(self)
        for side in (0, 1):
            broken = self.broken[side]
            if side != silent_side and broken is not None:
                delay = notice_after + self.network.latency(self.sides[1 - side].host, self.sides[side].host)
                self.network.at(
                    self.network.loop.now + delay, self.network.loop.call_soon, broken, context=self.sides[side].context
                )

    def close(self, side: int) -> None:
        self.reset(silent_side=side)


class Network:
    """Hosts, ports and links."""

    def __init__(self, loop: SimLoop, chance: Random, trace: Trace, count: Callable[[str], None]) -> None:
        self.loop = loop
        self.chance = chance
        self.trace = trace
        self.count = count
        self.ports: dict[tuple[str, int], Acceptor] = {}
        self.break_rate = 0.0
        self.ambush: Process | None = None
        """The next message to it calls `strike`."""
        self.strike: Callable[[], None] = lambda: None
        self._cuts: dict[tuple[str, str], float] = {}
        self._slow: dict[tuple[str, str], float] = {}
        self._stuck: dict[Connection, None] = {}
        self._connections: dict[Process, dict[Connection, None]] = {}
        self._next_port = 10_000

    # --- links

    def latency(self, source: str, target: str) -> float:
        drawn = self.chance.random()
        seconds = 0.0001 - log(1.0 - drawn) / 2_000
        if drawn > 0.99:
            seconds += self.chance.uniform(0.005, 0.1)
        return seconds * self._slow.get((source, target), 1.0) if self._slow else seconds

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def cut(self, source: str, target: str) -> None:
        self._cuts.setdefault((source, target), self.loop.now)

    def slow_down(self, source: str, target: str, factor: float) -> None:
        self._slow[source, target] = factor

    def heal(self) -> None:
        """Every link is whole and quick again."""
        self._cuts.clear()
        self._slow.clear()
        for connection in list(self._stuck):
            self._stuck.pop(connection, None)
            connection.healed()

    def remember(self, connection: Connection) -> None:
        """This connection waits for a link: it is given up after a while."""
        if connection not in self._stuck:
            self._stuck[connection] = None
            self.at(self.loop.now + KEEPALIVE, self._give_up, connection)

    def _give_up(self, connection: Connection) -> None:
        if connection in self._stuck and connection.stuck:
            connection.reset()

    def forget(self, connection: Connection) -> None:
        self._stuck.pop(connection, None)
        for process in connection.sides:
            self._connections.get(process, {}).pop(connection, None)

    def at(self, when: float, callback: Any, *args: Any, **named: Any) -> None:
        """Calls back in nobody's name."""
        if named:
            self.loop.call_at(when, lambda: callback(*args, **named), context=WORLD)
        else:
            self.loop.call_at(when, callback, *args, context=WORLD)

    # --- ports

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def listen(self, host: str, port: int, acceptor: Acceptor) -> None:
        self.ports[host, port] = acceptor

    def unlisten(self, host: str, port: int, acceptor: Acceptor) -> None:
        if self.ports.get((host, port)) is acceptor:
            del self.ports[host, port]

    async def connect(self, host: str, port: int) -> Connection:
        """Connects the running process; raises `Refused`, or waits for ever when nothing gets through."""
        client = PROCESS.get()
        assert client is not None, "only a process connects"
        await asyncio.sleep(self.latency(client.host, host))
        while self.is_cut(client.host, host) or self.is_cut(host, client.host):
            await asyncio.sleep(1.0)
        await asyncio.sleep(self.latency(host, client.host))
        acceptor = self.ports.get((host, port))
        if acceptor is None or not acceptor.process.alive:
            raise Refused(f"{host}:{port} refuses connections")
        connection = Connection(self, client, acceptor.process)
        self._connections.setdefault(client, {})[connection] = None
        self._connections.setdefault(acceptor.process, {})[connection] = None
        self.loop.call_soon(acceptor.accept, connection, context=acceptor.process.context)
        return connection

    def process_died(self, process: Process, *, silent: bool) -> None:
        """Its connections are reset; with the machine gone, their other ends hear nothing for a while."""
        for address in [address for address, acceptor in self.ports.items() if acceptor.process is process]:
            del self.ports[address]
        for connection in list(self._connections.pop(process, {})):
            dead = connection.sides.index(process)
            connection.reset(silent_side=dead, notice_after=self.chance.uniform(0.5, 12.0) if silent else 0.0)
