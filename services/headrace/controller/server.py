"""The controller service: the gRPC port in front of a controller.

Each call is one decision carried out by the term in force. What is refused as a whole becomes a status, what is
refused in part an `Error` in the answer. Brokers' own calls (AlterPartition, ControlledShutdown, producer ids) carry
the broker's epoch, and an old one is refused.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, Protocol, TypeVar

import grpc

from headrace.cluster.configs import Settings
from headrace.cluster.protos import topic_to_proto
from headrace.controller import configs, isr, leaders, reassignment, topics
from headrace.controller.controller import Controller, Limits
from headrace.controller.drain import drain
from headrace.controller.peers import GrpcPeers, Peers
from headrace.controller.plan import Plan, View
from headrace.controller.stats import Collector
from headrace.controller.topics import TopicRules
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Clock, Random, SystemClock
from headrace.registry.api import Registry
from headrace.rpc.channels import Channels
from headrace.rpc.errors import error_message, response_header
from headrace.rpc.metrics import MetricsServer
from headrace.rpc.server import RpcServer, Serve, serve
from headrace.v1 import common_pb2 as pb
from headrace.v1 import controller_pb2 as cpb
from headrace.v1 import controller_pb2_grpc

SERVICE = "headrace.v1.Controller"
Context = grpc.aio.ServicerContext[Any, Any]

HANDOVER_TIMEOUT = 1.0
"""Seconds that a stopping broker waits for those that take over to have heard of it."""


class _Answer(Protocol):
    @property
    def header(self) -> pb.ResponseHeader: ...


A = TypeVar("A", bound=_Answer)


def _signed(request: Any, response: A) -> A:
    response.header.CopyFrom(response_header(request))
    return response


class Servicer(controller_pb2_grpc.ControllerServicer):
    """Answers the Controller service's calls."""

    def __init__(self, controller: Controller, settings: Settings, random: Random) -> None:
        self._controller = controller
        self._settings = settings
        self._random = random

    async def CreateTopics(self, request: cpb.CreateTopicsRequest, context: Context) -> cpb.CreateTopicsResponse:
        def decide(view: View) -> tuple[Plan, cpb.CreateTopicsResponse]:
            plan, response = topics.create(view, request, self._rules(view), self._random)
            return (Plan() if request.validate_only else plan), response

        reign = await self._controller.reign()
        return _signed(request, await reign.change(decide, request.timeout_ms / 1000))

    async def DeleteTopics(self, request: cpb.DeleteTopicsRequest, context: Context) -> cpb.DeleteTopicsResponse:
        reign = await self._controller.reign()
        response = await reign.change(
            lambda view: topics.delete(view, request, self._rules(view)), request.timeout_ms / 1000
        )
        return _signed(request, response)

    async def CreatePartitions(
        self, request: cpb.CreatePartitionsRequest, context: Context
    ) -> cpb.CreatePartitionsResponse:
        def decide(view: View) -> tuple[Plan, cpb.CreatePartitionsResponse]:
            plan, response = topics.grow(view, request, self._random)
            return (Plan() if request.validate_only else plan), response

        reign = await self._controller.reign()
        return _signed(request, await reign.change(decide, request.timeout_ms / 1000))

    async def DescribeTopics(self, request: cpb.DescribeTopicsRequest, context: Context) -> cpb.DescribeTopicsResponse:
        image = (await (await self._controller.reign()).current()).image
        response = cpb.DescribeTopicsResponse()
        for name in request.names or sorted(image.topics):
            if name in image.topics:
                response.topics.append(topic_to_proto(image.topics[name]))
            else:
                missing = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
                response.errors[name].CopyFrom(error_message(missing))
        return _signed(request, response)

    async def DescribeConfigs(
        self, request: cpb.DescribeConfigsRequest, context: Context
    ) -> cpb.DescribeConfigsResponse:
        view = await (await self._controller.reign()).current()
        return _signed(request, configs.describe(view, request, self._settings))

    async def AlterConfigs(self, request: cpb.AlterConfigsRequest, context: Context) -> cpb.AlterConfigsResponse:
        def decide(view: View) -> tuple[Plan, cpb.AlterConfigsResponse]:
            plan, response = configs.alter(view, request, self._settings)
            return (Plan() if request.validate_only else plan), response

        reign = await self._controller.reign()
        return _signed(request, await reign.change(decide))

    async def ElectLeaders(self, request: cpb.ElectLeadersRequest, context: Context) -> cpb.ElectLeadersResponse:
        reign = await self._controller.reign()
        return _signed(request, await reign.change(lambda view: leaders.elect(view, request)))

    async def AlterPartitionReassignments(
        self, request: cpb.AlterPartitionReassignmentsRequest, context: Context
    ) -> cpb.AlterPartitionReassignmentsResponse:
        reign = await self._controller.reign()
        return _signed(request, await reign.change(lambda view: reassignment.alter(view, request)))

    async def ListPartitionReassignments(
        self, request: cpb.ListPartitionReassignmentsRequest, context: Context
    ) -> cpb.ListPartitionReassignmentsResponse:
        view = await (await self._controller.reign()).current()
        return _signed(request, reassignment.under_way(view, request))

    async def DrainBroker(self, request: cpb.DrainBrokerRequest, context: Context) -> cpb.DrainBrokerResponse:
        reign = await self._controller.reign()
        return _signed(request, await reign.change(lambda view: drain(view, request)))

    async def ReportFailedReplicas(
        self, request: cpb.ReportFailedReplicasRequest, context: Context
    ) -> cpb.ReportFailedReplicasResponse:
        reign = await self._controller.reign()
        response = cpb.ReportFailedReplicasResponse()
        try:
            isr.check_broker(await reign.current(), request.broker_id, request.broker_epoch)
        except KafkaError as refused:
            if refused.code is ErrorCode.NOT_CONTROLLER:
                raise
            response.error.CopyFrom(error_message(refused))
            return _signed(request, response)
        failed = [(uuid.UUID(bytes=p.topic_id), p.partition) for p in request.partitions]
        reign.replicas_failed(request.broker_id, request.broker_epoch, failed)
        return _signed(request, response)

    async def AlterPartition(self, request: cpb.AlterPartitionRequest, context: Context) -> cpb.AlterPartitionResponse:
        reign = await self._controller.reign()
        return _signed(request, await reign.change(lambda view: isr.alter(view, request)))

    async def ControlledShutdown(
        self, request: cpb.ControlledShutdownRequest, context: Context
    ) -> cpb.ControlledShutdownResponse:
        reign = await self._controller.reign()
        response = cpb.ControlledShutdownResponse()
        try:
            isr.check_broker(await reign.current(), request.broker_id, request.broker_epoch)
        except KafkaError as refused:
            if refused.code is ErrorCode.NOT_CONTROLLER:
                raise
            response.error.CopyFrom(error_message(refused))
            return _signed(request, response)
        reign.stop_broker(request.broker_id, request.broker_epoch)
        remaining = await reign.change(lambda view: leaders.shut_down(view, request.broker_id), HANDOVER_TIMEOUT)
        response.remaining.extend(pb.TopicPartition(topic=name, partition=index) for name, index in remaining)
        return _signed(request, response)

    async def AllocateProducerIds(
        self, request: cpb.AllocateProducerIdsRequest, context: Context
    ) -> cpb.AllocateProducerIdsResponse:
        reign = await self._controller.reign()
        response = cpb.AllocateProducerIdsResponse()
        try:
            isr.check_broker(await reign.current(), request.broker_id, request.broker_epoch)
            response.first, response.count = await reign.allocate_producer_ids()
        except KafkaError as refused:
            if refused.code is ErrorCode.NOT_CONTROLLER:
                raise
            response.error.CopyFrom(error_message(refused))
        return _signed(request, response)

    def _rules(self, view: View) -> TopicRules:
        return TopicRules(
            num_partitions=self._settings["num.partitions"],
            replication_factor=self._settings["default.replication.factor"],
            deletion_enabled=self._settings["delete.topic.enable"],
            overrides=lambda asked: configs.new_overrides(asked, view.image, self._settings),
        )


class ControllerService:
    """A controller with its gRPC port, for a process of its own or as a part of a larger one."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        peers: Peers | None = None,
        limits: Limits | None = None,
        channels: Channels | None = None,
        serve: Serve = serve,
    ) -> None:
        self._settings = settings
        self._random = random or Random()
        self._channels = channels or Channels()
        self._serve = serve
        peers = peers or GrpcPeers(self._channels, f"controller-{settings.node_id}")
        self.controller = Controller(settings, registry, peers, clock or SystemClock(), limits)
        self._rpc: RpcServer | None = None
        self._task: asyncio.Task[None] | None = None
        self._metrics: MetricsServer | None = None

    @property
    def metrics_port(self) -> int:
        """Where Prometheus scrapes it; 0: nowhere."""
        return self._metrics.port if self._metrics else 0

    @property
    def port(self) -> int:
        """The gRPC port that was bound."""
        return self._rpc.port if self._rpc else 0

    @property
    def active(self) -> bool:
        return self.controller.active

    async def start(self) -> None:
        """Listens and runs for election. A standby is healthy, too: it answers with where the active one is."""
        servicer = Servicer(self.controller, self._settings, self._random)
        listen, advertised = self._settings.grpc, self._settings.advertised_grpc
        self._rpc = await self._serve(
            listen.host,
            listen.port,
            [(SERVICE, lambda server: controller_pb2_grpc.add_ControllerServicer_to_server(servicer, server))],
        )
        self._serve_metrics()
        address = f"{advertised.host}:{advertised.port or self._rpc.port}"
        self._task = asyncio.create_task(self.controller.run(address), name=f"controller {self.controller.id}")

    def _serve_metrics(self) -> None:
        if port := self._settings["metrics.port"]:
            registry = self.controller.stats.registry
            registry.register(Collector(self.controller.image, self.controller.waiting))
            self._metrics = MetricsServer(self._settings.grpc.host, port, registry)

    async def stop(self) -> None:
        """Resigns, so that a standby takes over at once, and closes the port."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._rpc is not None:
            await self._rpc.stop()
        await self._channels.close()
        if self._metrics is not None:
            self._metrics.close()
