"""A client's connection to a Kafka listener, on the same raw sockets as the server's side: for followers' fetchers, for
forwarding, and for tests.

Requests are pipelined: each `send` gets a future, and answers are matched by correlation id. A response's body is a
memoryview of the frame it came in, so a Fetch response's records are never copied.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.wire import messages
from headrace.wire.errors import ConnectionClosed, MalformedRequest, RequestTimedOut
from headrace.wire.frame_memory import FrameMemory
from headrace.wire.frames import SCRATCH_BYTES, FrameReader
from headrace.wire.protocol import ApiKey, correlation_of, parse_response_header, request_header
from headrace.wire.sending import Output

_SIZE = struct.Struct(">i")


@dataclass(slots=True)
class _Waiting:
    api_key: int
    version: int
    answer: asyncio.Future[memoryview]
    timer: asyncio.TimerHandle | None


class Client:
    """One connection. `connect` makes it; `request` for control messages, `send` for bytes of your own."""

    def __init__(
        self,
        sock: socket.socket,
        client_id: str | None,
        request_timeout: float,
        max_response_bytes: int,
        max_in_flight: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._client_id = client_id
        self._timeout = request_timeout
        self._max_in_flight = max_in_flight
        self._waiting: dict[int, _Waiting] = {}
        self._ids = itertools.count()
        scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._memory = FrameMemory(max_response_bytes)
        self._reader = FrameReader(sock.recv_into, scratch, max_response_bytes, self._memory, self)
        self._output = Output(sock, self._loop, None, lambda: None, self._lost)
        self.closed = False
        self.versions: dict[int, tuple[int, int]] = {}
        """The server's lowest and highest version by API key, after `learn_versions`."""
        self._loop.add_reader(sock, self._on_readable)

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        client_id: str | None = "headrace",
        connect_timeout: float = 10.0,
        request_timeout: float = 30.0,
        max_response_bytes: int = 1 << 30,
        max_in_flight: int = 64,
    ) -> Client:
        """Open a connection; `ConnectionClosed` or `RequestTimedOut` when that fails."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(connect_timeout):
                infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                family, kind, protocol, _, address = infos[0]
                sock = socket.socket(family, kind, protocol)
                try:
                    sock.setblocking(False)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    await loop.sock_connect(sock, address)
                except BaseException:
                    sock.close()
                    raise
        except TimeoutError:
            raise RequestTimedOut(f"{host}:{port} did not accept within {connect_timeout:g} s") from None
        except OSError as error:
            raise ConnectionClosed(f"cannot connect to {host}:{port}: {error}") from error
        return cls(sock, client_id, request_timeout, max_response_bytes, max_in_flight)

    async def learn_versions(self) -> dict[int, tuple[int, int]]:
        """Ask which versions the server has."""
        answer = await self.request(
            ApiKey.API_VERSIONS, 3, {"client_software_name": "headrace", "client_software_version": "0"}
        )
        self.versions = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        return self.versions

    async def request(
        self, api_key: int, version: int, message: Mapping[str, Any] | object, timeout: float | None = None
    ) -> Any:
        """Send a control message (see `messages`) and return kio's dataclass of the response."""
        body = messages.encode(api_key, version, message, "request")
        answer = await self.send(api_key, version, [body], timeout)
        return messages.decode(api_key, version, answer, "response")

    def send(
        self,
        api_key: int,
        version: int,
        body: Sequence[bytes | bytearray | memoryview],
        timeout: float | None = None,
        answered: bool = True,
    ) -> asyncio.Future[memoryview]:
        """Send a request now; the future gives the body of the response. `answered=False` is for acks=0: the future is
        done at once, with nothing in it."""
        if self.closed:
            raise ConnectionClosed("the connection is closed")
        if len(self._waiting) >= self._max_in_flight:
            raise RequestTimedOut(f"{self._max_in_flight} requests are in flight already: wait for one of them")
        correlation_id = next(self._ids) & 0x7FFFFFFF
        header = request_header(api_key, version, correlation_id, self._client_id)
        size = len(header) + sum(len(part) for part in body)
        self._output.put(_SIZE.pack(size) + header, len(header) + 4)
        for part in body:
            if len(part):
                self._output.put(part, len(part))
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        if answered:
            seconds = self._timeout if timeout is None else timeout
            timer = self._loop.call_later(seconds, self._timed_out, correlation_id)
            self._waiting[correlation_id] = _Waiting(api_key, version, answer, timer)
        else:
            answer.set_result(memoryview(b""))
        try:
            self._output.flush()
        except OSError as error:
            self._lost(error)
        return answer

    def close(self) -> None:
        """Close; requests in flight fail with `ConnectionClosed`."""
        self._end(ConnectionClosed("closed by this side"))

    def memory_granted(self) -> None:
        """Nobody else reads into this connection's memory, so this only ends a wait of its own."""
        self._reader.starved = False

    def _on_readable(self) -> None:
        try:
            if not self._reader.receive():
                self._end(ConnectionClosed("closed by the server"))
                return
            while (framed := self._reader.next()) is not None:
                frame, taken = framed
                self._memory.give_back(taken)
                # What lies in the scratch buffer is copied: whoever asked may keep its answer.
                self._received(frame if taken else memoryview(bytearray(frame)))
            self._reader.park()
        except (OSError, MalformedRequest) as error:
            self._lost(error)

    def _received(self, frame: memoryview) -> None:
        waiting = self._waiting.pop(correlation_of(frame), None)
        if waiting is None:
            return  # the answer to a request that has timed out
        if waiting.timer is not None:
            waiting.timer.cancel()
        body = frame[parse_response_header(frame, waiting.api_key, waiting.version) :]
        if not waiting.answer.done():
            waiting.answer.set_result(body)

    def _timed_out(self, correlation_id: int) -> None:
        waiting = self._waiting.pop(correlation_id, None)
        if waiting is not None and not waiting.answer.done():
            waiting.answer.set_exception(RequestTimedOut(f"no answer to request {correlation_id} in time"))

    def _lost(self, error: Exception) -> None:
        self._end(ConnectionClosed(f"the connection broke: {error}"))

    def _end(self, reason: ConnectionClosed) -> None:
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._socket)
        self._output.close()
        self._reader.close()
        self._socket.close()
        for waiting in self._waiting.values():
            if waiting.timer is not None:
                waiting.timer.cancel()
            if not waiting.answer.done():
                waiting.answer.set_exception(reason)
                waiting.answer.exception()  # nobody may be awaiting it any more
        self._waiting.clear()
