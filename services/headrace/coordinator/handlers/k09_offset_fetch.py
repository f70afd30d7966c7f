"""OffsetFetch: how far groups have come.

Versions 1 to 10. From 2 on no topics means all of them, 5 adds leader epochs, 7 asks for stable offsets only (nothing
is ever unstable: there are no transactions yet), 8 asks for many groups (KIP-709), 9 brings member epochs (KIP-848), 10
names topics by id. What was not committed is -1.
"""

from __future__ import annotations

from typing import Any

from headrace.coordinator.calls import FetchedGroup, FetchedTopic, GroupToFetch, OffsetFetch, OffsetFetchResponse
from headrace.coordinator.calls import TopicToFetch as Topic
from headrace.coordinator.coordinator import Coordinator
from headrace.errors import ErrorCode
from headrace.wire.api import LATER, Context, handles
from headrace.wire.protocol import ApiKey


@handles(ApiKey.OFFSET_FETCH, versions=(1, 10))
def offset_fetch(coordinator: Coordinator, context: Context, request: Any) -> object:
    version = context.version

    def answer(response: OffsetFetchResponse) -> None:
        groups = [_group(group) for group in response.groups]
        if version < 8:
            context.complete({"throttle_time": 0, **_alone(version, request, response.groups[0], groups[0])})
        else:
            context.complete({"throttle_time": 0, "groups": groups})

    if version < 8:
        groups = [GroupToFetch(request.group_id, _topics(version, request.topics))]
    else:
        groups = [
            GroupToFetch(
                group.group_id,
                _topics(version, group.topics),
                group.member_id if version >= 9 else None,
                group.member_epoch if version >= 9 else -1,
            )
            for group in request.groups
        ]
    coordinator.fetch_offsets(OffsetFetch(groups, getattr(request, "require_stable", False), answer))
    return LATER


def _topics(version: int, topics: Any) -> list[Topic] | None:
    if topics is None:
        return None
    if version >= 10:
        return [Topic("", list(topic.partition_indexes), topic.topic_id) for topic in topics]
    return [Topic(topic.name, list(topic.partition_indexes)) for topic in topics]


def _alone(version: int, request: Any, group: FetchedGroup, written: dict[str, Any]) -> dict[str, Any]:
    """One group, before version 8. Version 1 has no error for all of it: each partition says it."""
    topics = written["topics"]
    if version == 1 and group.error is not ErrorCode.NONE:
        nothing = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": index, **nothing, "error_code": group.error}
                    for index in topic.partition_indexes
                ],
            }
            for topic in request.topics
        ]
    return {"topics": topics, "error_code": group.error}


def _group(group: FetchedGroup) -> dict[str, Any]:
    return {
        "group_id": group.group_id,
        "error_code": group.error,
        "topics": [_topic(topic) for topic in group.topics],
    }


def _topic(topic: FetchedTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "partitions": [
            {
                "partition_index": p.partition,
                "committed_offset": p.offset,
                "committed_leader_epoch": p.leader_epoch,
                "metadata": p.metadata,
                "error_code": p.error,
            }
            for p in topic.partitions
        ],
    }
