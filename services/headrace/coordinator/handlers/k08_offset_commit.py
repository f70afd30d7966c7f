"""OffsetCommit: stores how far a group has come.

Versions 2 to 10; the answer comes when the offsets are on every in-sync replica. From 7 on static members say who they
are (KIP-345), 8 is flexible, 9 takes member epochs of the new protocol (KIP-848), 10 names topics by id. Versions 2 to
4 may bring their own retention time. Offsets are kept by topic id in every version, so a topic that is deleted and made
again starts without any. Metadata is at most `offset.metadata.max.bytes`: OFFSET_METADATA_TOO_LARGE.
"""

from __future__ import annotations

from typing import Any

from headrace.coordinator.calls import OffsetCommit, OffsetCommitResponse, PartitionToCommit, TopicToCommit
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.handlers.answering import answer_with, milliseconds
from headrace.wire.api import LATER, Context, handles
from headrace.wire.protocol import ApiKey


@handles(ApiKey.OFFSET_COMMIT, versions=(2, 10))
def offset_commit(coordinator: Coordinator, context: Context, request: Any) -> object:
    epochs = context.version >= 6
    topics = [
        TopicToCommit(
            "" if context.version >= 10 else topic.name,
            [
                PartitionToCommit(
                    p.partition_index,
                    p.committed_offset,
                    p.committed_leader_epoch if epochs else -1,
                    p.committed_metadata or "",
                )
                for p in topic.partitions
            ],
            topic.topic_id if context.version >= 10 else None,
        )
        for topic in request.topics
    ]
    coordinator.handle(
        OffsetCommit(
            request.group_id,
            topics,
            request.generation_id_or_member_epoch,
            request.member_id,
            request.group_instance_id if context.version >= 7 else None,
            milliseconds(request.retention_time) if context.version <= 4 else -1,
            context.version,
            answer_with(context, _write),
        )
    )
    return LATER


def _write(response: OffsetCommitResponse) -> dict[str, Any]:
    return {
        "throttle_time": 0,
        "topics": [
            {
                "name": topic.name,
                "topic_id": topic.topic_id,
                "partitions": [{"partition_index": index, "error_code": code} for index, code in topic.partitions],
            }
            for topic in response.topics
        ],
    }
