"""OffsetDelete: forgets how far a group has come in topics that nobody in it reads.

Version 0 (KIP-496). GROUP_SUBSCRIBED_TO_TOPIC for a topic that a member reads.
"""

from __future__ import annotations

from typing import Any

from headrace.coordinator.calls import OffsetDelete, OffsetDeleteResponse, TopicToFetch
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.handlers.answering import answer_with
from headrace.wire.api import LATER, Context, handles
from headrace.wire.protocol import ApiKey


@handles(ApiKey.OFFSET_DELETE, versions=(0, 0))
def offset_delete(coordinator: Coordinator, context: Context, request: Any) -> object:
    topics = [TopicToFetch(topic.name, [p.partition_index for p in topic.partitions]) for topic in request.topics]
    coordinator.handle(OffsetDelete(request.group_id, topics, answer_with(context, _write)))
    return LATER


def _write(response: OffsetDeleteResponse) -> dict[str, Any]:
    return {
        "throttle_time": 0,
        "error_code": response.error,
        "topics": [
            {
                "name": topic.name,
                "partitions": [{"partition_index": index, "error_code": code} for index, code in topic.partitions],
            }
            for topic in response.topics
        ],
    }
