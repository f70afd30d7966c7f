"""DescribeTopicPartitions: topics with their partitions, a page at a time.

Version 0, with the eligible leader replicas of KIP-966.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.errors import ErrorCode
from headrace.wire.api import Context, handles
from headrace.wire.picture import NO_OPERATIONS, describe_partition, last_known_elr
from headrace.wire.protocol import ApiKey

MAX_PARTITIONS = 2000
"""As Kafka's max.request.partition.size.limit."""


@handles(ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions=(0, 0))
def describe_topic_partitions(broker: Broker, context: Context, request: Any) -> dict[str, Any]:
    image, cursor = broker.image, request.cursor
    names = sorted({t.name for t in request.topics} or image.topics)
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
    left = max(1, min(request.response_partition_limit, MAX_PARTITIONS))
    topics: list[dict[str, Any]] = []
    following = None
    for name in names:
        topic = image.topics.get(name)
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        if left == 0:
            following = {"topic_name": name, "partition_index": first}
            break
        if topic is None:
            topics.append(_topic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name, None, False, []))
            continue
        shown = range(first, min(len(topic.partitions), first + left))
        partitions = [
            describe_partition(image.brokers, i, state)
            | {"eligible_leader_replicas": state.elr, "last_known_elr": last_known_elr(state)}
            for i in shown
            for state in (topic.partitions[i],)
        ]
        topics.append(_topic(ErrorCode.NONE, name, topic.id, topic.internal, partitions))
        left -= len(partitions)
        if shown.stop < len(topic.partitions):
            following = {"topic_name": name, "partition_index": shown.stop}
            break
    return {"throttle_time": 0, "topics": topics, "next_cursor": following}


def _topic(code: ErrorCode, name: str, topic_id: Any, internal: bool, partitions: list[Any]) -> dict[str, Any]:
    return {
        "error_code": code,
        "name": name,
        "topic_id": topic_id,
        "is_internal": internal,
        "partitions": partitions,
        "topic_authorized_operations": NO_OPERATIONS,
    }
