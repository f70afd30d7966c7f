"""Which API keys and versions are served, by whom, and how a request becomes an answer.

A handler is a function in a module of its own (`k00_produce.py`), marked with `@handles`. Its first argument is the
service it belongs to, then comes the `Context` of the request, then the request:

    @handles(ApiKey.LIST_OFFSETS, versions=(1, 11))
    def list_offsets(broker: Broker, context: Context, request: Any) -> dict[str, Any]: ...

It gets kio's dataclass of the version that was sent and answers with one mapping for all versions (see `messages`).
With `raw=True` it gets the body as a memoryview it may keep and write to, and answers with bytes or a list of parts,
which may be ranges of files. With `borrows=True` it may write to the body but not keep it, so that none is copied. It
answers now (returns it; None sends nothing), or later: it returns `LATER` and calls `context.complete(...)` once, or is
a coroutine function. A `KafkaError` becomes the API's error response.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from headrace.errors import ErrorCode, KafkaError
from headrace.wire import messages
from headrace.wire.errors import MalformedRequest, UnsupportedVersion
from headrace.wire.metrics import WireMetrics
from headrace.wire.protocol import ApiKey
from headrace.wire.sending import Part

log = logging.getLogger(__name__)


class _Later:
    """The type of `LATER`."""

    def __repr__(self) -> str:
        return "LATER"


LATER: Final = _Later()
"""Returned by a handler that will call `context.complete` or `context.fail`."""

Body: TypeAlias = bytes | bytearray | list[Part] | None
"""A response without its header; None sends nothing at all (Produce with acks=0)."""

Response: TypeAlias = Body | Mapping[str, Any]
OnError: TypeAlias = Callable[["Context", Any, KafkaError], Mapping[str, Any]]
F = TypeVar("F", bound=Callable[..., Any])


class CloseConnection(Exception):
    """There is no answer to this request: the connection is closed with this line in the log, as Kafka does."""


@dataclass(frozen=True, slots=True)
class Handler:
    """What `@handles` says about a function."""

    api_key: ApiKey
    low: int
    high: int
    advertised_low: int
    call: Callable[..., Any]
    raw: bool
    parks: bool
    on_error: OnError | None
    doc: str
    borrows: bool = False


class Caller(Protocol):
    """The connection of a request, as those see it who answer: a socket's, or one of the simulation."""

    peer: tuple[Any, ...]
    principal: str
    listener_name: str
    client_software: tuple[str, str] | None
    metrics: WireMetrics

    def is_next(self, context: Context) -> bool: ...

    def complete(self, context: Context, response: Response) -> None: ...

    def fail(self, context: Context, error: BaseException) -> None: ...


class Context:
    """One request on its way: whose it is, and where its answer goes. Complete it once."""

    __slots__ = (
        "api_key",
        "body",
        "client_id",
        "connection",
        "correlation_id",
        "counted",
        "done",
        "handler",
        "received",
        "request_bytes",
        "started",
        "taken",
        "turn",
        "version",
    )

    def __init__(
        self,
        connection: Caller,
        api_key: int,
        version: int,
        correlation_id: int,
        client_id: str | None,
        received: float,
        started: float,
        request_bytes: int,
    ) -> None:
        self.connection = connection
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.received = received
        self.request_bytes = request_bytes
        self.started = started
        self.handler: Handler | None = None
        self.body: Body = None
        self.done = False
        self.taken = 0
        self.counted = False
        self.turn: asyncio.Future[None] | None = None
        """Somebody waits until everything before this request is answered."""

    async def in_turn(self) -> None:
        """Returns once every earlier request of the connection is answered: what is read then is not old when sent."""
        if not self.connection.is_next(self):
            self.turn = asyncio.get_running_loop().create_future()
            await self.turn

    def take_turn(self) -> None:
        """Everything before it is answered, or the connection has gone."""
        if self.turn is not None and not self.turn.done():
            self.turn.set_result(None)

    @property
    def principal(self) -> str:
        """Who sent it, as Kafka writes it: `User:name`."""
        return self.connection.principal

    @property
    def listener(self) -> str:
        """The name of the listener it came in by."""
        return self.connection.listener_name

    def complete(self, response: Response) -> None:
        """Answer. Calls after the first, or after the connection has gone, do nothing."""
        self.connection.complete(self, response)

    def fail(self, error: BaseException) -> None:
        """Answer with an error; anything but a `KafkaError` is logged and sent as UNKNOWN_SERVER_ERROR."""
        self.connection.fail(self, error)

    def __repr__(self) -> str:
        try:
            name = ApiKey(self.api_key).name
        except ValueError:
            name = str(self.api_key)
        return f"{name} v{self.version} (correlation id {self.correlation_id}) of {self.client_id or 'unnamed client'}"


def handles(
    api_key: ApiKey,
    versions: tuple[int, int],
    *,
    advertise_from: int | None = None,
    raw: bool = False,
    borrows: bool = False,
    parks: bool = False,
    on_error: OnError | None = None,
) -> Callable[[F], F]:
    """Mark a function as the handler of `api_key`, for `versions` from the first to the last.

    `advertise_from` lowers what ApiVersions says where clients need it. `parks` is for a coroutine that waits for other
    requests (a group's members): it is not counted in queued.max.requests. `on_error(context, request, error)` builds
    the response to a refused request where it has no error code of its own for all of it.
    """

    def mark(function: F) -> F:
        low, high = versions
        lowest = low if advertise_from is None else advertise_from
        doc = sys.modules[function.__module__].__doc__ or function.__doc__ or ""
        function.__handles__ = Handler(  # type: ignore[attr-defined]
            api_key, low, high, lowest, function, raw, parks, on_error, doc, borrows
        )
        return function

    return mark


@cache
def handlers_in(package: str) -> tuple[Handler, ...]:
    """Every handler in the modules of a package."""
    found = []
    root = import_module(package)
    for info in iter_modules(root.__path__):
        module = import_module(f"{package}.{info.name}")
        for value in vars(module).values():
            handler = getattr(value, "__handles__", None)
            if isinstance(handler, Handler) and handler.call.__module__ == module.__name__:
                found.append(handler)
    return tuple(found)


class Api:
    """The table of handlers of one listener, each bound to the service it belongs to."""

    def __init__(
        self,
        service: object = None,
        handlers: Iterable[Handler] = (),
        features: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """`features` gives the feature fields of an ApiVersions response (supported_features, ...)."""
        from headrace.wire.handlers import k18_api_versions

        self.features = features
        self.table: dict[int, Handler] = {}
        self.register(self, [k18_api_versions.api_versions.__handles__])  # type: ignore[attr-defined]
        self.register(service, handlers)

    @classmethod
    def of(cls, service: object, package: str, features: Callable[[], Mapping[str, Any]] = dict) -> Api:
        """The handlers of a package such as `headrace.broker.handlers`."""
        return cls(service, handlers_in(package), features)

    def register(self, service: object, handlers: Iterable[Handler]) -> None:
        """Add handlers; a second one for the same key is a mistake."""
        for handler in handlers:
            if handler.api_key in self.table:
                raise ValueError(f"{handler.api_key.name} has two handlers")
            bound = partial(handler.call, service)
            self.table[int(handler.api_key)] = replace(handler, call=bound)

    def advertised(self) -> list[dict[str, int]]:
        """The key list of ApiVersions."""
        return [
            {"api_key": key, "min_version": handler.advertised_low, "max_version": handler.high}
            for key, handler in sorted(self.table.items())
        ]

    def dispatch(
        self, context: Context, body: memoryview, *, borrowed: bool = False
    ) -> Response | _Later | Awaitable[Response]:
        """Start a request. Raises `CloseConnection` when it cannot be answered.

        A `borrowed` body is good for the time of this call; a handler that may keep it gets a copy.
        """
        handler = self.table.get(context.api_key)
        if handler is None:
            raise CloseConnection(f"unknown API key {context.api_key} (version {context.version})")
        context.handler = handler
        request: Any = None
        try:
            if not handler.low <= context.version <= handler.high:
                return self._other_version(context, handler)
            if borrowed and not handler.borrows:
                body = memoryview(bytearray(body))
            request = body if handler.raw else messages.decode(context.api_key, context.version, body)
            answer: Response | _Later | Awaitable[Response] = handler.call(context, request)
            return answer
        except CloseConnection:
            raise
        except Exception as error:
            return self.refuse(context, error, request)

    def finish(self, context: Context, response: Response) -> Body:
        """The bytes of an answer: a mapping is encoded in the request's version."""
        # Asked in this order because the hot path answers with bytes, and asking for a Mapping is slow.
        if response is None or isinstance(response, bytearray | bytes | list):
            return response
        try:
            return messages.encode(context.api_key, context.version, response)
        except Exception as error:
            return self.refuse(context, error)

    def refuse(self, context: Context, error: BaseException, request: Any = None) -> Body:
        """The answer that says `error`; `CloseConnection` when this API has no place for it."""
        if not isinstance(error, KafkaError):
            log.error("%r failed", context, exc_info=error)
            error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the server failed; its log says how")
        context.connection.metrics.of(context.api_key).errors += 1
        handler = context.handler
        if handler is not None and handler.on_error is not None and request is not None:
            try:
                built = handler.on_error(context, request, error)
                return messages.encode(context.api_key, context.version, built)
            except Exception as again:
                log.error("%r: the error response failed too", context, exc_info=again)
        body = messages.error_response(context.api_key, context.version, error.code, error.message)
        if body is None:
            raise CloseConnection(f"{context!r}: {error}")
        if isinstance(error, MalformedRequest | UnsupportedVersion):
            log.warning("%r: %s", context, error)
        return body

    def _other_version(self, context: Context, handler: Handler) -> Response:
        if context.api_key == ApiKey.API_VERSIONS:
            # The client does not know our versions yet, so it gets the oldest form, from which it can learn them.
            values = {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": self.advertised()}
            return messages.encode(ApiKey.API_VERSIONS, 0, values)
        raise UnsupportedVersion(f"versions {handler.low} to {handler.high} are served, not {context.version}")
