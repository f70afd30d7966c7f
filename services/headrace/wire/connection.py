"""One client's connection: read frames, start requests, send the answers in the order of the requests.

Up to `max_in_flight` requests of a connection are handled at a time; a handler that answers at once never leaves the
readiness callback, and the answers of one read go out in one send, after the other connections that had something to
read were read (`Listener.flush_soon`): clients that wait for each answer are then woken once for many of them. Reading
stops, so that the client is pushed back, while as many requests wait, while the client does not take its answers, while
the process handles all the requests it may, and while frames take all the memory they may.

`api` is the table a request is dispatched with: a SASL stage is a connection that starts with a table of the few APIs
allowed before authentication and gets the whole one afterwards, along with its `principal`. A TLS stage gives another
`recv_into` to the `FrameReader` and another `Output`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headrace.errors import KafkaError
from headrace.wire.api import LATER, Api, Body, CloseConnection, Context, Response
from headrace.wire.errors import MalformedRequest
from headrace.wire.frames import FrameReader
from headrace.wire.protocol import API_VERSIONS, FIRST_FLEXIBLE, parse_request_header
from headrace.wire.sending import MEMORY, Output, release_all

if TYPE_CHECKING:
    from headrace.wire.listener import Listener

log = logging.getLogger(__name__)

ANONYMOUS = "User:ANONYMOUS"
RECEIVES_PER_TURN = 4
"""How many times one connection receives before the others have their turn."""

JOIN_BELOW = 4096
"""A body smaller than this is joined with its header: cheaper than gathering two parts."""

_ANSWERS = (bytes, bytearray, list, dict)
_HEADER = struct.Struct(">ii")
_FLEXIBLE_HEADER = struct.Struct(">iib")


class Connection:
    """The state machine of one socket. The listener makes it and is told when it closes."""

    __slots__ = (
        "_blocked",
        "_in_event",
        "_listener",
        "_loop",
        "_muted",
        "_output",
        "_pipeline",
        "_reader",
        "_reading",
        "_socket",
        "_stopping",
        "api",
        "client_software",
        "closed",
        "listener_name",
        "metrics",
        "moved",
        "on_close",
        "peer",
        "principal",
        "state",
        "still_since",
    )

    def __init__(self, listener: Listener, sock: socket.socket, peer: tuple[Any, ...], api: Api) -> None:
        self._listener = listener
        self._loop = listener.loop
        self._socket = sock
        self.peer = peer
        self.api = api
        self.listener_name = listener.name
        self.metrics = listener.metrics
        self.principal = ANONYMOUS
        self.client_software: tuple[str, str] | None = None
        self.state: dict[str, Any] = {}
        """What a service keeps for as long as the connection lasts."""
        self.on_close: list[Callable[[], None]] = []
        self.closed = False
        self.moved = -1
        self.still_since = 0.0
        self._pipeline: deque[Context] = deque()
        self._reader = FrameReader(
            sock.recv_into, listener.scratch, listener.config.socket_request_max_bytes, listener.memory, self
        )
        self._output = Output(sock, self._loop, listener.executor, self._drained, self._lost)
        self._reading = self._blocked = self._stopping = self._in_event = False
        self._muted: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to read."""
        self._resume_reading()

    # --- reading ---------------------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        received = time.monotonic()
        self._in_event = True
        reader = self._reader
        try:
            for _ in range(RECEIVES_PER_TURN):
                if not reader.receive():
                    if self._output.pending:
                        self._output.flush()  # who asks and closes its half at once is still answered
                    self.close("closed by the client" if not reader.mid_frame else "closed inside a frame")
                    return
                if not self._advance(received) or not reader.more:
                    break
                if self._output.pending:
                    # There is more, perhaps the beginning of a large frame: what is answered does not wait for it.
                    self._output.flush()
            if not reader.drained:
                reader.park()
            if self._blocked:
                self._flush()
            elif self._output.pending:
                self._listener.flush_soon(self, received)
        except Exception as error:
            self._lost(error)
        finally:
            self._in_event = False
            now = time.monotonic()
            self.metrics.busy_seconds += now - received
            if now > self._listener.flush_by:
                self._listener.flush_all()

    def _advance(self, received: float) -> bool:
        """Start the requests that are complete; False when reading has to stop for now."""
        reader, listener, started = self._reader, self._listener, received
        config = listener.config
        while (
            listener.handling < config.queued_max_requests
            and len(self._pipeline) < config.max_in_flight
            and self._output.pending < config.max_output_bytes
            and self._muted is None
            and not self._stopping
        ):
            framed = reader.next()
            if framed is None:
                if reader.starved:
                    self._stop_reading()
                    return False
                return True
            self._start(framed[0], framed[1], received, started)
            if self.closed:
                return False
            if reader.drained:
                return True
            started = time.monotonic()
        if listener.handling >= config.queued_max_requests:
            listener.wait_for_turn(self)
        self._blocked = True
        self._stop_reading()
        return False

    def _start(self, frame: memoryview, taken: int, received: float, started: float) -> None:
        try:
            api_key, version, correlation_id, client_id, body = parse_request_header(frame)
        except MalformedRequest:
            self._listener.memory.give_back(taken)
            raise
        context = Context(self, api_key, version, correlation_id, client_id, received, started, len(frame))
        try:
            answer = self.api.dispatch(context, frame[body:], borrowed=not taken)
        except CloseConnection:
            self._listener.memory.give_back(taken)
            raise
        if answer is LATER:
            if not context.done:
                self._pipeline.append(context)
        elif answer is None or isinstance(answer, _ANSWERS):
            context.done = True
            finished = self.api.finish(context, answer)
            if self._pipeline:
                context.body = finished
                self._pipeline.append(context)
            else:
                self._send(context, finished)
        else:
            self._pipeline.append(context)
            context.taken = taken
            self._await(context, answer)  # type: ignore[arg-type]
            return
        if taken:
            self._listener.memory.give_back(taken)

    def _await(self, context: Context, answer: Awaitable[Response]) -> None:
        handler = context.handler
        if handler is None or not handler.parks:
            context.counted = True
            self._listener.handling += 1
        future = asyncio.ensure_future(answer)
        self._listener.tasks.add(future)
        future.add_done_callback(lambda done: self._answered(context, done))

    def _answered(self, context: Context, future: asyncio.Future[Response]) -> None:
        self._listener.tasks.discard(future)
        if context.counted:
            self._listener.request_handled()
        if context.taken:
            self._listener.memory.give_back(context.taken)
        if future.cancelled():
            self.fail(context, ConnectionAbortedError("cancelled"))
        elif (error := future.exception()) is not None:
            self.fail(context, error)
        else:
            self.complete(context, future.result())

    def is_next(self, context: Context) -> bool:
        """Whether no earlier request is still to be answered."""
        return self.closed or not self._pipeline or self._pipeline[0] is context

    # --- answering -------------------------------------------------------------------------------------------------

    def complete(self, context: Context, response: Response) -> None:
        """See `Context.complete`."""
        if context.done or self.closed:
            context.done = True
            release_all(response if isinstance(response, list) else None)
            return
        if not isinstance(response, bytearray):
            try:
                response = self.api.finish(context, response)
            except CloseConnection as error:
                self._lost(error)
                return
        self._settle(context, response)

    def fail(self, context: Context, error: BaseException) -> None:
        """See `Context.fail`."""
        if context.done or self.closed:
            if not self.closed or not isinstance(error, KafkaError | ConnectionAbortedError):
                log.error("%r failed after its answer", context, exc_info=error)
            context.done = True
            return
        try:
            body = self.api.refuse(context, error)
        except CloseConnection as close:
            self._lost(close)
            return
        self._settle(context, body)

    def _settle(self, context: Context, body: Body) -> None:
        context.done = True
        pipeline = self._pipeline
        if not pipeline:
            # Completed inside the handler's own call, before it returned LATER.
            self._send(context, body)
        elif pipeline[0] is context:
            pipeline.popleft()
            self._send(context, body)
            while pipeline and pipeline[0].done:
                following = pipeline.popleft()
                body, following.body = following.body, None
                self._send(following, body)
            if pipeline:
                pipeline[0].take_turn()
        else:
            context.body = body
            if context not in pipeline:
                pipeline.append(context)
        if not self._in_event:
            self._listener.flush_soon(self, time.monotonic())

    def _send(self, context: Context, body: Body) -> None:
        received = context.received
        size = 0 if body is None else self._queue(context, body)
        self.metrics.answered(
            context.api_key, context.started - received, time.monotonic() - received, context.request_bytes, size
        )

    def _queue(self, context: Context, body: bytes | bytearray | list[Any]) -> int:
        put = self._output.put
        api_key = context.api_key
        flexible = context.version >= FIRST_FLEXIBLE.get(api_key, 0) and api_key != API_VERSIONS
        if type(body) is bytearray and (size := len(body)) < JOIN_BELOW:
            # As below, for what is small and in one piece: most answers.
            if flexible:
                put(_FLEXIBLE_HEADER.pack(size + 5, context.correlation_id, 0) + body, size + 9)
                return size + 9
            put(_HEADER.pack(size + 4, context.correlation_id) + body, size + 8)
            return size + 8
        parts = body if isinstance(body, list) else [body]
        size = 4
        for part in parts:
            size += len(part) if isinstance(part, MEMORY) else part.length
        if flexible:
            size += 1
            header = _FLEXIBLE_HEADER.pack(size, context.correlation_id, 0)
        else:
            header = _HEADER.pack(size, context.correlation_id)
        first = parts[0] if parts else b""
        if isinstance(first, MEMORY) and len(first) < JOIN_BELOW:
            header += first
            parts = parts[1:]
        put(header, len(header))
        for part in parts:
            if isinstance(part, MEMORY):
                if len(part):
                    put(part, len(part))
            else:
                put(part, part.length)
        return size + 4

    def flush(self) -> None:
        """Send what is answered; the listener calls it once a turn for answers that came late."""
        if self.closed:
            return
        try:
            self._flush()
        except Exception as error:
            self._lost(error)

    def _flush(self) -> None:
        if self._output.pending and not self._output.flush():
            return
        if self._blocked and not self.closed:
            self.resume()

    def _drained(self) -> None:
        if self._blocked and not self.closed:
            self.resume()

    # --- flow ------------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Go on with what is buffered, then read again, unless something still holds the connection."""
        if self.closed or self._reader.starved:
            return
        received = time.monotonic()
        nested, self._in_event = self._in_event, True
        try:
            self._blocked = False
            if self._advance(received):
                self._resume_reading()
            self._reader.park()
            if self._output.pending and self._output.flush() and self._blocked:
                self._loop.call_soon(self.resume)
        except Exception as error:
            self._lost(error)
        finally:
            self._in_event = nested

    def memory_granted(self) -> None:
        """There is room for the frame being read (see `FrameMemory`)."""
        self._reader.starved = False
        self._loop.call_soon(self.resume)

    def mute(self, seconds: float) -> None:
        """Start no more requests for this long (a quota was exceeded); answers go out all the same."""
        if self._muted is not None:
            self._muted.cancel()
        self._muted = self._loop.call_later(seconds, self._unmute)

    def _unmute(self) -> None:
        self._muted = None
        if not self.closed:
            self.resume()

    def _resume_reading(self) -> None:
        if not self._reading and not self.closed:
            self._reading = True
            self._loop.add_reader(self._socket, self._on_readable)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._socket)

    # --- the end ---------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no request is handled and no answer is waiting to be sent."""
        return not self._pipeline and not self._output.pending

    @property
    def handling(self) -> bool:
        """Whether a request is being handled."""
        return bool(self._pipeline)

    @property
    def starved(self) -> bool:
        """Whether its frame waits for memory: it stands still because of us."""
        return self._reader.starved

    @property
    def mid_frame(self) -> bool:
        """Whether a frame has begun to come and is not complete."""
        return self._reader.mid_frame

    def bytes_moved(self) -> int:
        """Bytes in and out so far."""
        return self._reader.bytes_in + self._output.bytes_out

    def stop(self) -> None:
        """Start no more requests; what is in flight is still answered."""
        self._stopping = True
        self._stop_reading()

    def _lost(self, error: Exception) -> None:
        if self.closed:
            return
        if isinstance(error, CloseConnection | MalformedRequest):
            self.metrics.connections_dropped += 1
            log.warning("closing the connection of %s: %s", self.peer_name, error)
            with suppress(OSError):  # what was asked before is answered
                self._output.flush()
        elif not isinstance(error, OSError):
            log.error("closing the connection of %s after a mistake of our own", self.peer_name, exc_info=error)
        elif not isinstance(error, ConnectionError):
            log.warning("lost the connection of %s: %s", self.peer_name, error)
        self.close(str(error))

    @property
    def peer_name(self) -> str:
        return f"{self.peer[0]}:{self.peer[1]}" if len(self.peer) > 1 else str(self.peer)

    def close(self, reason: str) -> None:
        """Close the socket and drop what is in flight; handlers that still run go on, their answers go nowhere."""
        if self.closed:
            return
        self.closed = True
        log.debug("connection of %s: %s", self.peer_name, reason)
        if self._muted is not None:
            self._muted.cancel()
        self._stop_reading()
        self._output.close()
        self._reader.close()
        for context in self._pipeline:
            release_all(context.body if isinstance(context.body, list) else None)
            context.take_turn()
        self._pipeline.clear()
        self._socket.close()
        self._listener.closed(self)
        for callback in self.on_close:
            callback()
