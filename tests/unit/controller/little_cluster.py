"""Real controllers and stand-in brokers on loopback: brokers register and keep what they are told on a disk."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc

from headrace.cluster.configs import Settings
from headrace.controller.controller import Limits
from headrace.controller.reign import Reign, ReignLimits
from headrace.controller.senders import SenderLimits
from headrace.controller.server import ControllerService
from headrace.registry.api import Registry, Session
from headrace.registry.keys import Keys
from headrace.registry.registration import Registration, register
from headrace.rpc.errors import kafka_error_of
from headrace.rpc.server import RpcServer, serve
from headrace.v1 import broker_pb2 as bpb
from headrace.v1 import broker_pb2_grpc, controller_pb2_grpc
from headrace.v1 import common_pb2 as pb
from headrace.v1 import controller_pb2 as cpb

Held = dict[tuple[bytes, int], pb.PartitionState]


class Disk:
    """What outlives a stand-in broker's process."""

    def __init__(self) -> None:
        self.id = uuid.uuid4()
        self.held: Held = {}


class StandInBroker(broker_pb2_grpc.BrokerControlServicer):
    def __init__(self, broker: int, registry: Registry, keys: Keys, ttl: float, disk: Disk | None = None) -> None:
        self.id = broker
        self.disk = disk or Disk()
        self.epoch = 0
        self.controller_epoch = 0
        self.requests: list[bpb.LeaderAndIsrRequest | bpb.StopReplicaRequest] = []
        self.answers = asyncio.Event()
        """Cleared: requests are taken, but not answered."""
        self.answers.set()
        self._registry = registry
        self._key = keys.broker(broker)
        self._ttl = ttl
        self._session: Session | None = None
        self._rpc: RpcServer | None = None

    @property
    def held(self) -> Held:
        return self.disk.held

    @property
    def leads(self) -> int:
        return sum(state.leader == self.id for state in self.held.values())

    async def start(self) -> StandInBroker:
        def add(server: grpc.aio.Server) -> None:
            broker_pb2_grpc.add_BrokerControlServicer_to_server(self, server)

        self._rpc = await serve("127.0.0.1", 0, [("headrace.v1.BrokerControl", add)])
        self._session = await self._registry.session(self._ttl)
        about = Registration(
            id=str(self.id),
            host="127.0.0.1",
            ports={"grpc": self._rpc.port, "kafka": 9092},
            directory_id=str(self.disk.id),
            incarnation_id=uuid.uuid4().hex,
        )
        self.epoch = (await register(self._registry, self._session, self._key, about)).epoch
        return self

    async def stop(self) -> Disk:
        assert self._session
        assert self._rpc
        await self._session.close()
        await self._rpc.stop(0)
        return self.disk

    async def LeaderAndIsr(self, request: bpb.LeaderAndIsrRequest, context: Any) -> bpb.LeaderAndIsrResponse:
        self.requests.append(request)
        refusal = self._refusal(request)
        if refusal:
            return bpb.LeaderAndIsrResponse(error=refusal)
        told = {(topic.topic_id, state.partition): state for topic in request.topics for state in topic.partitions}
        if request.full:
            self.held.clear()
        self.held.update(told)
        await self.answers.wait()
        return bpb.LeaderAndIsrResponse()

    async def StopReplica(self, request: bpb.StopReplicaRequest, context: Any) -> bpb.StopReplicaResponse:
        self.requests.append(request)
        refusal = self._refusal(request)
        if refusal:
            return bpb.StopReplicaResponse(error=refusal)
        for gone in request.partitions:
            self.held.pop((gone.partition.topic_id, gone.partition.partition), None)
        await self.answers.wait()
        return bpb.StopReplicaResponse()

    def _refusal(self, request: bpb.LeaderAndIsrRequest | bpb.StopReplicaRequest) -> pb.Error | None:
        if request.controller_epoch < self.controller_epoch:
            return pb.Error(code=pb.STALE_CONTROLLER_EPOCH, message=f"{self.controller_epoch} is in force")
        self.controller_epoch = request.controller_epoch
        # Until its registration is confirmed to it, a broker does not know its own epoch.
        if request.broker_epoch != self.epoch:
            return pb.Error(code=pb.STALE_BROKER_EPOCH, message=f"{self.epoch} is in force")
        return None


class LittleCluster:
    """Starts things and stops them all at the end."""

    def __init__(self, connect: Callable[[], Awaitable[Registry]], name: str, ttl: float) -> None:
        self.connect = connect
        self.name = name
        self.ttl = ttl
        self.keys = Keys(name)
        self.controllers: dict[int, ControllerService] = {}
        self.registries: dict[int, Registry] = {}
        self.brokers: dict[int, StandInBroker] = {}
        self._admin: Registry | None = None
        self._stack = AsyncExitStack()

    async def admin(self) -> Registry:
        """A client of the registry that belongs to no process."""
        if self._admin is None:
            self._admin = await self.connect()
        return self._admin

    async def controller(self, number: int = 0, registry: Registry | None = None, **given: str) -> ControllerService:
        settings = Settings(
            {
                "node.id": str(number),
                "cluster.id": self.name,
                "grpc.listener": "127.0.0.1:0",
                "metrics.port": "0",
                "broker.session.timeout.ms": str(int(self.ttl * 1000)),
                **{name.replace("_", "."): value for name, value in given.items()},
            }
        )
        limits = Limits(
            ReignLimits(first_backoff=0.01, max_backoff=0.1),
            SenderLimits(request_timeout=2.0, first_backoff=0.01, max_backoff=0.1),
        )
        self.registries[number] = registry or await self.connect()
        service = ControllerService(settings, self.registries[number], limits=limits)
        await service.start()
        self.controllers[number] = service
        return service

    async def broker(self, number: int, disk: Disk | None = None) -> StandInBroker:
        broker = StandInBroker(number, await self.admin(), self.keys, self.ttl, disk)
        self.brokers[number] = await broker.start()
        return broker

    async def stop_broker(self, number: int) -> Disk:
        return await self.brokers.pop(number).stop()

    async def stop_controller(self, number: int) -> None:
        await self.controllers.pop(number).stop()

    async def active(self) -> ControllerService:
        """Waits for exactly one active controller."""
        await eventually(lambda: sum(service.active for service in self.controllers.values()) == 1)
        return next(service for service in self.controllers.values() if service.active)

    async def reign(self) -> Reign:
        return await (await self.active()).controller.reign()

    async def ask(self, method: str, request: Any, service: ControllerService | None = None) -> Any:
        """Calls a controller (the active one unless named) over gRPC; raises `KafkaError` for a status."""
        service = service or await self.active()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{service.port}") as channel:
            try:
                return await getattr(controller_pb2_grpc.ControllerStub(channel), method)(request, timeout=20)
            except grpc.aio.AioRpcError as failed:
                raise kafka_error_of(failed) from None

    async def create(self, name: str, partitions: int = 1, factor: int = 1, **configs: str) -> cpb.TopicResult:
        new = cpb.CreateTopicsRequest.NewTopic(name=name, partitions=partitions, replication_factor=factor)
        new.configs.update({key.replace("_", "."): value for key, value in configs.items()})
        response = await self.ask("CreateTopics", cpb.CreateTopicsRequest(topics=[new], timeout_ms=10_000))
        return response.topics[0]

    async def delete(self, name: str) -> cpb.TopicResult:
        asked = cpb.DeleteTopicsRequest(topics=[pb.TopicPartition(topic=name)], timeout_ms=10_000)
        return (await self.ask("DeleteTopics", asked)).topics[0]

    async def partition(self, name: str, index: int = 0) -> pb.PartitionState:
        response = await self.ask("DescribeTopics", cpb.DescribeTopicsRequest(names=[name]))
        return response.topics[0].partitions[index]

    async def close(self) -> None:
        for broker in self.brokers.values():
            broker.answers.set()
        for number in list(self.controllers):
            await self.stop_controller(number)
        for number in list(self.brokers):
            await self.stop_broker(number)
        for registry in self.registries.values():
            await registry.close()
        if self._admin is not None:
            await self._admin.close()


async def eventually(holds: Callable[[], bool], within: float = 15.0) -> None:
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline, f"not within {within:g} s"
        await asyncio.sleep(0.01)
