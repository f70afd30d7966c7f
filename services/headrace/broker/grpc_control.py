"""The controller's calls (BrokerControl) as gRPC brings them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from headrace.broker.control import Assignment, Failure, ReplicaControl, Word
from headrace.cluster.protos import partition_from_proto
from headrace.rpc.errors import error_message, response_header
from headrace.v1 import broker_pb2 as pb
from headrace.v1 import broker_pb2_grpc, common_pb2


class ControlService(broker_pb2_grpc.BrokerControlServicer):
    """See protos/headrace/v1/broker.proto."""

    def __init__(self, control: ReplicaControl) -> None:
        self._control = control

    async def LeaderAndIsr(self, request: pb.LeaderAndIsrRequest, context: Any) -> pb.LeaderAndIsrResponse:
        failures = await self._control.leader_and_isr(
            Word(request.controller_epoch, request.broker_epoch, request.number),
            self._assignments(request),
            full=request.full,
        )
        return pb.LeaderAndIsrResponse(header=response_header(request), partition_errors=_errors(failures))

    def _assignments(self, request: pb.LeaderAndIsrRequest) -> Iterator[Assignment]:
        """What is told; only what is new is decoded. A new controller tells each broker everything it holds."""
        knows = self._control.knows
        for topic in request.topics:
            name, topic_id = topic.name, uuid.UUID(bytes=topic.topic_id)
            for state in topic.partitions:
                known = knows(topic_id, state.partition, state.leader_epoch, state.partition_epoch)
                yield name, topic_id, state.partition, None if known else partition_from_proto(state)

    async def StopReplica(self, request: pb.StopReplicaRequest, context: Any) -> pb.StopReplicaResponse:
        stops = [
            (uuid.UUID(bytes=p.partition.topic_id), p.partition.partition, p.leader_epoch, p.delete)
            for p in request.partitions
        ]
        failures = await self._control.stop_replica(
            Word(request.controller_epoch, request.broker_epoch, request.number), stops
        )
        return pb.StopReplicaResponse(header=response_header(request), partition_errors=_errors(failures))


def _errors(failures: Iterable[Failure]) -> list[pb.PartitionError]:
    return [
        pb.PartitionError(
            partition=common_pb2.TopicPartition(topic=topic, topic_id=topic_id.bytes, partition=index),
            error=error_message(error),
        )
        for topic, topic_id, index, error in failures
    ]
