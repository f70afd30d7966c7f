"""CreateTopics: forwarded to the active controller.

Versions 2 to 7. The answer comes when every partition has a leader that knows it, or the timeout is over. From version
5 on it carries the new topic's settings (KIP-525). Internal topics are refused: INVALID_TOPIC_EXCEPTION.
"""

from __future__ import annotations

import uuid
from typing import Any

from headrace.broker.broker import Broker, refused
from headrace.broker.handlers.forwarding import GRACE_SECONDS, refusal, seconds_of
from headrace.cluster.configs import Entry
from headrace.cluster.topics import is_internal
from headrace.errors import ErrorCode, KafkaError
from headrace.rpc import request_header
from headrace.v1 import controller_pb2 as pb
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey

_INTERNAL = KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "an internal topic is its coordinator's to create")


def _refuse_all(context: Context, request: Any, error: KafkaError) -> dict[str, Any]:
    return {"throttle_time": 0, "topics": [{"name": t.name, **refused(error)} for t in request.topics]}


@handles(ApiKey.CREATE_TOPICS, versions=(2, 7), on_error=_refuse_all)
async def create_topics(broker: Broker, context: Context, request: Any) -> dict[str, Any]:
    timeout = seconds_of(request.timeout)
    ours = [topic.name for topic in request.topics if is_internal(topic.name)]
    asked = pb.CreateTopicsRequest(
        header=request_header(context.client_id or ""),
        topics=[_new_topic(topic) for topic in request.topics if topic.name not in ours],
        validate_only=request.validate_only,
        timeout_ms=int(timeout * 1000),
    )
    answer = await broker.controller.call(lambda c: c.CreateTopics, asked, timeout + GRACE_SECONDS)
    refusals = [{"name": name, **refused(_INTERNAL)} for name in ours]
    return {"throttle_time": 0, "topics": [*(_result(broker, t) for t in answer.topics), *refusals]}


def _new_topic(topic: Any) -> pb.CreateTopicsRequest.NewTopic:
    assignments = [pb.ReplicaAssignment(partition=a.partition_index, replicas=a.broker_ids) for a in topic.assignments]
    return pb.CreateTopicsRequest.NewTopic(
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=assignments,
        configs={c.name: c.value or "" for c in topic.configs},
    )


def _result(broker: Broker, topic: pb.TopicResult) -> dict[str, Any]:
    failed = bool(topic.error.code)
    return {
        "name": topic.name,
        "topic_id": uuid.UUID(bytes=topic.topic_id) if topic.topic_id else None,
        **refusal(topic.error),
        "topic_config_error_code": 0,
        "num_partitions": -1 if failed else topic.partitions,
        "replication_factor": -1 if failed else topic.replication_factor,
        "configs": None if failed else [_setting(entry) for entry in broker.topic_entries(topic.name)],
    }


def _setting(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": entry.value,
        "read_only": False,
        "config_source": entry.source,
        "is_sensitive": False,
    }
