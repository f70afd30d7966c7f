"""The metadata service: follows the registry, and serves what it holds to everyone else.

It owns nothing and decides nothing. When etcd cannot be reached it goes on answering from memory, as of the last
revision it heard of.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from headrace.cluster.coordination import coordinator_of
from headrace.cluster.image import Change, Delta, Endpoint, Image, PartitionsChanged, TopicChanged
from headrace.cluster.protos import delta_to_proto, node_to_proto, snapshot_to_proto
from headrace.cluster.settings import Settings
from headrace.cluster.view import RegistryView
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.fanout import SNAPSHOT, WAIT, Fanout, Step
from headrace.metadata.stats import Collector, Stats
from headrace.ports import Clock, SystemClock
from headrace.registry.api import Registry, RegistryUnavailable, Snapshot
from headrace.registry.keys import Keys
from headrace.registry.registration import Registration, keep_registered
from headrace.rpc import RpcServer, Serve, response_header, serve
from headrace.rpc.errors import error_message
from headrace.rpc.metrics import MetricsServer
from headrace.v1 import metadata_pb2, metadata_pb2_grpc

logger = logging.getLogger(__name__)

SERVICE = "headrace.v1.Metadata"
_FIRST_BACKOFF, _MAX_BACKOFF = 0.05, 2.0


class MetadataCache:
    """The picture, kept up to date, with the fan-out of its changes."""

    def __init__(self, view: RegistryView, fanout: Fanout[metadata_pb2.Delta]) -> None:
        self._view = view
        self.fanout = fanout
        self.stats = Stats()
        self.loaded = asyncio.Event()
        """Set once there is a picture."""
        self._snapshot: metadata_pb2.Snapshot | None = None

    @property
    def image(self) -> Image:
        return self._view.image

    def snapshot(self) -> metadata_pb2.Snapshot:
        """All of the picture; made once a revision, however many readers want it. Not to be changed."""
        if self._snapshot is None:
            self._snapshot = snapshot_to_proto(self.image)
        return self._snapshot

    async def follow(self, registry: Registry, clock: Clock) -> None:
        """Keeps up with the registry until it is cancelled."""
        backoff = _FIRST_BACKOFF
        while True:
            after = self.image.revision if self.loaded.is_set() else None
            try:
                async with registry.watch(self._view.prefix, after) as items:
                    async for item in items:
                        self._take(item)
                        backoff = _FIRST_BACKOFF
            except RegistryUnavailable as error:
                self.stats.registry_failures += 1
                logger.warning("the registry does not answer: %s", error)
            await clock.sleep(backoff)
            backoff = min(2 * backoff, _MAX_BACKOFF)

    def _take(self, item: Any) -> None:
        self._snapshot = None
        if isinstance(item, Snapshot):
            self._view.load(item)
            self.fanout.reset(item.revision)
            self.loaded.set()
            return
        delta = self._view.apply(item)
        if delta.changes:
            self.fanout.publish(Step(delta.revision, delta_to_proto(delta), weight(delta)))
        else:
            self.fanout.advance(delta.revision)


def weight(delta: Delta) -> int:
    """About how many partitions (or things of that size) a delta holds."""
    return 1 + sum(map(_change_weight, delta.changes))


def _change_weight(change: Change) -> int:
    match change:
        case TopicChanged(topic):
            return len(topic.partitions)
        case PartitionsChanged(_, partitions):
            return len(partitions)
    return 1


class MetadataServicer(metadata_pb2_grpc.MetadataServicer):
    """The calls of the contract, on a cache."""

    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache

    async def GetMetadata(
        self, request: metadata_pb2.GetMetadataRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> metadata_pb2.GetMetadataResponse:
        await self._cache.loaded.wait()
        image = self._cache.image
        if not request.topics:
            return metadata_pb2.GetMetadataResponse(header=response_header(request), snapshot=self._cache.snapshot())
        missing = {
            name: error_message(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}"))
            for name in request.topics
            if name not in image.topics
        }
        return metadata_pb2.GetMetadataResponse(
            header=response_header(request),
            snapshot=snapshot_to_proto(image, dict.fromkeys(request.topics)),
            topic_errors=missing,
        )

    async def Watch(
        self, request: metadata_pb2.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[metadata_pb2.WatchResponse]:
        await self._cache.loaded.wait()
        header = response_header(request)
        woken = asyncio.Event()
        subscription = self._cache.fanout.subscribe(request.after_revision, woken.set)
        try:
            # Tells the reader that it is heard, also when there is nothing to say for a long time.
            await context.send_initial_metadata(())
            while not subscription.ended:
                woken.clear()
                step = subscription.take()
                if step is WAIT:
                    await woken.wait()
                elif step is SNAPSHOT:
                    self._cache.stats.snapshots += 1
                    yield metadata_pb2.WatchResponse(header=header, snapshot=self._cache.snapshot())
                elif isinstance(step, Step):
                    self._cache.stats.deltas += 1
                    yield metadata_pb2.WatchResponse(header=header, delta=step.message)
        finally:
            subscription.close()

    async def FindCoordinator(
        self, request: metadata_pb2.FindCoordinatorRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> metadata_pb2.FindCoordinatorResponse:
        await self._cache.loaded.wait()
        return metadata_pb2.FindCoordinatorResponse(
            header=response_header(request), coordinators=[self._coordinator(group) for group in request.group_ids]
        )

    def _coordinator(self, group_id: str) -> metadata_pb2.FindCoordinatorResponse.Coordinator:
        answer = metadata_pb2.FindCoordinatorResponse.Coordinator
        try:
            return answer(group_id=group_id, node=node_to_proto(coordinator_of(self._cache.image, group_id)))
        except KafkaError as error:
            return answer(group_id=group_id, error=error_message(error))


@dataclass(frozen=True, slots=True)
class MetadataConfig:
    """What one replica needs to know. `replica_id` is unique among replicas: a pod's name."""

    cluster: str
    replica_id: str
    listen: Endpoint
    advertised_host: str = ""
    session_ttl: float = 9.0
    history_limit: int = 100_000
    pending_limit: int = 10_000
    metrics_port: int = 0
    """Where Prometheus scrapes it; 0: nowhere."""

    @classmethod
    def of(cls, settings: Settings, replica_id: str) -> MetadataConfig:
        """From a process's settings."""
        return cls(
            cluster=settings["cluster.id"],
            replica_id=replica_id,
            listen=settings.grpc,
            advertised_host=settings.advertised_grpc.host,
            session_ttl=settings["broker.session.timeout.ms"] / 1000,
            history_limit=settings["metadata.history.max.changes"],
            pending_limit=settings["metadata.watch.max.pending.changes"],
            metrics_port=settings["metrics.port"],
        )


@dataclass(slots=True)
class MetadataServer:
    """A running replica."""

    cache: MetadataCache
    rpc: RpcServer
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    metrics: MetricsServer | None = None

    @property
    def port(self) -> int:
        return self.rpc.port

    @property
    def metrics_port(self) -> int:
        return self.metrics.port if self.metrics else 0

    async def stop(self, grace: float = 2.0) -> None:
        """Ends the streams, so that readers go to another replica at once, and gives the registration up."""
        await self.rpc.set_serving(False)
        self.cache.fanout.close()
        await self.rpc.stop(grace)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if self.metrics is not None:
            self.metrics.close()

    async def failed(self) -> None:
        """Returns (or raises) only when the replica cannot go on, for example because another has its id."""
        done, _ = await asyncio.wait(self.tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def start(
    registry: Registry, config: MetadataConfig, clock: Clock | None = None, serve: Serve = serve
) -> MetadataServer:
    """Serves at once; calls wait until the first picture is there, and so does the health check's SERVING."""
    clock = clock or SystemClock()
    keys = Keys(config.cluster)
    cache = MetadataCache(RegistryView(keys.root, config.cluster), Fanout(config.history_limit, config.pending_limit))
    servicer = MetadataServicer(cache)
    rpc = await serve(
        config.listen.host,
        config.listen.port,
        [(SERVICE, lambda server: metadata_pb2_grpc.add_MetadataServicer_to_server(servicer, server))],
        serving=False,
    )
    server = MetadataServer(cache, rpc)
    if config.metrics_port:
        collectors = CollectorRegistry()
        collectors.register(Collector(cache.stats, cache.fanout))
        server.metrics = MetricsServer(config.listen.host, config.metrics_port, collectors)
    server.tasks = [
        asyncio.create_task(cache.follow(registry, clock), name="metadata: follow the registry"),
        asyncio.create_task(_announce(server, registry, keys, config, clock), name="metadata: registration"),
    ]
    return server


async def _announce(
    server: MetadataServer, registry: Registry, keys: Keys, config: MetadataConfig, clock: Clock
) -> None:
    """Registers this replica, once it has something to serve, and again whenever its lease was lost."""
    await server.cache.loaded.wait()
    await server.rpc.set_serving(True)
    registration = Registration(
        id=config.replica_id,
        host=config.advertised_host or config.listen.host,
        ports={"grpc": server.port},
        directory_id="",
        incarnation_id=f"{config.replica_id}:{server.port}:{clock.time_ms()}",
    )
    key = keys.metadata(config.replica_id)
    async with aclosing(keep_registered(registry, key, registration, config.session_ttl, clock)) as registrations:
        async for registered in registrations:
            logger.info("registered as %s, epoch %d", key, registered.epoch)
