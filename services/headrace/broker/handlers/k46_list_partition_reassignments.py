"""ListPartitionReassignments: the moves under way, asked of the active controller (KIP-455).

Version 0. Without topics every move is listed; partitions that do not move are left out.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.handlers.forwarding import GRACE_SECONDS, seconds_of
from headrace.errors import ErrorCode
from headrace.rpc import request_header
from headrace.v1 import common_pb2
from headrace.v1 import controller_pb2 as pb
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey


@handles(ApiKey.LIST_PARTITION_REASSIGNMENTS, versions=(0, 0))
async def list_partition_reassignments(broker: Broker, context: Context, request: Any) -> dict[str, Any]:
    named = [
        common_pb2.TopicPartition(topic=topic.name, partition=index)
        for topic in request.topics or ()
        for index in topic.partition_indexes
    ]
    topics: list[dict[str, Any]] = []
    if named or request.topics is None:
        asked = pb.ListPartitionReassignmentsRequest(header=request_header(context.client_id or ""), partitions=named)
        timeout = seconds_of(request.timeout) + GRACE_SECONDS
        answer = await broker.controller.call(lambda c: c.ListPartitionReassignments, asked, timeout)
        for topic in answer.topics:
            moving = [
                {
                    "partition_index": state.partition,
                    "replicas": list(state.replicas),
                    "adding_replicas": [r for r in state.adding if r not in state.removing],
                    "removing_replicas": list(state.removing),
                }
                for state in topic.partitions
            ]
            topics.append({"name": topic.name, "partitions": moving})
    return {"throttle_time": 0, "error_code": ErrorCode.NONE, "error_message": None, "topics": topics}
