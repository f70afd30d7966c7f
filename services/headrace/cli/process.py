"""How a Headrace process runs: its loop, its log, its signals, and what it says when it cannot start.

Each service is imported when it is started: a controller need not carry the broker's code.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from headrace.cluster.configs import Settings, load
from headrace.errors import KafkaError
from headrace.registry.etcd import EtcdRegistry
from headrace.registry.etcd_endpoint import Certificates

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
GC_OBJECTS = 50_000
"""Objects made and not yet freed before Python looks for cycles among them."""


@dataclass(frozen=True, slots=True)
class Running:
    """A service that runs: where it listens, and a future that ends with an error when it must stop by itself."""

    lost: asyncio.Future[None]
    grpc: str
    kafka: str = ""
    metrics: str = ""


Service = Callable[[Settings], AbstractAsyncContextManager[Running]]


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


@asynccontextmanager
async def broker(settings: Settings) -> AsyncIterator[Running]:
    from headrace.broker.server import BrokerService

    async with _registry(settings) as registry:
        service = BrokerService(settings, registry)
        await service.start()
        host = settings.advertised_grpc.host
        lost = asyncio.ensure_future(service.serve_until_lost())
        try:
            yield Running(lost, f"{host}:{service.grpc_port}", service.kafka_address, _at(host, service.metrics_port))
        finally:
            lost.cancel()
            await service.stop()


@asynccontextmanager
async def controller(settings: Settings) -> AsyncIterator[Running]:
    from headrace.controller.server import ControllerService

    async with _registry(settings) as registry:
        service = ControllerService(settings, registry)
        await service.start()
        try:
            host = settings.advertised_grpc.host
            yield Running(_never(), f"{host}:{service.port}", metrics=_at(host, service.metrics_port))
        finally:
            await service.stop()


@asynccontextmanager
async def coordinator(settings: Settings) -> AsyncIterator[Running]:
    from headrace.coordinator.server import CoordinatorService

    async with _registry(settings) as registry:
        service = CoordinatorService(settings, registry)
        await service.start()
        host = settings.advertised_grpc.host
        lost = asyncio.ensure_future(service.serve_until_lost())
        try:
            yield Running(lost, f"{host}:{service.grpc_port}", service.kafka_address, _at(host, service.metrics_port))
        finally:
            lost.cancel()
            await service.stop()


@asynccontextmanager
async def metadata(settings: Settings) -> AsyncIterator[Running]:
    from headrace.metadata import server as metadata_server

    async with _registry(settings) as registry:
        # A replica of a Deployment has no number, but a name of its own.
        name = str(settings.node_id) if settings.node_id >= 0 else socket.gethostname()
        config = metadata_server.MetadataConfig.of(settings, name)
        service = await metadata_server.start(registry, config)
        lost = asyncio.ensure_future(service.failed())
        try:
            host = settings.advertised_grpc.host
            yield Running(lost, f"{host}:{service.port}", metrics=_at(host, service.metrics_port))
        finally:
            lost.cancel()
            await service.stop()


SERVICES: dict[str, Service] = {
    "broker": broker,
    "controller": controller,
    "coordinator": coordinator,
    "metadata": metadata,
}


def import_all() -> None:
    """Imports the code of every service: for who has time to do it before they are started."""
    for role in SERVICES:
        importlib.import_module(f"headrace.{role}.server")


@asynccontextmanager
async def _registry(settings: Settings) -> AsyncIterator[EtcdRegistry]:
    registry = EtcdRegistry(
        settings["etcd.endpoints"],
        request_timeout=settings["etcd.request.timeout.ms"] / 1000,
        certificates=_etcd_certificates(settings),
    )
    try:
        yield registry
    finally:
        await registry.close()


def _etcd_certificates(settings: Settings) -> Certificates | None:
    if not settings["etcd.ssl.ca.file"]:
        return None
    # A secret without a client certificate has no such files.
    return Certificates(*(Path(settings[f"etcd.ssl.{name}.file"] or "") for name in ("ca", "certificate", "key")))


def _at(host: str, port: int) -> str:
    return f"{host}:{port}" if port else ""


def _never() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def run(role: str, settings: Settings, ready_file: Path | None) -> None:
    """Runs one service until SIGTERM or SIGINT, or until it must stop by itself; then the process ends with 1."""
    if settings.node_id < 0 and role != "metadata":
        fail(f"which {role} is this? Give node.id in its config file, its environment or with --set node.id=0", 2)
    log_to(None)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        try:
            runner.run(_until_signal(role, settings, ready_file))
        except (KafkaError, OSError) as error:
            fail(str(error))


async def _until_signal(role: str, settings: Settings, ready_file: Path | None) -> None:
    stop = signalled()
    ready = asyncio.Event()
    serving = asyncio.ensure_future(_serve(role, settings, ready_file, ready, stop))
    await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
    if not ready.is_set():
        # A signal during the start ends it: there is nothing to hand over yet.
        serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving


async def _serve(
    role: str,
    settings: Settings,
    ready_file: Path | None,
    ready: asyncio.Event,
    stop: asyncio.Future[None],
) -> None:
    async with SERVICES[role](settings) as running:
        spare_the_collector()
        ready.set()
        where = {"grpc": running.grpc, "kafka": running.kafka, "metrics": running.metrics}
        told = ", ".join(f"{name} {address}" for name, address in where.items() if address)
        logging.getLogger("headrace").info("%s %d is ready: %s", role, settings.node_id, told)
        if ready_file is not None:
            part = ready_file.with_suffix(".part")
            part.write_text(json.dumps(where))
            part.rename(ready_file)
        await asyncio.wait({stop, running.lost}, return_when=asyncio.FIRST_COMPLETED)
        if running.lost.done():
            running.lost.result()


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, where it is installed: asyncio's own does the same, at a quarter more for a small request."""
    try:
        import uvloop
    except ImportError:
        return asyncio.SelectorEventLoop()
    return uvloop.new_event_loop()


def spare_the_collector() -> None:
    """Lets Python look for reference cycles rarely, and never among what is there for good.

    Requests make few cycles and many objects: at the default threshold a busy process spends a fifth of its time
    looking through requests under way.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_OBJECTS, 20, 50)


def signalled() -> asyncio.Future[None]:
    """Done once SIGTERM or SIGINT arrives; the loop's own handling of Ctrl-C is replaced."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[None] = loop.create_future()

    def arrive() -> None:
        if not arrived.done():
            arrived.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, arrive)
    return arrived
