"""CreatePartitions: forwarded to the active controller.

Versions 0 to 3. A topic never gets fewer partitions: INVALID_PARTITIONS.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker, refused
from headrace.broker.handlers.forwarding import GRACE_SECONDS, refusal, seconds_of
from headrace.errors import KafkaError
from headrace.rpc import request_header
from headrace.v1 import controller_pb2 as pb
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey


def _refuse_all(context: Context, request: Any, error: KafkaError) -> dict[str, Any]:
    return {"throttle_time": 0, "results": [{"name": t.name, **refused(error)} for t in request.topics]}


@handles(ApiKey.CREATE_PARTITIONS, versions=(0, 3), on_error=_refuse_all)
async def create_partitions(broker: Broker, context: Context, request: Any) -> dict[str, Any]:
    timeout = seconds_of(request.timeout)
    asked = pb.CreatePartitionsRequest(
        header=request_header(context.client_id or ""),
        topics=[
            pb.CreatePartitionsRequest.Growth(
                name=topic.name,
                count=topic.count,
                assignments=[pb.ReplicaAssignment(replicas=a.broker_ids) for a in topic.assignments or ()],
            )
            for topic in request.topics
        ],
        validate_only=request.validate_only,
        timeout_ms=int(timeout * 1000),
    )
    answer = await broker.controller.call(lambda c: c.CreatePartitions, asked, timeout + GRACE_SECONDS)
    return {"throttle_time": 0, "results": [{"name": t.name, **refusal(t.error)} for t in answer.topics]}
