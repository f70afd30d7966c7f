"""The Kafka wire listener: accepts connections, bounds them, and stops gracefully.

One event loop drives raw non-blocking sockets; there are no streams, and no task for a request that is answered at
once. Kafka's acceptor, processors and request queue become: an accepting callback, a readiness callback for each
connection (`connection`), and a count of the requests being handled, above which nobody is read from.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from headrace.cluster.settings import Settings
from headrace.wire.api import Api
from headrace.wire.connection import Connection
from headrace.wire.frame_memory import FrameMemory
from headrace.wire.frames import SCRATCH_BYTES
from headrace.wire.metrics import WireMetrics

log = logging.getLogger(__name__)

ACCEPTS_PER_TURN = 64
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """A listener's limits. The names are Kafka's with underscores; the last six have none there."""

    max_connections: int = 2147483647
    max_connections_per_ip: int = 2147483647
    socket_request_max_bytes: int = 104857600
    connections_max_idle_ms: int = 600000
    queued_max_requests: int = 500
    queued_max_request_bytes: int = 268435456
    """Kafka has no bound by default; a frame may still pass it when it is the only one that grows."""
    socket_send_buffer_bytes: int = -1
    socket_receive_buffer_bytes: int = -1
    """Kafka says 100 KiB; -1 leaves both to the kernel, which sizes them to the connection."""
    socket_listen_backlog_size: int = 512
    max_in_flight: int = 8
    """Requests of one connection that are handled at a time."""
    max_output_bytes: int = 1048576
    """Unsent bytes of one connection, those in files included, above which no more of its requests are started."""
    stalled_frame_ms: int = 10000
    """How long a half-sent frame may stand still while others wait for its memory."""
    read_ahead_threads: int = 4
    accept_retry_ms: int = 500
    """The pause after the process ran out of file descriptors."""
    longest_turn_ms: float = 5.0
    """How long an answer waits for others: uvloop's turn does not end while 1,024 sockets have something to read."""

    @classmethod
    def of(cls, settings: Settings) -> ListenerConfig:
        """What a process was started with."""
        return cls(
            max_connections=settings["max.connections"],
            max_connections_per_ip=settings["max.connections.per.ip"],
            socket_request_max_bytes=settings["socket.request.max.bytes"],
            connections_max_idle_ms=settings["connections.max.idle.ms"],
            queued_max_requests=settings["queued.max.requests"],
            socket_send_buffer_bytes=settings["socket.send.buffer.bytes"],
            socket_receive_buffer_bytes=settings["socket.receive.buffer.bytes"],
            socket_listen_backlog_size=settings["socket.listen.backlog.size"],
        )


class Listener:
    """One listening socket and its connections."""

    def __init__(
        self,
        api: Api,
        config: ListenerConfig | None = None,
        metrics: WireMetrics | None = None,
        name: str = "PLAINTEXT",
    ) -> None:
        self.api = api
        self.config = config or ListenerConfig()
        self.metrics = metrics or WireMetrics()
        self.name = name
        self.memory = FrameMemory(self.config.queued_max_request_bytes)
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.executor = ThreadPoolExecutor(self.config.read_ahead_threads, thread_name_prefix="read-ahead")
        self.handling = 0
        """Requests that coroutines are working on: what queued.max.requests bounds."""
        self.tasks: set[asyncio.Future[Any]] = set()
        self.connections: set[Connection] = set()
        self.loop: asyncio.AbstractEventLoop
        self.address: tuple[str, int] = ("", 0)
        self._by_ip: Counter[str] = Counter()
        self._socket: socket.socket | None = None
        self._accepting = self._stopping = False
        self._waiting: dict[Connection, None] = {}
        self._to_flush: set[Connection] = set()
        self.flush_by = math.inf
        """When what is answered has to be sent, whether or not the turn has ended."""
        self._sweep: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the address, with the port the kernel chose for port 0."""
        address = await self.bind(host, port)
        self.listen()
        return address

    async def bind(self, host: str, port: int) -> tuple[str, int]:
        """Take the port; nobody can connect to it before `listen`."""
        self.loop = asyncio.get_running_loop()
        infos = await self.loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = infos[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._size_buffers(sock)
            sock.setblocking(False)
            sock.bind(address)
        except OSError as error:
            sock.close()
            raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from None
        self._socket = sock
        self.address = sock.getsockname()[:2]
        return self.address

    def listen(self) -> None:
        """Let clients connect."""
        assert self._socket is not None, "bind first"
        self._socket.listen(self.config.socket_listen_backlog_size)
        self._accept_more()
        self._schedule_sweep()

    async def stop(self, timeout: float = 10.0) -> None:
        """Accept nothing more, answer what is in flight for at most `timeout` seconds, close everything."""
        self._stopping = True
        self._accept_no_more()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        for timer in (self._sweep, self._retry):
            if timer is not None:
                timer.cancel()
        deadline = self.loop.time() + timeout
        for connection in list(self.connections):
            connection.stop()
        # Polled, since only a stop asks: an event would cost every request.
        while self.loop.time() < deadline and any(not each.idle for each in self.connections):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        for connection in list(self.connections):
            connection.close("the listener stops")
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=max(0.1, deadline - self.loop.time()))
        self.executor.shutdown(wait=False, cancel_futures=True)

    # --- accepting -------------------------------------------------------------------------------------------------

    def _accept_more(self) -> None:
        if self._socket is not None and not self._accepting and not self._stopping:
            self._accepting = True
            self.loop.add_reader(self._socket, self._on_acceptable)

    def _accept_no_more(self) -> None:
        if self._socket is not None and self._accepting:
            self._accepting = False
            self.loop.remove_reader(self._socket)

    def _on_acceptable(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if len(self.connections) >= self.config.max_connections:
                # As Kafka does: the next one waits in the backlog until another leaves.
                self._accept_no_more()
                return
            assert self._socket is not None
            try:
                sock, peer = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS:
                    raise
                log.error("cannot accept a connection: %s; trying again in %d ms", error, self.config.accept_retry_ms)
                self._accept_no_more()
                self._retry = self.loop.call_later(self.config.accept_retry_ms / 1000, self._accept_more)
                return
            self._accepted(sock, peer)

    def _accepted(self, sock: socket.socket, peer: Any) -> None:
        ip = peer[0] if isinstance(peer, tuple) else str(peer)
        if self._by_ip[ip] >= self.config.max_connections_per_ip:
            self.metrics.connections_refused += 1
            log.warning("refusing %s: max.connections.per.ip=%d reached", ip, self.config.max_connections_per_ip)
            sock.close()
            return
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        except OSError:
            sock.close()
            return
        self._by_ip[ip] += 1
        connection = Connection(self, sock, peer, self.api)
        connection.still_since = self.loop.time()
        self.connections.add(connection)
        self.metrics.connections += 1
        self.metrics.connections_opened += 1
        connection.start()

    def _size_buffers(self, sock: socket.socket) -> None:
        """Accepted sockets inherit these; the receive buffer must be set before listening."""
        if self.config.socket_send_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.config.socket_send_buffer_bytes)
        if self.config.socket_receive_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.config.socket_receive_buffer_bytes)

    def closed(self, connection: Connection) -> None:
        """A connection has closed itself."""
        self.connections.discard(connection)
        self._waiting.pop(connection, None)
        self._to_flush.discard(connection)
        self.metrics.connections -= 1
        self.metrics.requests_waiting = len(self._waiting)
        ip = connection.peer[0]
        self._by_ip[ip] -= 1
        if not self._by_ip[ip]:
            del self._by_ip[ip]
        self._accept_more()

    # --- turns -----------------------------------------------------------------------------------------------------

    def flush_soon(self, connection: Connection, since: float) -> None:
        """Flush `connection` at the end of this turn: several answers of one turn go out in one send.

        Or sooner, see `flush_by`; `since` is about now.
        """
        if not self._to_flush:
            self.loop.call_soon(self.flush_all)
            self.flush_by = since + self.config.longest_turn_ms / 1000
        self._to_flush.add(connection)

    def flush_all(self) -> None:
        """Send what is answered on all connections."""
        self.flush_by = math.inf
        connections, self._to_flush = self._to_flush, set()
        for connection in connections:
            connection.flush()

    def wait_for_turn(self, connection: Connection) -> None:
        """Have `connection` resumed when fewer than queued.max.requests are handled; first come, first served."""
        self._waiting[connection] = None
        self.metrics.requests_waiting = len(self._waiting)

    def request_handled(self) -> None:
        """A coroutine has answered."""
        self.handling -= 1
        if self._waiting and self.handling < self.config.queued_max_requests:
            self.loop.call_soon(self._next_turns)

    def _next_turns(self) -> None:
        while self._waiting and self.handling < self.config.queued_max_requests:
            connection = next(iter(self._waiting))
            del self._waiting[connection]
            connection.resume()
        self.metrics.requests_waiting = len(self._waiting)

    # --- idle connections ------------------------------------------------------------------------------------------

    def _schedule_sweep(self) -> None:
        interval = min(self.config.connections_max_idle_ms, self.config.stalled_frame_ms, 10000) / 2000
        self._sweep = self.loop.call_later(max(interval, 0.01), self._sweep_once)

    def _sweep_once(self) -> None:
        now = self.loop.time()
        for connection in list(self.connections):
            moved = connection.bytes_moved()
            if moved != connection.moved or connection.handling or connection.starved:
                connection.moved = moved
                connection.still_since = now
                continue
            still_ms = (now - connection.still_since) * 1000
            if still_ms >= self.config.connections_max_idle_ms:
                self.metrics.connections_expired += 1
                connection.close("idle for connections.max.idle.ms")
            elif self.memory.short and connection.mid_frame and still_ms >= self.config.stalled_frame_ms:
                self.metrics.connections_dropped += 1
                log.warning("closing the connection of %s: its frame stands still", connection.peer_name)
                connection.close("a frame stands still while others wait for memory")
        self._schedule_sweep()
