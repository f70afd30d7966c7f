"""DeleteTopics: forwarded to the active controller.

Versions 1 to 6; by topic id from version 6 on. `delete.topic.enable=false` refuses with TOPIC_DELETION_DISABLED.
"""

from __future__ import annotations

import uuid
from typing import Any

from headrace.broker.broker import Broker, refused
from headrace.broker.handlers.forwarding import GRACE_SECONDS, refusal, seconds_of
from headrace.errors import ErrorCode, KafkaError
from headrace.rpc import request_header
from headrace.v1 import common_pb2
from headrace.v1 import controller_pb2 as pb
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey


def _wanted(context: Context, request: Any) -> list[tuple[str | None, uuid.UUID | None]]:
    if context.version >= 6:
        return [(topic.name, topic.topic_id) for topic in request.topics]
    return [(name, None) for name in request.topic_names]


def _refuse_all(context: Context, request: Any, error: KafkaError) -> dict[str, Any]:
    wanted = _wanted(context, request)
    return {
        "throttle_time": 0,
        "responses": [{"name": name, "topic_id": topic_id, **refused(error)} for name, topic_id in wanted],
    }


@handles(ApiKey.DELETE_TOPICS, versions=(1, 6), on_error=_refuse_all)
async def delete_topics(broker: Broker, context: Context, request: Any) -> dict[str, Any]:
    if not broker.config["delete.topic.enable"]:
        raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false on this cluster")
    wanted = _wanted(context, request)
    timeout = seconds_of(request.timeout)
    asked = pb.DeleteTopicsRequest(
        header=request_header(context.client_id or ""),
        topics=[common_pb2.TopicPartition(topic=n or "", topic_id=i.bytes if i else b"") for n, i in wanted],
        timeout_ms=int(timeout * 1000),
    )
    answer = await broker.controller.call(lambda c: c.DeleteTopics, asked, timeout + GRACE_SECONDS)
    return {
        "throttle_time": 0,
        "responses": [
            {
                "name": result.name or name,
                "topic_id": uuid.UUID(bytes=result.topic_id) if result.topic_id else topic_id,
                **refusal(result.error),
            }
            for (name, topic_id), result in zip(wanted, answer.topics, strict=True)
        ],
    }
