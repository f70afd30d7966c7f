"""ConsumerGroupDescribe: groups of the new protocol with their members and epochs (KIP-848).

Versions 0 and 1; 1 says of each member which protocol it speaks. GROUP_ID_NOT_FOUND for a classic group.
"""

from __future__ import annotations

from typing import Any

from headrace.cluster.image import Image
from headrace.coordinator.calls import Partitions
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.descriptions import DescribedConsumer
from headrace.coordinator.handlers.answering import by_topic
from headrace.errors import ErrorCode
from headrace.wire.api import Context, handles
from headrace.wire.picture import NO_OPERATIONS
from headrace.wire.protocol import ApiKey


@handles(ApiKey.CONSUMER_GROUP_DESCRIBE, versions=(0, 1))
def consumer_group_describe(coordinator: Coordinator, context: Context, request: Any) -> dict[str, Any]:
    return {"throttle_time": 0, "groups": [_describe(coordinator, group_id) for group_id in request.group_ids]}


def _describe(coordinator: Coordinator, group_id: str) -> dict[str, Any]:
    group = coordinator.describe_consumer_group(group_id)
    missing = group.error is ErrorCode.GROUP_ID_NOT_FOUND
    return {
        "error_code": group.error,
        "error_message": f"group {group_id} is not a consumer group" if missing else None,
        "group_id": group_id,
        "group_state": group.state,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor_name,
        "members": [_member(coordinator.image, member) for member in group.members],
        "authorized_operations": NO_OPERATIONS,
    }


def _member(image: Image, member: DescribedConsumer) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.subscribed_topic_names,
        "subscribed_topic_regex": member.subscribed_topic_regex,
        "assignment": _assignment(image, member.assignment),
        "target_assignment": _assignment(image, member.target_assignment),
        "member_type": member.member_type,
    }


def _assignment(image: Image, partitions: Partitions) -> dict[str, Any]:
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "topic_name": image.topic_names[topic_id], "partitions": indexes}
            for topic_id, indexes in by_topic(partitions)
            if topic_id in image.topic_names
        ]
    }
