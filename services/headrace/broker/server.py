"""The broker process: wires the logic to sockets, disks, etcd and the other services, and takes it down in order.

Start: open the logs; listen for gRPC; register in etcd; wait for the controller's word on every partition; listen for
clients. A client therefore never meets a broker that does not know yet what it leads.
Stop: hand leaderships away; stop taking requests and finish what is in flight; flush; leave the clean-shutdown marker.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry

from headrace.broker.authorizer import AllowAll
from headrace.broker.broker import Broker, LogConfigs
from headrace.broker.cleaning import Cleaning, CleaningLimits
from headrace.broker.control import ReplicaControl
from headrace.broker.failure_reports import FailureReports
from headrace.broker.fetch_session import Sessions
from headrace.broker.fetcher import FetcherLimits
from headrace.broker.grpc_control import ControlService
from headrace.broker.grpc_data import DataService
from headrace.broker.housekeeping import Housekeeping, Intervals
from headrace.broker.isr_keeper import IsrKeeper
from headrace.broker.log_dir_moves import LogDirMoves
from headrace.broker.producer_ids import Block, ProducerIds
from headrace.broker.replica_manager import ReplicaManager
from headrace.broker.replication import Connect, Replication, connect_client
from headrace.broker.stats import Collector, Stats
from headrace.broker.throttle import FOLLOWER_RATE, LEADER_RATE
from headrace.cluster.codec import endpoint_attributes
from headrace.cluster.configs import Brokers, Settings, describe_broker
from headrace.cluster.image import Image
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Clock, Random, SystemClock
from headrace.registry.api import Registry
from headrace.registry.keys import Keys
from headrace.registry.registration import Registered, Registration, keep_registered
from headrace.rpc import Channels, RpcServer, Serve, request_header, serve
from headrace.rpc.controller_client import ControllerClient
from headrace.rpc.image_follower import ImageFollower
from headrace.rpc.metrics import MetricsServer
from headrace.storage.files import Files, OsFiles
from headrace.storage.log_dirs import LogDir, LogDirs, attempt
from headrace.timing.driver import TimerDriver
from headrace.timing.idle import LoopIdle
from headrace.timing.purgatory import Purgatory
from headrace.v1 import broker_pb2_grpc
from headrace.v1 import controller_pb2 as controller_pb
from headrace.wire.api import Api
from headrace.wire.listener import Listener, ListenerConfig
from headrace.wire.metrics import WireMetrics

log = logging.getLogger(__name__)

CLIENT_ID = "broker-{}"
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
SESSION_EVICTION_SECONDS = 120.0
SHUTDOWN_CALL_SECONDS = 5.0
SYNC_THREADS = 16


@dataclass(frozen=True, slots=True)
class Outside:
    """What a broker touches the world with: sockets and disks, or what stands for them in a simulation."""

    files: Files = field(default_factory=OsFiles)
    channels: Channels = field(default_factory=Channels)
    serve: Serve = serve
    listener: Callable[[Api, ListenerConfig, WireMetrics, str], Listener] = Listener
    connect: Connect = connect_client


class BrokerService:
    """One broker. `start`, then `serve_until_lost` (or just wait), then `stop`."""

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
        self.stats = Stats()
        self.wire = WireMetrics()
        self._bound: dict[str, int] = {}
        """The port of each Kafka listener."""
        self.metrics_port = 0
        self._idle = LoopIdle(lambda: self.wire.busy_seconds)
        self._epoch = -1
        self._registered = asyncio.Event()
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._channels = outside.channels
        self._listeners: list[Listener] = []
        self._rpc: RpcServer | None = None
        self._registration: asyncio.Task[None] | None = None
        self._metrics: MetricsServer | None = None
        self.follower = ImageFollower(
            list(settings["metadata.servers"]), self._channels, clock=self.clock, chance=self.random
        )
        self._log_configs = LogConfigs(settings, self.id)
        self._timer = TimerDriver()
        self.replicas = ReplicaManager(
            self.id,
            self.clock,
            self.stats,
            Purgatory("Produce", self._timer, purge_interval=settings["producer.purgatory.purge.interval.requests"]),
            Purgatory("Fetch", self._timer, purge_interval=settings["fetch.purgatory.purge.interval.requests"]),
            asyncio.get_running_loop().call_soon,
            lambda: self.follower.image,
            asyncio.get_running_loop().call_later,
        )
        self.log_dirs = LogDirs(
            outside.files,
            settings.log_dirs,
            node_id=self.id,
            cluster_id=settings["cluster.id"],
            config_of=lambda topic: self._log_configs.of(self.follower.image, topic),
            random=self.random,
            on_offline=self._dir_failed,
        )
        self.moves = LogDirMoves(self.replicas, self.log_dirs, self.clock)
        self.followers = Replication(
            self.replicas,
            self.follower,
            self.clock,
            _fetcher_limits(settings),
            lambda: self._epoch,
            settings["replica.socket.timeout.ms"] / 1000,
            outside.connect,
        )
        self.replicas.on_trimmed = self.followers.refresh
        self.control = ReplicaControl(self.replicas, self.log_dirs, self.followers, self.clock, lambda: self._epoch)
        controller = ControllerClient(self.follower, self._channels, self.clock)
        self.broker = Broker(
            id=self.id,
            config=settings,
            clock=self.clock,
            cluster=self.follower,
            replicas=self.replicas,
            log_dirs=self.log_dirs,
            moves=self.moves,
            sessions=Sessions(
                settings["max.incremental.fetch.session.cache.slots"], SESSION_EVICTION_SECONDS, self.random
            ),
            controller=controller,
            producer_ids=ProducerIds(self._allocate_producer_ids),
            authorizer=AllowAll(),
        )
        self.isr_keeper = IsrKeeper(
            self.replicas,
            controller,
            self.clock,
            settings["replica.lag.time.max.ms"] / 1000,
            lambda: self._epoch,
        )
        self.failures = FailureReports(self.id, controller, self.clock, lambda: self._epoch)
        self.replicas.rack_aware = settings["replica.selector.class"] == RACK_AWARE
        self.housekeeping = Housekeeping(self.replicas, self.log_dirs, self.clock, _intervals(settings))
        self.cleaning = Cleaning(
            self.log_dirs, self.housekeeping.high_watermarks, self.clock, _cleaning_limits(settings)
        )

    # --- start

    async def start(self) -> None:
        """Returns once clients can connect. Raises what stands in the way, with nothing left running."""
        try:
            await self._start()
        except BaseException:
            await self._abandon()
            raise

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self.follower.listen(self._image_changed)
        self.follower.start()
        await loop.run_in_executor(None, self.log_dirs.load)
        control, data = ControlService(self.control), DataService(self.broker)
        self._rpc = await self._outside.serve(
            self.settings.grpc.host,
            self.settings.grpc.port,
            [
                ("headrace.v1.Broker", lambda s: broker_pb2_grpc.add_BrokerServicer_to_server(data, s)),
                (
                    "headrace.v1.BrokerControl",
                    lambda s: broker_pb2_grpc.add_BrokerControlServicer_to_server(control, s),
                ),
            ],
            serving=False,
        )
        api = Api.of(self.broker, "headrace.broker.handlers")
        for address in self.settings.listeners:
            listener = self._outside.listener(api, ListenerConfig.of(self.settings), self.wire, address.name)
            _, self._bound[address.name] = await listener.bind(address.endpoint.host, address.endpoint.port)
            self._listeners.append(listener)
        self._take_rates(self.follower.image)
        self._registration = asyncio.create_task(self._keep_registered())
        await self._ready()
        for listener in self._listeners:
            listener.listen()
        self.housekeeping.start()
        if self.settings["log.cleaner.enable"]:
            self.cleaning.start()
        self.isr_keeper.start()
        self._serve_metrics()
        await self._rpc.set_serving(True)

    async def _ready(self) -> None:
        """Waits until the controller has told this broker what it holds, and it sees itself in the cluster."""
        synced: asyncio.Future[Any] = asyncio.ensure_future(self.control.synced.wait())
        try:
            await asyncio.wait([synced, self._lost], return_when=asyncio.FIRST_COMPLETED)
            if self._lost.done():
                await self._lost
            await self.follower.wait_for(lambda image: self.id in image.brokers, None)
        finally:
            synced.cancel()

    async def _keep_registered(self) -> None:
        key = Keys(self.settings["cluster.id"]).broker(self.id)
        ttl = self.settings["broker.session.timeout.ms"] / 1000
        held = keep_registered(self.registry, key, self._about_itself(), ttl, self.clock)
        try:
            async for registered in held:
                self._take_registration(registered)
        except Exception as error:
            if not self._lost.done():
                self._lost.set_exception(error)
        finally:
            await held.aclose()

    def _take_registration(self, registered: Registered) -> None:
        self._epoch = registered.epoch
        log.info("broker %d is registered with epoch %d", self.id, registered.epoch)

    def _about_itself(self) -> Registration:
        assert self._rpc is not None
        listeners, grpc = self.settings.advertised(self._bound), self.settings.advertised_grpc
        kafka = listeners[0].endpoint
        directory = next((d.directory_id for d in self.log_dirs.dirs if d.directory_id is not None), None)
        return Registration(
            id=str(self.id),
            host=kafka.host,
            ports={"kafka": kafka.port, "grpc": grpc.port or self._rpc.port},
            directory_id=str(directory),
            incarnation_id=uuid.UUID(int=self.random.getrandbits(128)).hex,
            rack=self.settings["broker.rack"],
            attributes=endpoint_attributes(kafka.host, grpc.host, ((each.name, each.endpoint) for each in listeners)),
            lineage_id=self.log_dirs.lineage,
        )

    @property
    def kafka_address(self) -> str:
        """Where clients are told to connect."""
        return str(self.settings.advertised(self._bound)[0].endpoint)

    @property
    def grpc_port(self) -> int:
        return self._rpc.port if self._rpc else 0

    async def serve_until_lost(self) -> None:
        """Returns never; raises when this broker must stop because another process took its id.

        Whoever waits may give up waiting: that says nothing about the registration.
        """
        await asyncio.shield(self._lost)

    # --- while it runs

    def _image_changed(self, old: Image, new: Image) -> None:
        """Takes changed settings live, and topics' settings into their logs."""
        if old.broker_configs is not new.broker_configs:
            changed = {p.topic for p in self.replicas.partitions()}
        elif old.topic_configs is not new.topic_configs:
            names = {*old.topic_configs, *new.topic_configs}
            changed = {n for n in names if old.topic_configs.get(n) != new.topic_configs.get(n)}
        else:
            return
        for partition in self.replicas.partitions():
            if partition.topic in changed:
                try:
                    partition.log.update_config(self._log_configs.of(new, partition.topic))
                except KafkaError as error:
                    log.error("%r keeps its settings: %s", partition, error)
                self.replicas.update_throttled(partition, new)
                self.replicas.advance(partition)
        self._take_rates(new)

    def _take_rates(self, image: Image) -> None:
        own = Brokers.of(self.settings, image.broker_configs, self.id)
        rates = {e.key.name: int(e.value or 0) for e in describe_broker(own, (LEADER_RATE, FOLLOWER_RATE))}
        self.replicas.throttle.set_rate(rates[LEADER_RATE])
        self.followers.throttle.set_rate(rates[FOLLOWER_RATE])

    def _dir_failed(self, failed: LogDir) -> None:
        lost = [p for p in self.replicas.partitions() if p.log.failure is not None]
        for partition in lost:
            self.followers.stop(partition)
            self.moves.give_up(partition)
            self.replicas.wake(partition)
        if self._epoch >= 0:
            self.failures.report((p.topic_id, p.index) for p in lost)

    async def _allocate_producer_ids(self) -> Block:
        request = controller_pb.AllocateProducerIdsRequest(
            header=request_header(CLIENT_ID.format(self.id)), broker_id=self.id, broker_epoch=self._epoch
        )
        timeout = self.settings["request.timeout.ms"] / 1000
        answer = await self.broker.controller.call(lambda c: c.AllocateProducerIds, request, timeout)
        return answer.first, answer.count

    def _serve_metrics(self) -> None:
        port = self.settings["metrics.port"]
        if not port:
            return
        registry = CollectorRegistry()
        collector = Collector(self.stats, self.wire, self.replicas.partitions, self._gauges, self._purgatories)
        registry.register(collector)
        self._metrics = MetricsServer(self.settings.grpc.host, port, registry, collector.partition_lines)
        self.metrics_port = self._metrics.port

    def _gauges(self) -> dict[str, float]:
        return {
            "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent": self._idle.take_share(),
            "kafka_network_requestchannel_requestqueuesize": sum(each.handling for each in self._listeners),
            "kafka_server_socketservermetrics_connection_count": self.wire.connections,
            "kafka_server_replicamanager_offlinereplicacount": sum(len(d.lost) for d in self.log_dirs.dirs),
        }

    def _purgatories(self) -> dict[str, int]:
        return {p.name: p.size for p in (self.replicas.produces, self.replicas.fetches)}

    # --- stop

    async def stop(self) -> None:
        """Stops as a person would want it: nothing that was acknowledged is lost, nobody waits for a lease to end."""
        await self._hand_leaderships_away()
        self.replicas.stop_leading()
        if self._rpc is not None:
            await self._rpc.set_serving(False)
        await asyncio.gather(*(listener.stop() for listener in self._listeners))
        await self.cleaning.stop()
        await self.housekeeping.stop()
        await self.isr_keeper.stop()
        await self.failures.stop()
        await self.moves.stop()
        await self._abandon(clean=True)

    async def _hand_leaderships_away(self) -> None:
        if not self.settings["controlled.shutdown.enable"] or self._lost.done() or self._epoch < 0:
            return
        request = controller_pb.ControlledShutdownRequest(
            header=request_header(CLIENT_ID.format(self.id)), broker_id=self.id, broker_epoch=self._epoch
        )
        try:
            answer = await self.broker.controller.call(lambda c: c.ControlledShutdown, request, SHUTDOWN_CALL_SECONDS)
            if answer.error.code:
                raise KafkaError(ErrorCode(answer.error.code), answer.error.message)
            log.info("broker %d stops: its leaderships are handed over", self.id)
            if answer.remaining:
                log.info("%d partitions have no other replica in sync; they go offline", len(answer.remaining))
        except KafkaError as error:
            log.warning("stopping without handing leaderships away: %s", error)

    async def _abandon(self, clean: bool = False) -> None:
        if self._metrics is not None:
            self._metrics.close()
        if self._registration is not None:
            self._registration.cancel()
            with suppress(asyncio.CancelledError):
                await self._registration
        await self.followers.close()
        await self.follower.stop()
        if self._rpc is not None:
            await self._rpc.stop(0.5)
        await self._channels.close()
        self._timer.close()
        if not clean:
            await asyncio.gather(*(listener.stop(0) for listener in self._listeners))
        if clean:
            marks = self.housekeeping.high_watermarks()
            await asyncio.get_running_loop().run_in_executor(
                None, self.log_dirs.close, marks, self._epoch, _side_by_side
            )
        else:
            self.log_dirs.release()


def _side_by_side(works: list[Callable[[], None]]) -> list[OSError | None]:
    """Syncs many files at a time: the file system puts what is asked for together into one write."""
    with ThreadPoolExecutor(SYNC_THREADS) as pool:
        return list(pool.map(attempt, works))


def _intervals(settings: Settings) -> Intervals:
    return Intervals(
        retention=settings["log.retention.check.interval.ms"] / 1000,
        high_watermarks=settings["replica.high.watermark.checkpoint.interval.ms"] / 1000,
        checkpoints=settings["log.flush.offset.checkpoint.interval.ms"] / 1000,
        producers=settings["producer.id.expiration.check.interval.ms"] / 1000,
        producer_expiration_ms=settings["producer.id.expiration.ms"],
    )


def _cleaning_limits(settings: Settings) -> CleaningLimits:
    return CleaningLimits(
        backoff=settings["log.cleaner.backoff.ms"] / 1000,
        buffer_bytes=settings["log.cleaner.dedupe.buffer.size"],
        load_factor=settings["log.cleaner.io.buffer.load.factor"],
        max_bytes_per_second=settings["log.cleaner.io.max.bytes.per.second"],
    )


def _fetcher_limits(settings: Settings) -> FetcherLimits:
    return FetcherLimits(
        max_wait_ms=settings["replica.fetch.wait.max.ms"],
        min_bytes=settings["replica.fetch.min.bytes"],
        max_bytes=settings["replica.fetch.response.max.bytes"],
        partition_max_bytes=settings["replica.fetch.max.bytes"],
        backoff=settings["replica.fetch.backoff.ms"] / 1000,
    )
