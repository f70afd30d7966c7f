"""gRPC without gRPC: the generated stubs and servicers, their messages as bytes, over simulated connections."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

import grpc
from tests.sim.loop import PROCESS, Process
from tests.sim.network import Connection, Network, Refused

from headrace.rpc.channels import Channels
from headrace.rpc.errors import ErrorInterceptor

REQUEST, CANCEL, HEADERS, ITEM, END, MORE, ANSWER = range(7)
CONNECT_SECONDS = 20.0
_END = object()
_TOO_LATE = (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")


def _failure(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


class _Context:
    """The servicer's context."""

    def __init__(self, server: _ServerSide, number: int) -> None:
        self._server = server
        self._number = number

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        raise _Aborted(code, details)

    def peer(self) -> str:
        return f"sim:{self._server.client}"

    async def send_initial_metadata(self, metadata: Any) -> None:
        self._server.say(HEADERS, self._number)


class _Aborted(grpc.aio.AbortError):
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class _ServerSide:
    """The calls that arrive over one connection."""

    def __init__(self, port: SimRpcServer, connection: Connection) -> None:
        self._port = port
        self._connection = connection
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._inputs: dict[int, asyncio.Queue[bytes]] = {}
        connection.received[Connection.SERVER] = self._received
        connection.broken[Connection.SERVER] = self._broken

    @property
    def client(self) -> str:
        return self._connection.sides[Connection.CLIENT].host

    def say(self, kind: int, number: int, payload: Any = None) -> None:
        self._connection.send(Connection.SERVER, (kind, number, payload))

    def _received(self, message: tuple[int, int, Any]) -> None:
        kind, number, payload = message
        if kind == CANCEL:
            task = self._calls.get(number)
            if task is not None:
                task.cancel()
            return
        if kind == MORE:
            if number in self._inputs:
                self._inputs[number].put_nowait(payload)
            return
        if self._port.stopping:
            self.say(END, number, (grpc.StatusCode.UNAVAILABLE, "the server stops"))
            return
        path, body = payload
        task = asyncio.create_task(self._serve(number, path, body), name=f"serve {path}")
        self._calls[number] = task
        task.add_done_callback(lambda _: self._ended(number))
        if body is None:
            self._inputs[number] = asyncio.Queue()

    def _ended(self, number: int) -> None:
        self._calls.pop(number, None)
        self._inputs.pop(number, None)

    async def _requests(self, number: int, deserialize: Any) -> AsyncIterator[Any]:
        queue = self._inputs[number]
        while True:
            yield deserialize(await queue.get())

    async def _serve(self, number: int, path: str, body: bytes | None) -> None:
        handler = self._port.handlers.get(path)
        if handler is None:
            self.say(END, number, (grpc.StatusCode.UNIMPLEMENTED, path))
            return
        request: Any
        if body is None:
            request = self._requests(number, handler.request_deserializer)
        else:
            request = handler.request_deserializer(body)
        context = _Context(self, number)
        try:
            if handler.unary_unary is not None:
                answer = await handler.unary_unary(request, context)
                self.say(ANSWER, number, handler.response_serializer(answer))
                return
            stream = handler.stream_stream if body is None else handler.unary_stream
            async for item in stream(request, context):
                self.say(ITEM, number, handler.response_serializer(item))
        except _Aborted as aborted:
            self.say(END, number, (aborted.code, aborted.details))
        except Exception as error:
            self.say(END, number, (grpc.StatusCode.UNKNOWN, repr(error)))
        else:
            self.say(END, number, (grpc.StatusCode.OK, ""))

    @property
    def busy(self) -> bool:
        return bool(self._calls)

    def close(self) -> None:
        self._broken()
        self._connection.close(Connection.SERVER)

    def _broken(self) -> None:
        self._port.sides.pop(self, None)
        for task in list(self._calls.values()):
            task.cancel()


class SimRpcServer:
    """A gRPC port; what `serve` returns."""

    def __init__(self, network: Network, process: Process, host: str, port: int) -> None:
        self.process = process
        self.handlers: dict[str, Any] = {}
        self.port = port
        self.sides: dict[_ServerSide, None] = {}
        self.stopping = False
        self._network = network
        self._host = host

    def accept(self, connection: Connection) -> None:
        self.sides[_ServerSide(self, connection)] = None

    async def set_serving(self, serving: bool) -> None:
        return

    async def stop(self, grace: float = 2.0) -> None:
        """Takes no new call, lets those under way end for a while, and cancels the rest."""
        self.stopping = True
        self._network.unlisten(self._host, self.port, self)
        for _ in range(10):
            if any(side.busy for side in self.sides):
                await asyncio.sleep(grace / 10)
        for side in list(self.sides):
            side.close()


class _Collector:
    """Stands for grpc.aio.Server while a servicer is added."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        return

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        self.handlers.update({f"/{service}/{name}": handler for name, handler in handlers.items()})


class SimRpc:
    """`serve` and `channels` of one process."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def channels(self) -> Channels:
        return Channels(lambda address: SimChannel(self._network, address))  # type: ignore[arg-type,return-value]

    async def serve(
        self,
        host: str,
        port: int,
        services: Sequence[tuple[str, Callable[[Any], None]]],
        *,
        serving: bool = True,
    ) -> Any:
        process = PROCESS.get()
        assert process is not None
        collector = _Collector()
        for _, add in services:
            add(collector)
        server = SimRpcServer(self._network, process, process.host, port or self._network.free_port())
        interceptor = ErrorInterceptor()
        for path, handler in collector.handlers.items():

            async def found(_: Any, handler: Any = handler) -> Any:
                return handler

            details: Any = SimpleNamespace(method=path)
            server.handlers[path] = await interceptor.intercept_service(found, details)
        self._network.listen(process.host, server.port, server)
        return server


class _Answer:
    """The client's side of a call with one answer."""

    def __init__(self) -> None:
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def heads(self) -> None:
        return

    def take(self, payload: bytes) -> None:
        if not self.future.done():
            self.future.set_result(payload)

    def end(self, code: grpc.StatusCode, details: str) -> None:
        if not self.future.done():
            self.future.set_exception(_failure(code, details))
            self.future.exception()


class _Call:
    """The client's side of a call with a stream of answers."""

    def __init__(self) -> None:
        self.headers: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.items: asyncio.Queue[Any] = asyncio.Queue()

    def heads(self) -> None:
        if not self.headers.done():
            self.headers.set_result(None)

    def take(self, payload: bytes) -> None:
        self.heads()
        self.items.put_nowait((payload, None, None))

    def end(self, code: grpc.StatusCode, details: str) -> None:
        if not self.headers.done():
            if code is grpc.StatusCode.OK:
                self.headers.set_result(None)
            else:
                self.headers.set_exception(_failure(code, details))
                self.headers.exception()
        self.items.put_nowait((_END, code, details))


C = TypeVar("C", _Call, _Answer)


class SimChannel:
    """A channel to one address: connects when it is used, and again after the connection broke."""

    def __init__(self, network: Network, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._network = network
        self._host, self._port = host, int(port)
        self._connection: Connection | None = None
        self._calls: dict[int, _Call | _Answer] = {}
        self._numbers = itertools.count(1)
        self._connecting = asyncio.Lock()

    def unary_unary(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        async def call(request: Any, timeout: float | None = None, **_: Any) -> Any:
            loop = asyncio.get_running_loop()
            began = loop.time()
            try:
                if self._connection is None or not self._connection.open:
                    async with asyncio.timeout(timeout):
                        await self._connect()
            except TimeoutError:
                raise _failure(*_TOO_LATE) from None
            number, answer = self._begin(path, request_serializer(request), _Answer())
            timer = None if timeout is None else loop.call_at(began + timeout, answer.end, *_TOO_LATE)
            try:
                return response_deserializer(await answer.future)
            finally:
                if timer is not None:
                    timer.cancel()
                self._finish(number)

        return call

    def unary_stream(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        def call(request: Any, timeout: float | None = None, **_: Any) -> Any:
            return SimStream(self, path, request_serializer(request), response_deserializer)

        return call

    def _unsupported(self, path: str, **_: Any) -> Any:
        return None

    stream_unary = _unsupported

    def stream_stream(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        def call(timeout: float | None = None, **_: Any) -> Any:
            return SimDuplex(self, path, request_serializer, response_deserializer)

        return call

    async def _connect(self) -> None:
        async with self._connecting:
            if self._connection is not None and self._connection.open:
                return
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    connection = await self._network.connect(self._host, self._port)
            except (Refused, TimeoutError) as error:
                raise _failure(grpc.StatusCode.UNAVAILABLE, f"failed to connect: {error}") from None
            connection.received[Connection.CLIENT] = self._received
            connection.broken[Connection.CLIENT] = lambda: self._lost(connection)
            self._connection = connection

    def _begin(self, path: str, body: bytes | None, call: C) -> tuple[int, C]:
        number = next(self._numbers)
        self._calls[number] = call
        assert self._connection is not None
        self._network.trace("rpc", path, self._host, len(body or b""))
        self._connection.send(Connection.CLIENT, (REQUEST, number, (path, body)))
        return number, call

    def _more(self, number: int, body: bytes) -> None:
        if self._connection is not None:
            self._connection.send(Connection.CLIENT, (MORE, number, body))

    def _finish(self, number: int) -> None:
        if self._calls.pop(number, None) is not None and self._connection is not None:
            self._connection.send(Connection.CLIENT, (CANCEL, number, None))

    def _received(self, message: tuple[int, int, Any]) -> None:
        kind, number, payload = message
        call = self._calls.get(number)
        if call is None:
            return
        if kind == HEADERS:
            call.heads()
        elif kind == ITEM:
            call.take(payload)
        elif kind == ANSWER:
            del self._calls[number]
            call.take(payload)
        else:
            del self._calls[number]
            call.end(*payload)

    def _lost(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None
            calls, self._calls = self._calls, {}
            for call in calls.values():
                call.end(grpc.StatusCode.UNAVAILABLE, "the connection broke")

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close(Connection.CLIENT)
            self._lost(self._connection)


class SimStream:
    """A call whose answer is a stream."""

    def __init__(self, channel: SimChannel, path: str, body: bytes, deserialize: Any) -> None:
        self._channel = channel
        self._path = path
        self._body = body
        self._deserialize = deserialize
        self._number = 0
        self._call: _Call | None = None

    async def initial_metadata(self) -> None:
        await self._start()
        assert self._call is not None
        await self._call.headers

    async def _start(self) -> None:
        if self._call is None:
            await self._channel._connect()
            self._number, self._call = self._channel._begin(self._path, self._body, _Call())

    def __aiter__(self) -> SimStream:
        return self

    async def __anext__(self) -> Any:
        await self._start()
        assert self._call is not None
        item, code, details = await self._call.items.get()
        if item is not _END:
            return self._deserialize(item)
        if code is grpc.StatusCode.OK:
            raise StopAsyncIteration
        raise _failure(code, details)

    async def read(self) -> Any:
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            return grpc.aio.EOF

    def cancel(self) -> None:
        self._channel._finish(self._number)


class SimDuplex:
    """A call with a stream in both directions."""

    def __init__(self, channel: SimChannel, path: str, serialize: Any, deserialize: Any) -> None:
        self._channel = channel
        self._path = path
        self._serialize = serialize
        self._deserialize = deserialize
        self._number = 0
        self._over: grpc.aio.AioRpcError | None = None
        self._starting = asyncio.Lock()
        self._call: asyncio.Future[_Call] = asyncio.get_running_loop().create_future()

    async def write(self, request: Any) -> None:
        async with self._starting:
            if not self._call.done():
                try:
                    await self._channel._connect()
                except grpc.aio.AioRpcError as error:
                    self._end(error)
                else:
                    if self._over is None:
                        self._number, call = self._channel._begin(self._path, None, _Call())
                        self._call.set_result(call)
        if self._over is not None:
            raise self._over
        self._channel._more(self._number, self._serialize(request))

    def _end(self, error: grpc.aio.AioRpcError) -> None:
        self._over = error
        if not self._call.done():
            self._call.set_exception(error)
            self._call.exception()

    def __aiter__(self) -> SimDuplex:
        return self

    async def __anext__(self) -> Any:
        call = await asyncio.shield(self._call)
        item, code, details = await call.items.get()
        if item is not _END:
            return self._deserialize(item)
        if code is grpc.StatusCode.OK:
            raise StopAsyncIteration
        error = _failure(code, details)
        self._over = self._over or error
        raise error

    def cancel(self) -> None:
        self._end(_failure(grpc.StatusCode.CANCELLED, "cancelled on this side"))
        if not self._call.exception():
            self._channel._finish(self._number)
            self._call.result().end(grpc.StatusCode.CANCELLED, "cancelled on this side")
