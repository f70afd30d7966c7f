"""`headrace produce`: records from standard input or a file, a line each or a JSON object each."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.cli import session
from headrace.client import BufferFull, KafkaError, Producer, RecordMetadata
from headrace.config import InvalidConfig


@dataclass(slots=True)
class Wanted:
    """What the command line asked for."""

    topic: str
    file: Path | None = None
    key: str | None = None
    key_separator: str | None = None
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    partition: int | None = None
    json: bool = False
    null: bool = False
    rate: float = 0.0
    verbose: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    bootstrap: str | None = None


@dataclass(slots=True)
class Outgoing:
    """One record, as read from the input."""

    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)
    partition: int | None = None
    timestamp: int | None = None


def run(wanted: Wanted) -> None:
    """Sends everything there is to read; ends with 1 when a record failed."""
    session.run(_produce(wanted))


def parse_line(line: bytes, wanted: Wanted) -> Outgoing:
    """The record a line of the input stands for.

    >>> parse_line(b"k:v", Wanted("orders", key_separator=":"))
    Outgoing(value=b'v', key=b'k', headers=[], partition=None, timestamp=None)
    """
    if wanted.json:
        return _parse_json(line, wanted)
    key = wanted.key.encode() if wanted.key is not None else None
    value: bytes | None = line
    if wanted.key_separator:
        first, found, rest = line.partition(wanted.key_separator.encode())
        if found:
            key, value = first, rest
    if wanted.null and not value:
        value = None
    return Outgoing(value, key, list(wanted.headers), wanted.partition)


def _parse_json(line: bytes, wanted: Wanted) -> Outgoing:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise InvalidConfig(f"a line is not JSON ({error}): {line[:80].decode(errors='replace')}") from None
    if not isinstance(found, dict) or "value" not in found:
        raise InvalidConfig(
            'each line must be an object with "value", and maybe "key", "headers", "partition" and "timestamp"'
        )
    headers: list[tuple[str, bytes | None]] = [(n, _bytes(v)) for n, v in (found.get("headers") or {}).items()]
    key = _bytes(found.get("key"))
    if key is None and wanted.key is not None:
        key = wanted.key.encode()
    return Outgoing(
        _bytes(found["value"]), key, [*wanted.headers, *headers], found.get("partition", wanted.partition),
        found.get("timestamp"),
    )  # fmt: skip


def _bytes(value: Any) -> bytes | None:
    """What `headrace consume --json` printed, as the bytes it was; other values as compact JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and list(value) == ["hex"]:
        return bytes.fromhex(value["hex"])
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


async def lines(file: Path | None) -> AsyncIterator[bytes]:
    """Lines without their ends, as soon as they are there, without holding up the loop."""
    descriptor = sys.stdin.fileno() if file is None else os.open(file, os.O_RDONLY)
    try:
        rest = b""
        while chunk := await asyncio.to_thread(os.read, descriptor, 1 << 16):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                yield line.removesuffix(b"\r")
        if rest:
            yield rest
    finally:
        if file is not None:
            os.close(descriptor)


async def _produce(wanted: Wanted) -> None:
    failed: list[BaseException] = []
    sent = 0

    def done(future: asyncio.Future[RecordMetadata]) -> None:
        nonlocal sent
        error = None if future.cancelled() else future.exception()
        if error is not None:
            failed.append(error)
            return
        sent += 1
        if wanted.verbose:
            at = future.result()
            print(f"{at.topic} {at.partition} {at.offset}", flush=True)

    try:
        producer = Producer(**session.client_settings(wanted.bootstrap), **wanted.settings)
    except InvalidConfig as error:
        session.fail(error.message, session.USAGE)
    async with producer:
        await producer.partitions_for(wanted.topic)
        loop = asyncio.get_running_loop()
        began, count = loop.time(), 0
        async for line in lines(wanted.file):
            record = parse_line(line, wanted)
            (await _send(producer, wanted.topic, record)).add_done_callback(done)
            count += 1
            if wanted.rate and (ahead := began + count / wanted.rate - loop.time()) > 0:
                await asyncio.sleep(ahead)
            if failed:
                break
        await producer.flush()
    await asyncio.sleep(0)
    if failed:
        raise failed[0] if isinstance(failed[0], KafkaError) else InvalidConfig(str(failed[0]))
    if sys.stderr.isatty():
        with suppress(OSError):
            print(f"produced {sent:,} record{'s' * (sent != 1)} to {wanted.topic}", file=sys.stderr)


async def _send(producer: Producer, topic: str, record: Outgoing) -> asyncio.Future[RecordMetadata]:
    while True:
        try:
            return producer.send_nowait(
                topic,
                record.value,
                key=record.key,
                headers=record.headers,
                partition=record.partition,
                timestamp=record.timestamp,
            )
        except BufferFull as full:
            await producer.room(full)
