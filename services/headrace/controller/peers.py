"""The controller's door to brokers: gRPC in a cluster, something else in a simulation."""

from __future__ import annotations

from typing import Protocol

import grpc

from headrace.cluster.image import Node
from headrace.rpc.channels import Channels, request_header
from headrace.rpc.errors import kafka_error_of
from headrace.v1 import broker_pb2 as bpb
from headrace.v1 import broker_pb2_grpc


class Peers(Protocol):
    """Calls to brokers. Each raises `KafkaError` when there is no answer within `timeout` seconds."""

    async def leader_and_isr(
        self, node: Node, request: bpb.LeaderAndIsrRequest, timeout: float
    ) -> bpb.LeaderAndIsrResponse: ...

    async def stop_replica(
        self, node: Node, request: bpb.StopReplicaRequest, timeout: float
    ) -> bpb.StopReplicaResponse: ...


class GrpcPeers:
    """Brokers behind their gRPC ports."""

    def __init__(self, channels: Channels, client_id: str) -> None:
        self._channels = channels
        self._client_id = client_id

    async def leader_and_isr(
        self, node: Node, request: bpb.LeaderAndIsrRequest, timeout: float
    ) -> bpb.LeaderAndIsrResponse:
        request.header.CopyFrom(request_header(self._client_id))
        try:
            return await self._stub(node).LeaderAndIsr(request, timeout=timeout)
        except grpc.aio.AioRpcError as failed:
            raise kafka_error_of(failed) from None

    async def stop_replica(
        self, node: Node, request: bpb.StopReplicaRequest, timeout: float
    ) -> bpb.StopReplicaResponse:
        request.header.CopyFrom(request_header(self._client_id))
        try:
            return await self._stub(node).StopReplica(request, timeout=timeout)
        except grpc.aio.AioRpcError as failed:
            raise kafka_error_of(failed) from None

    def _stub(self, node: Node) -> broker_pb2_grpc.BrokerControlAsyncStub:
        return broker_pb2_grpc.BrokerControlStub(self._channels.get(str(node.grpc)))
