"""How a Headrace process runs: its loop, its log, its signals, and what it says when it cannot start."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NoReturn

from headrace.broker.server import BrokerService
from headrace.broker.stats import IdleSelector
from headrace.cluster.configs import Settings, load
from headrace.controller.server import ControllerService
from headrace.errors import KafkaError
from headrace.metadata.server import MetadataService
from headrace.registry.etcd import EtcdRegistry

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"

Service = Callable[[Settings, IdleSelector], AbstractAsyncContextManager[asyncio.Future[None]]]
"""Runs for as long as its context lasts; the future ends with an error when the service must stop by itself."""


def fail(message: str, code: int = 1) -> NoReturn:
    """Says what went wrong on standard error, without a traceback, and ends."""
    print(f"headrace: {message}", file=sys.stderr)
    raise SystemExit(code)


def settings_of(file: Path | None, overrides: list[str], environ: Mapping[str, str]) -> Settings:
    """The settings of a process, its warnings already said; a wrong value ends it with the sentence that helps."""
    try:
        settings, warnings = load(file, environ, overrides)
    except KafkaError as error:
        fail(error.message, 2)
    for warning in warnings:
        print(f"headrace: warning: {warning}", file=sys.stderr)
    return settings


def log_to(path: Path | None, level: int = logging.INFO) -> None:
    """Sends the log of this process to a file, or to standard error."""
    logging.basicConfig(filename=path, level=level, format=LOG_FORMAT, force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


@asynccontextmanager
async def broker(settings: Settings, idle: IdleSelector) -> AsyncIterator[asyncio.Future[None]]:
    registry = _registry(settings)
    service = BrokerService(settings, registry, idle=idle)
    await service.start()
    lost = asyncio.ensure_future(service.serve_until_lost())
    try:
        yield lost
    finally:
        lost.cancel()
        await service.stop()
        await registry.close()


@asynccontextmanager
async def controller(settings: Settings, idle: IdleSelector) -> AsyncIterator[asyncio.Future[None]]:
    registry = _registry(settings)
    service = ControllerService(settings, registry)
    await service.start()
    try:
        yield asyncio.get_running_loop().create_future()
    finally:
        await service.stop()
        await registry.close()


@asynccontextmanager
async def metadata(settings: Settings, idle: IdleSelector) -> AsyncIterator[asyncio.Future[None]]:
    registry = _registry(settings)
    service = MetadataService(settings, registry)
    await service.start()
    try:
        yield asyncio.get_running_loop().create_future()
    finally:
        await service.stop()
        await registry.close()


def _registry(settings: Settings) -> EtcdRegistry:
    return EtcdRegistry(settings["etcd.endpoints"], request_timeout=settings["etcd.request.timeout.ms"] / 1000)


def run(service: Service, settings: Settings, ready: Callable[[], None]) -> None:
    """Runs one service until SIGTERM or SIGINT, or until it must stop by itself; then the process ends with 1."""
    idle = IdleSelector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(idle)) as runner:
        try:
            runner.run(_until_signal(service, settings, idle, ready))
        except (KafkaError, OSError) as error:
            fail(str(error))


async def _until_signal(service: Service, settings: Settings, idle: IdleSelector, ready: Callable[[], None]) -> None:
    stop = signalled()
    start = asyncio.ensure_future(_hold(service, settings, idle, ready, stop))
    await start


async def _hold(
    service: Service, settings: Settings, idle: IdleSelector, ready: Callable[[], None], stop: asyncio.Future[None]
) -> None:
    async with service(settings, idle) as lost:
        ready()
        await asyncio.wait({stop, lost}, return_when=asyncio.FIRST_COMPLETED)
        if lost.done():
            lost.result()


def signalled() -> asyncio.Future[None]:
    """Done once SIGTERM or SIGINT arrives; the loop's own handling of Ctrl-C is replaced."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[None] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: arrived.done() or arrived.set_result(None))
    return arrived
