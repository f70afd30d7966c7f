"""The coordinator process: wires the group logic to sockets, etcd, the metadata service and the brokers.

Start: listen for gRPC; take the Kafka port; find a broker; register in etcd; see that the offsets topic exists; claim a
share of its partitions. The process is ready once its first share is served. Stop: drop and release every partition, so
that the others take over at once instead of when the lease ends; then go.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry

from headrace.cluster.codec import endpoint_attributes
from headrace.cluster.configs import Settings
from headrace.cluster.image import Image
from headrace.cluster.topics import OFFSETS_TOPIC
from headrace.coordinator.appending import Sender
from headrace.coordinator.config import GroupConfig
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.grpc_service import GroupService
from headrace.coordinator.hosting import GroupClock, Hosting
from headrace.coordinator.lag import LagKeeper
from headrace.coordinator.loading import Loader
from headrace.coordinator.ownership import RETRY_SECONDS, Claims
from headrace.coordinator.passing import Connect, Passing, connect_client
from headrace.coordinator.sharing import share_of
from headrace.coordinator.stats import Collector
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Clock, Random, SystemClock
from headrace.registry.api import LeaseLost, Registry, RegistryUnavailable
from headrace.registry.keys import Keys
from headrace.registry.registration import Registered, Registration, keep_registered
from headrace.rpc import Channels, RpcServer, Serve, request_header, serve
from headrace.rpc.controller_client import ControllerClient
from headrace.rpc.image_follower import ImageFollower
from headrace.rpc.metrics import MetricsServer
from headrace.timing.driver import TimerDriver
from headrace.v1 import controller_pb2, coordinator_pb2_grpc
from headrace.wire.api import Api
from headrace.wire.listener import Listener, ListenerConfig
from headrace.wire.metrics import WireMetrics

log = logging.getLogger(__name__)

CLIENT_ID = "coordinator-{}"
CREATE_SECONDS = 10.0
CREATE_BACKOFF = 0.2
MAX_BACKOFF = 5.0
READY_SECONDS = 20.0
"""How long a start waits for the first share of the groups; without it the process is up, and goes on trying."""


@dataclass(frozen=True, slots=True)
class Outside:
    """What a coordinator touches the world with: sockets, or what stands for them in a simulation."""

    channels: Channels = field(default_factory=Channels)
    serve: Serve = serve
    listener: Callable[[Api, ListenerConfig, WireMetrics, str], Listener] = Listener
    connect: Connect = connect_client


class CoordinatorService:
    """One coordinator. `start`, then `serve_until_lost` (or just wait), then `stop`."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        outside: Outside | None = None,
    ) -> None:
        self._outside = outside = outside or Outside()
        self.settings = settings
        self.id = settings.node_id
        self.registry = registry
        self.clock = clock or SystemClock()
        self.random = random or Random()
        self.wire = WireMetrics()
        self._bound: dict[str, int] = {}
        """The port of each Kafka listener."""
        self.metrics_port = 0
        self._keys = Keys(settings["cluster.id"])
        self._channels = outside.channels
        self._timer = TimerDriver()
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rpc: RpcServer | None = None
        self._listeners: list[Listener] = []
        self._passing: Passing | None = None
        self._metrics: MetricsServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._claims: Claims | None = None
        self._registered: Registered | None = None
        self.follower = ImageFollower(
            list(settings["metadata.servers"]), self._channels, clock=self.clock, chance=self.random
        )
        self._controller = ControllerClient(self.follower, self._channels, self.clock)
        client_id = CLIENT_ID.format(self.id)
        self.sender = Sender(
            lambda: self.follower.image,
            self._channels,
            self.clock,
            client_id,
            settings["offsets.commit.timeout.ms"] / 1000,
            settings["group.coordinator.append.linger.ms"] / 1000,
        )
        buffer_bytes = settings["offsets.load.buffer.size"]
        loader = Loader(lambda: self.follower.image, self._channels, self.clock, client_id, buffer_bytes)
        self.coordinator = Coordinator(
            self.id,
            GroupConfig.of(settings.given),
            self.follower,
            GroupClock(self.clock),
            self._timer,
            self.sender,
            loader,
            self.random,
        )
        self.coordinator.on_lost = self._partition_lost
        self.lag = LagKeeper(self.coordinator, self._channels, self.clock, client_id)

    # --- start

    async def start(self) -> None:
        """Returns once clients can connect. Raises what stands in the way, with nothing left running."""
        try:
            await self._start()
        except BaseException:
            await self._abandon()
            raise

    async def _start(self) -> None:
        self.follower.listen(self._image_changed)
        self.follower.start()
        groups = GroupService(self.coordinator)
        self._rpc = await self._outside.serve(
            self.settings.grpc.host,
            self.settings.grpc.port,
            [("headrace.v1.Coordinator", lambda s: coordinator_pb2_grpc.add_CoordinatorServicer_to_server(groups, s))],
            serving=False,
        )
        api = Api.of(self.coordinator, "headrace.coordinator.handlers")
        for address in self.settings.listeners:
            listener = self._outside.listener(api, ListenerConfig.of(self.settings), self.wire, address.name)
            _, self._bound[address.name] = await listener.bind(address.endpoint.host, address.endpoint.port)
            self._listeners.append(listener)
        self._passing = Passing(
            api,
            lambda: self.follower.image,
            self.clock,
            self.random,
            CLIENT_ID.format(self.id),
            self.settings.advertised_listeners[0].name,
            self._outside.connect,
        )
        await self._passing.learn()
        self._tasks.append(asyncio.create_task(self._keep_registered(), name="registration"))
        for listener in self._listeners:
            listener.listen()
        await self._first_share()
        self._tasks.append(asyncio.create_task(self._expire_offsets(), name="offsets retention"))
        self._serve_metrics()
        await self._rpc.set_serving(True)

    async def _first_share(self) -> None:
        """Waits until this process serves its share of the groups, but not for ever: brokers may be missing."""
        registered: asyncio.Future[Any] = asyncio.ensure_future(
            self.follower.wait_for(lambda image: self.id in image.coordinators, None)
        )
        try:
            await asyncio.wait([registered, self._lost], return_when=asyncio.FIRST_COMPLETED)
            if self._lost.done():
                await self._lost
        finally:
            registered.cancel()
        deadline = self.clock.monotonic() + READY_SECONDS
        while not self._has_its_share() and self.clock.monotonic() < deadline:
            await self.clock.sleep(0.02)

    def _has_its_share(self) -> bool:
        image = self.follower.image
        topic = image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            return False
        share = share_of(self.id, image.coordinators, len(topic.partitions))
        hostings = self.coordinator.hostings
        return all(index in hostings and hostings[index].serving for index in share)

    async def _keep_registered(self) -> None:
        ttl = self.settings["broker.session.timeout.ms"] / 1000
        held = keep_registered(self.registry, self._keys.coordinator(self.id), self._about_itself(), ttl, self.clock)
        owning: asyncio.Task[None] | None = None
        try:
            async for registered in held:
                log.info("coordinator %d is registered with epoch %d", self.id, registered.epoch)
                if owning is not None:
                    await _ended(owning)
                owning = asyncio.create_task(self._own(registered), name="ownership")
        except Exception as error:
            if not self._lost.done():
                self._lost.set_exception(error)
        finally:
            if owning is not None:
                await _ended(owning)
            await held.aclose()

    async def _own(self, registered: Registered) -> None:
        """Claims partitions for as long as the registration lasts; the moment it ends, nothing is owned."""
        image = self.follower
        claims = Claims(self.id, self.registry, self._keys, registered.session, lambda: image.image, self.coordinator)
        self._registered, self._claims = registered, claims
        self.coordinator.alive = lambda: registered.valid
        work = asyncio.create_task(self._claim(claims))
        try:
            await registered.lost()
            log.warning("coordinator %d lost its registration: it owns nothing any more", self.id)
        finally:
            self._claims = None
            self.coordinator.drop_all()
            await _ended(work)

    async def _claim(self, claims: Claims) -> None:
        await self._offsets_topic()
        await claims.run()

    def _about_itself(self) -> Registration:
        assert self._rpc is not None
        listeners, grpc = self.settings.advertised(self._bound), self.settings.advertised_grpc
        kafka = listeners[0].endpoint
        # A coordinator has no disk: its id alone says who it is, and a new process takes its predecessor's place.
        directory = uuid.uuid5(uuid.NAMESPACE_OID, self._keys.coordinator(self.id))
        return Registration(
            id=str(self.id),
            host=kafka.host,
            ports={"kafka": kafka.port, "grpc": grpc.port or self._rpc.port},
            directory_id=str(directory),
            incarnation_id=uuid.UUID(int=self.random.getrandbits(128)).hex,
            rack=self.settings["broker.rack"],
            attributes=endpoint_attributes(kafka.host, grpc.host, ((each.name, each.endpoint) for each in listeners)),
        )

    async def _offsets_topic(self) -> None:
        """Creates the offsets topic when it is missing; tries for as long as there are too few brokers for it."""
        backoff = CREATE_BACKOFF
        await self.follower.wait_for(lambda image: image.revision > 0, None)
        while OFFSETS_TOPIC not in self.follower.image.topics:
            try:
                await self._create_offsets_topic()
                await self.follower.wait_for(lambda image: OFFSETS_TOPIC in image.topics, CREATE_SECONDS)
            except KafkaError as error:
                level = logging.DEBUG if error.code is ErrorCode.TOPIC_ALREADY_EXISTS else logging.WARNING
                log.log(level, "%s is not there yet: %s", OFFSETS_TOPIC, error)
                await self.clock.sleep(backoff)
                backoff = min(2 * backoff, MAX_BACKOFF)

    async def _create_offsets_topic(self) -> None:
        settings = self.settings
        brokers = len(self.follower.image.brokers)
        if not brokers:
            await self.follower.wait_for(lambda image: bool(image.brokers), None)
        wanted = controller_pb2.CreateTopicsRequest.NewTopic(
            name=OFFSETS_TOPIC,
            partitions=settings["offsets.topic.num.partitions"],
            replication_factor=settings["offsets.topic.replication.factor"],
            configs={
                "cleanup.policy": "compact",
                "segment.bytes": str(settings["offsets.topic.segment.bytes"]),
                "compression.type": "producer",
            },
        )
        request = controller_pb2.CreateTopicsRequest(
            header=request_header(CLIENT_ID.format(self.id)), topics=[wanted], timeout_ms=int(CREATE_SECONDS * 1000)
        )
        answer = await self._controller.call(lambda c: c.CreateTopics, request, CREATE_SECONDS + 1)
        for topic in answer.topics:
            if topic.error.code:
                raise KafkaError(ErrorCode(topic.error.code), topic.error.message)
        log.info("created %s with %d partitions", OFFSETS_TOPIC, wanted.partitions)

    @property
    def kafka_address(self) -> str:
        """Where clients are told to connect."""
        return str(self.settings.advertised(self._bound)[0].endpoint)

    @property
    def grpc_port(self) -> int:
        return self._rpc.port if self._rpc else 0

    async def serve_until_lost(self) -> None:
        """Returns never; raises when this coordinator must stop because another process took its id."""
        await self._lost

    # --- while it runs

    def _image_changed(self, old: Image, new: Image) -> None:
        self.coordinator.image_changed(old, new)
        claims = self._claims
        if claims is not None and (
            old.coordinators is not new.coordinators
            or old.offsets_owners is not new.offsets_owners
            or (OFFSETS_TOPIC in old.topics) != (OFFSETS_TOPIC in new.topics)
        ):
            claims.look()

    def _partition_lost(self, hosting: Hosting, fenced: bool) -> None:
        """Whoever owns it by now is found in the registry, a little later: it may not even be written there yet."""
        claims = self._claims
        if claims is not None:
            asyncio.get_running_loop().call_later(RETRY_SECONDS if fenced else 0, claims.look)

    async def _expire_offsets(self) -> None:
        while True:
            await self.clock.sleep(self.settings["offsets.retention.check.interval.ms"] / 1000)
            self.coordinator.expire_offsets()

    def _serve_metrics(self) -> None:
        port = self.settings["metrics.port"]
        if not port:
            return
        registry = CollectorRegistry()
        registry.register(Collector(self.coordinator, self.wire, self.lag, self.sender))
        self._metrics = MetricsServer(self.settings.grpc.host, port, registry)
        self.metrics_port = self._metrics.port

    # --- stop

    async def stop(self) -> None:
        """Nobody waits for a lease to end: the claims go with the registration."""
        await self._abandon()

    async def _abandon(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
        for task in reversed(self._tasks):
            await _ended(task)
        self.coordinator.drop_all()
        await self.sender.close()
        if self._passing is not None:
            self._passing.close()
        await asyncio.gather(*(listener.stop(1.0) for listener in self._listeners))
        await self.follower.stop()
        if self._rpc is not None:
            await self._rpc.stop(0.5)
        await self._channels.close()
        self._timer.close()


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError, RegistryUnavailable, LeaseLost):
        await task
