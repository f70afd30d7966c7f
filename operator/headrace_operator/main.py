"""The operator process: waits for its turn, brings the definitions up to date, then works until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress

import kopf
from aiohttp import web
from prometheus_client import start_http_server

from headrace_operator import metrics
from headrace_operator.context import Context, Options
from headrace_operator.crds import crds
from headrace_operator.events import Events
from headrace_operator.freshness import Freshness, Key
from headrace_operator.handlers import Workers, registry
from headrace_operator.kube import API, Kube, KubeError, path
from headrace_operator.lease import Lease, LeaseLost
from headrace_operator.store import Store

log = logging.getLogger("headrace_operator")

LIST_SECONDS, STALE_SECONDS = 20.0, 60.0
RELEASE_SECONDS = 5.0


def options(environ: Mapping[str, str]) -> Options:
    """How the environment says to run; a missing image ends the process with a sentence."""
    image = environ.get("HEADRACE_SERVICES_IMAGE", "")
    if not image:
        sys.exit(
            "headrace-operator: set HEADRACE_SERVICES_IMAGE to the image of the services, as in headrace/services:1"
        )
    default = Options(image)
    return Options(
        image=image,
        pull_secrets=_words(environ.get("IMAGE_PULL_SECRETS", "")),
        namespaces=_words(environ.get("WATCH_NAMESPACES", "")),
        metrics_port=int(environ.get("METRICS_PORT", default.metrics_port)),
        health_port=int(environ.get("HEALTH_PORT", default.health_port)),
        identity=environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}",
        lease=environ.get("LEASE_NAME") or default.lease,
        metadata_address=environ.get("HEADRACE_METADATA_ADDRESS") or default.metadata_address,
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


class Health:
    """What the liveness probe sees."""

    def __init__(self) -> None:
        self.workers: Workers | None = None
        self.freshness = Freshness(STALE_SECONDS)

    def trouble(self) -> str | None:
        """Why this process should be started again; None when it is well."""
        if self.workers is None:
            return None
        if (stale := self.freshness.stale(time.monotonic())) is not None:
            return f"the watch does not tell of {' '.join(stale)}"
        if (failure := self.workers.failure) is not None:
            return f"a worker ended: {failure!r}"
        return None

    async def answer(self, _: web.Request) -> web.Response:
        trouble = self.trouble()
        return web.Response(status=500 if trouble else 200, text=trouble or "ok")


async def check_watches(kube: Kube, health: Health, namespaces: tuple[str, ...]) -> None:
    """Lists the resources now and then, for `Freshness` to compare, and counts them."""
    while True:
        try:
            found: dict[Key, int] = {}
            for kind in ("Cluster", "Topic"):
                for namespace in namespaces or (None,):
                    for item in await kube.list(path(API, kind, namespace), metadata_only=True, cached=True):
                        about = item["metadata"]
                        found[kind, about["namespace"], about["name"]] = int(about["resourceVersion"])
            health.freshness.listed(found, time.monotonic())
        except KubeError as error:
            # An API server that is away is not cured by a restart of the operator.
            log.info("resources cannot be listed: %s", error)
        metrics.WATCH_STALE.set(health.freshness.stale(time.monotonic()) is not None)
        if health.workers is not None:
            health.workers.count()
        await asyncio.sleep(LIST_SECONDS)


async def apply_definitions(kube: Kube, seconds: float = 60.0) -> None:
    """Makes the CRDs what this version knows, and waits until they are served."""
    for crd in crds():
        await kube.apply(crd)
    deadline = time.monotonic() + seconds
    for crd in crds():
        where = path("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, crd["metadata"]["name"])
        while True:
            held = await kube.get(where) or {}
            # A definition that was made this moment has null for them.
            told = held.get("status", {}).get("conditions") or []
            states = {c["type"]: c["status"] for c in told}
            if states.get("Established") == "True":
                break
            if time.monotonic() > deadline:
                raise KubeError(0, f"{crd['metadata']['name']} is not served after {seconds:g} s: {states}")
            await asyncio.sleep(0.2)


async def run(chosen: Options) -> None:
    """Runs until SIGTERM, or until the Lease is lost."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    start_http_server(chosen.metrics_port)
    health = Health()
    site = await _serve_health(health, chosen.health_port)
    try:
        async with Kube() as kube:
            lease = Lease(kube, chosen.lease, chosen.identity)
            if await _first(stop, lease.acquire()):
                return
            metrics.LEADER.set(1)
            try:
                await _work(chosen, kube, health, lease, stop)
            finally:
                with suppress(KubeError, TimeoutError):
                    async with asyncio.timeout(RELEASE_SECONDS):
                        await lease.release()
    finally:
        await site.cleanup()


async def _work(chosen: Options, kube: Kube, health: Health, lease: Lease, stop: asyncio.Event) -> None:
    workers = Workers(Context(chosen, kube, Events(kube), Store()), health.freshness)
    keeping = asyncio.create_task(lease.keep(), name="lease")
    # Kept from the first moment: an API server that is slow to take definitions must not cost the Lease unnoticed.
    tasks = [keeping, asyncio.create_task(apply_definitions(kube), name="definitions")]
    following = None
    try:
        await _one_ends(tasks)
        health.workers = workers
        following = asyncio.create_task(
            kopf.operator(
                registry=registry(workers),
                standalone=True,
                clusterwide=not chosen.namespaces,
                namespaces=chosen.namespaces,
                stop_flag=stop,
            ),
            name="kopf",
        )
        watching = asyncio.create_task(check_watches(kube, health, chosen.namespaces), name="freshness")
        tasks = [keeping, following, watching]
        await _one_ends(tasks)
    finally:
        # First of all nothing is done any more: the next operator may be at work already.
        await workers.stop()
        stop.set()
        for task in tasks:
            if task is not following:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _one_ends(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Waits until one of them ends, and fails as it did."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


async def _first(stop: asyncio.Event, wanted: Coroutine[None, None, None]) -> bool:
    """Waits for `wanted`; True when the process was told to stop before. It fails as `wanted` does."""
    first = asyncio.create_task(wanted)
    tasks: list[asyncio.Task[object]] = [first, asyncio.create_task(stop.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    if not stop.is_set():
        first.result()
    return stop.is_set()


async def _serve_health(health: Health, port: int) -> web.AppRunner:
    app = web.Application()
    app.router.add_get("/healthz", health.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()
    return runner


def main() -> None:
    """`python -m headrace_operator`."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    # They tell every attempt; the workers say what came of it.
    for chatty in ("kopf", "headrace.rpc"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        asyncio.run(run(options(os.environ)))
    except (LeaseLost, KubeError) as error:
        sys.exit(f"headrace-operator: {error}")
