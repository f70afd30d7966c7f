"""A live listener with a few handlers that do as their request says."""

from __future__ import annotations

import asyncio
import hashlib
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.wire.api import LATER, Api, Context, handles
from headrace.wire.client import Client
from headrace.wire.listener import Listener, ListenerConfig
from headrace.wire.protocol import ApiKey
from headrace.wire.sending import Part

sys.path.insert(0, str(Path(__file__).parent))


class Range:
    """A range of an open file that counts its releases."""

    def __init__(self, descriptor: int, position: int, length: int) -> None:
        self.descriptor, self.position, self.length, self.released = descriptor, position, length, 0

    def fileno(self) -> int:
        return self.descriptor

    def release(self) -> None:
        self.released += 1


class Service:
    """What the test's handlers work on."""

    def __init__(self) -> None:
        self.parked: list[Context] = []
        self.answers: list[Part] = []
        self.started: list[int] = []
        self.gates: list[asyncio.Event] = []
        self.running = 0
        self.most_running = 0


@handles(ApiKey.PRODUCE, versions=(3, 13), advertise_from=0, raw=True)
def echo(service: Service, context: Context, body: memoryview) -> Any:
    """Body "now…" is echoed, "later…" is parked for the test to complete, "none…" gets no answer."""
    service.started.append(context.correlation_id)
    if body[:5] == b"later":
        service.parked.append(context)
        return LATER
    if body[:4] == b"none":
        return None
    if body[:4] == b"boom":
        raise RuntimeError("a mistake in a handler")
    return [body]


@handles(ApiKey.FETCH, versions=(4, 18), raw=True)
def ranges(service: Service, context: Context, body: memoryview) -> list[Part]:
    """The parts that the test has laid out."""
    return list(service.answers)


@handles(ApiKey.LIST_OFFSETS, versions=(1, 11), raw=True, borrows=True)
def stamped(service: Service, context: Context, body: memoryview) -> bytes:
    """Writes to the memory it is lent, and says what it read there."""
    found = hashlib.sha256(body).digest()
    body[:] = bytes(len(body))
    return found


@handles(ApiKey.INIT_PRODUCER_ID, versions=(0, 4))
async def gated(service: Service, context: Context, request: Any) -> dict[str, Any]:
    """A coroutine that waits until the test opens its gate."""
    gate = asyncio.Event()
    service.gates.append(gate)
    service.running += 1
    service.most_running = max(service.most_running, service.running)
    await gate.wait()
    service.running -= 1
    if request.transactional_id == "refused":
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return {"error_code": 0, "producer_id": 7, "producer_epoch": 1}


@handles(
    ApiKey.METADATA,
    versions=(0, 12),
    on_error=lambda context, request, error: {
        "brokers": [],
        "topics": [{"error_code": error.code, "name": "all", "topic_id": None, "partitions": []}],
    },
)
def metadata(service: Service, context: Context, request: Any) -> dict[str, Any]:
    raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE)


@handles(ApiKey.OFFSET_COMMIT, versions=(2, 7), raw=True, parks=True)
async def in_turn(service: Service, context: Context, body: memoryview) -> list[Part]:
    """How many requests were completed by the test when its turn came."""
    service.started.append(context.correlation_id)
    await context.in_turn()
    return [b"%d" % sum(each.done for each in service.parked)]


HANDLERS = [each.__handles__ for each in (echo, ranges, stamped, gated, metadata, in_turn)]  # type: ignore[attr-defined]


def frame(body: bytes, api_key: int = 0, version: int = 3, correlation_id: int = 1) -> bytes:
    """A whole request with a client id of "t"."""
    whole = struct.pack(">hhih", api_key, version, correlation_id, 1) + b"t" + body
    return struct.pack(">i", len(whole)) + whole


async def until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    """Wait for a condition, with a deadline."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


class Live:
    """A listener, its service, and connections to it."""

    def __init__(self, config: ListenerConfig) -> None:
        self.service = Service()
        self.listener = Listener(Api(self.service, HANDLERS), config)
        self._open: list[Any] = []

    async def client(self, **options: Any) -> Client:
        client = await Client.connect(*self.listener.address, **options)
        self._open.append(client)
        return client

    async def raw(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.listener.address)
        self._open.append(writer)
        return reader, writer

    async def close(self) -> None:
        for each in self._open:
            each.close()
        await self.listener.stop(1.0)


Start = Callable[..., Awaitable[Live]]


@pytest.fixture
async def live() -> AsyncIterator[Start]:
    """Start a listener with other limits than the defaults."""
    started: list[Live] = []

    async def start(**limits: Any) -> Live:
        one = Live(replace(ListenerConfig(), **limits))
        await one.listener.start("127.0.0.1", 0)
        started.append(one)
        return one

    yield start
    for one in started:
        await one.close()


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """One response, without its size."""
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)
