"""Kafka's wire protocol over simulated connections: the real handlers and messages, without sockets."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Any

from tests.sim.loop import PROCESS
from tests.sim.network import Connection, Network, Refused

from headrace.wire.api import LATER, Api, CloseConnection, Context
from headrace.wire.errors import ConnectionClosed, RequestTimedOut
from headrace.wire.protocol import ApiKey


class SimListener:
    """What `wire.listener.Listener` is to a broker."""

    def __init__(self, network: Network, api: Api, config: Any, metrics: Any, name: str) -> None:
        process = PROCESS.get()
        assert process is not None
        self.process = process
        self.api = api
        self.config = config
        self.metrics = metrics
        self.name = name
        self.handling = 0
        self.address = ("", 0)
        self.connections: dict[_ServerSide, None] = {}
        self._network = network

    async def bind(self, host: str, port: int) -> tuple[str, int]:
        self.address = (self.process.host, port or self._network.free_port())
        return self.address

    def listen(self) -> None:
        self._network.listen(*self.address, self)

    def accept(self, connection: Connection) -> None:
        self.connections[_ServerSide(self, connection)] = None

    def overfull(self) -> str | None:
        """Which of the limits that the real listener keeps to (and that its clients know) is passed, if any."""
        waiting = [connection.waiting for connection in self.connections]
        if max(waiting, default=0) > self.config.max_in_flight:
            return f"{max(waiting)} requests of one connection"
        return f"{sum(waiting)} requests" if sum(waiting) > self.config.queued_max_requests else None

    async def stop(self, timeout: float = 10.0) -> None:
        self._network.unlisten(*self.address, self)
        deadline = asyncio.get_running_loop().time() + timeout
        while asyncio.get_running_loop().time() < deadline and any(not each.idle for each in self.connections):
            await asyncio.sleep(0.005)
        for connection in list(self.connections):
            connection.close()


class _ServerSide:
    """A connection as handlers see it: requests are started as they come and answered in order."""

    peer = ("simulated",)
    principal = "User:ANONYMOUS"
    client_software: tuple[str, str] | None = None

    def __init__(self, listener: SimListener, connection: Connection) -> None:
        self.listener_name = listener.name
        self.metrics = listener.metrics
        self.api = listener.api
        self.closed = False
        self._listener = listener
        self._connection = connection
        self._pipeline: deque[Context] = deque()
        connection.received[Connection.SERVER] = self._received
        connection.broken[Connection.SERVER] = self._gone

    @property
    def idle(self) -> bool:
        return not self._pipeline

    @property
    def waiting(self) -> int:
        return len(self._pipeline)

    def close(self) -> None:
        self._connection.close(Connection.SERVER)
        self._gone()

    def is_next(self, context: Context) -> bool:
        return self.closed or self._pipeline[0] is context

    def _gone(self) -> None:
        self.closed = True
        for context in self._pipeline:
            context.take_turn()
        self._listener.connections.pop(self, None)

    def _received(self, message: tuple[int, int, int, bytes]) -> None:
        number, api_key, version, body = message
        now = asyncio.get_running_loop().time()
        context = Context(self, api_key, version, number, "sim", now, now, len(body))
        self._pipeline.append(context)
        try:
            answer = self.api.dispatch(context, memoryview(bytearray(body)))
        except CloseConnection:
            self.close()
            return
        if answer is LATER:
            return
        if isinstance(answer, Awaitable):
            task = asyncio.ensure_future(answer)
            task.add_done_callback(lambda done: self._answered(context, done))
        else:
            self.complete(context, answer)

    def _answered(self, context: Context, done: asyncio.Future[Any]) -> None:
        if done.cancelled():
            self.close()
        elif (error := done.exception()) is not None:
            self.fail(context, error)
        else:
            self.complete(context, done.result())

    def complete(self, context: Context, response: Any) -> None:
        if context.done or self.closed:
            return
        context.done = True
        context.body = self.api.finish(context, response)
        self._send_ready()

    def fail(self, context: Context, error: BaseException) -> None:
        if context.done or self.closed:
            return
        context.done = True
        try:
            context.body = self.api.refuse(context, error)
        except CloseConnection:
            self.close()
            return
        self._send_ready()

    def _send_ready(self) -> None:
        while self._pipeline and self._pipeline[0].done:
            context = self._pipeline.popleft()
            body = context.body
            if body is None:
                continue
            parts = body if isinstance(body, list) else [body]
            flat = b"".join(part.read() if hasattr(part, "read") else bytes(part) for part in parts)
            self._connection.send(Connection.SERVER, (context.correlation_id, flat))
        if self._pipeline:
            self._pipeline[0].take_turn()


class SimWireClient:
    """What `wire.client.Client` is to a follower, and to the workload."""

    def __init__(self, network: Network, connection: Connection, timeout: float) -> None:
        self.closed = False
        self._network = network
        self._connection = connection
        self._timeout = timeout
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[asyncio.Future[memoryview], Any]] = {}
        connection.received[Connection.CLIENT] = self._received
        connection.broken[Connection.CLIENT] = lambda: self._end("the connection broke")

    @classmethod
    async def connect(cls, network: Network, host: str, port: int, timeout: float) -> SimWireClient:
        try:
            async with asyncio.timeout(timeout):
                connection = await network.connect(host, port)
        except TimeoutError:
            raise RequestTimedOut(f"{host}:{port} did not accept within {timeout:g} s") from None
        except Refused as error:
            raise ConnectionClosed(f"cannot connect to {host}:{port}: {error}") from error
        return cls(network, connection, timeout)

    def send(
        self, api_key: int, version: int, body: Sequence[Any], *, answered: bool = True
    ) -> asyncio.Future[memoryview]:
        if self.closed:
            raise ConnectionClosed("the connection is closed")
        loop = asyncio.get_running_loop()
        number = next(self._numbers)
        answer: asyncio.Future[memoryview] = loop.create_future()
        flat = b"".join(body)
        self._network.trace("wire", ApiKey(api_key).name, self._connection.sides[1].name, len(flat))
        if answered:
            self._waiting[number] = (answer, loop.call_later(self._timeout, self._timed_out, number))
        else:
            answer.set_result(memoryview(b""))
        self._connection.send(Connection.CLIENT, (number, api_key, version, flat))
        return answer

    async def learn_versions(self) -> dict[int, tuple[int, int]]:
        """Nothing: nobody here sends a coordinator what it would have to pass on to a broker."""
        return {}

    def close(self) -> None:
        self._connection.close(Connection.CLIENT)
        self._end("closed by this side")

    def _received(self, message: tuple[int, bytes]) -> None:
        number, body = message
        answer, timer = self._waiting.pop(number, (None, None))
        if answer is not None and timer is not None:
            timer.cancel()
            if not answer.done():
                answer.set_result(memoryview(body))

    def _timed_out(self, number: int) -> None:
        answer, _ = self._waiting.pop(number, (None, None))
        if answer is not None and not answer.done():
            answer.set_exception(RequestTimedOut(f"no answer to request {number} in time"))

    def _end(self, reason: str) -> None:
        self.closed = True
        waiting, self._waiting = self._waiting, {}
        for answer, timer in waiting.values():
            timer.cancel()
            if not answer.done():
                answer.set_exception(ConnectionClosed(reason))
                answer.exception()
