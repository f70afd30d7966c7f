"""ElectLeaders: forwarded to the active controller.

Versions 0 to 2. Election type 0 makes the preferred replica the leader, 1 allows one that is not in sync.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.handlers.forwarding import GRACE_SECONDS, refusal, seconds_of
from headrace.errors import ErrorCode
from headrace.rpc import request_header
from headrace.v1 import common_pb2
from headrace.v1 import controller_pb2 as pb
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey

UNCLEAN = 1


@handles(ApiKey.ELECT_LEADERS, versions=(0, 2))
async def elect_leaders(broker: Broker, context: Context, request: Any) -> dict[str, Any]:
    asked = pb.ElectLeadersRequest(
        header=request_header(context.client_id or ""),
        unclean=getattr(request, "election_type", 0) == UNCLEAN,
        partitions=[
            common_pb2.TopicPartition(topic=t.topic, partition=index)
            for t in request.topic_partitions or ()
            for index in t.partitions
        ],
    )
    timeout = seconds_of(request.timeout) + GRACE_SECONDS
    answer = await broker.controller.call(lambda c: c.ElectLeaders, asked, timeout)
    topics: dict[str, list[dict[str, Any]]] = {}
    for result in answer.results:
        entry = {"partition_id": result.partition.partition, **refusal(result.error)}
        topics.setdefault(result.partition.topic, []).append(entry)
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE,
        "replica_election_results": [{"topic": t, "partition_result": parts} for t, parts in topics.items()],
    }
