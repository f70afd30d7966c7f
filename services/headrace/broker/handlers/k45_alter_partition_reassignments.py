"""AlterPartitionReassignments: forwarded to the active controller (KIP-455).

Versions 0 to 1. Empty (null) replicas cancel a move: NO_REASSIGNMENT_IN_PROGRESS when there is none. From version 1
on a request can forbid that the replication factor changes (KIP-860): INVALID_REPLICATION_FACTOR.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker, refused
from headrace.broker.handlers.forwarding import GRACE_SECONDS, refusal, seconds_of
from headrace.errors import ErrorCode, KafkaError
from headrace.rpc import request_header
from headrace.v1 import common_pb2
from headrace.v1 import controller_pb2 as pb
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey


@handles(ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions=(0, 1))
async def alter_partition_reassignments(broker: Broker, context: Context, request: Any) -> dict[str, Any]:
    may_change_factor = getattr(request, "allow_replication_factor_change", True)
    asked = pb.AlterPartitionReassignmentsRequest(header=request_header(context.client_id or ""))
    results: dict[tuple[str, int], dict[str, Any]] = {}
    for topic in request.topics:
        for wanted in topic.partitions:
            key = (topic.name, wanted.partition_index)
            replicas = list(wanted.replicas or ())
            held = broker.image.partition(*key)
            if held is not None and replicas and not may_change_factor and len(replicas) != len(_settled(held)):
                error = KafkaError(
                    ErrorCode.INVALID_REPLICATION_FACTOR,
                    f"{topic.name}-{key[1]} has {len(_settled(held))} replicas, and the request forbids another number",
                )
                results[key] = refused(error)
                continue
            results[key] = {}
            asked.partitions.add(
                partition=common_pb2.TopicPartition(topic=topic.name, partition=wanted.partition_index),
                replicas=replicas,
            )
    if asked.partitions:
        timeout = seconds_of(request.timeout) + GRACE_SECONDS
        answer = await broker.controller.call(lambda c: c.AlterPartitionReassignments, asked, timeout)
        for result in answer.results:
            results[result.partition.topic, result.partition.partition] = refusal(result.error)
    topics: dict[str, list[dict[str, Any]]] = {}
    for (name, index), outcome in results.items():
        topics.setdefault(name, []).append({"partition_index": index, **outcome})
    return {
        "throttle_time": 0,
        "allow_replication_factor_change": may_change_factor,
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "responses": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
    }


def _settled(state: Any) -> list[int]:
    """The replicas a partition has when no move is under way, or had before it."""
    return [r for r in state.replicas if r not in state.adding]
