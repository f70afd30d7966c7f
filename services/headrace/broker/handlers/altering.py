"""What AlterConfigs and IncrementalAlterConfigs share: both become one call of the controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.broker.broker import Broker, refused
from headrace.broker.handlers.forwarding import FORWARD_SECONDS, refusal
from headrace.errors import ErrorCode, KafkaError
from headrace.rpc import request_header
from headrace.v1 import common_pb2
from headrace.v1 import controller_pb2 as pb
from headrace.wire.api import Context

Kind = pb.AlterConfigsRequest.Kind


def refuse_all(context: Context, request: Any, error: KafkaError) -> dict[str, Any]:
    """The answer when nothing could even be forwarded."""
    return {
        "throttle_time": 0,
        "responses": [
            {"resource_type": r.resource_type, "resource_name": r.resource_name, **refused(error)}
            for r in request.resources
        ],
    }


async def alter(
    broker: Broker, context: Context, request: Any, *, replace: bool, kind: Callable[[Any], int]
) -> dict[str, Any]:
    for resource in request.resources:
        if resource.resource_type not in common_pb2.ConfigResourceType.values():
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"resource type {resource.resource_type} has no settings here")
    asked = pb.AlterConfigsRequest(
        header=request_header(context.client_id or ""),
        validate_only=request.validate_only,
        alterations=[
            pb.AlterConfigsRequest.Alteration(
                resource=common_pb2.ConfigResource(
                    type=common_pb2.ConfigResourceType.ValueType(r.resource_type), name=r.resource_name
                ),
                operations=[
                    pb.AlterConfigsRequest.Operation(
                        name=c.name, kind=Kind.ValueType(kind(c)), value=c.value if c.value is not None else ""
                    )
                    for c in r.configs
                ],
                replace=replace,
            )
            for r in request.resources
        ],
    )
    answer = await broker.controller.call(lambda c: c.AlterConfigs, asked, FORWARD_SECONDS)
    return {
        "throttle_time": 0,
        "responses": [
            {"resource_type": r.resource.type, "resource_name": r.resource.name, **refusal(r.error)}
            for r in answer.results
        ],
    }
