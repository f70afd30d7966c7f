"""DescribeGroups: classic groups with their members.

Versions 0 to 6. A group that is not there is Dead; from 6 on it is GROUP_ID_NOT_FOUND too (KIP-1043). Groups of the new
protocol are described by ConsumerGroupDescribe.
"""

from __future__ import annotations

from typing import Any

from headrace.coordinator.coordinator import Coordinator
from headrace.errors import ErrorCode
from headrace.wire.api import Context, handles
from headrace.wire.picture import NO_OPERATIONS
from headrace.wire.protocol import ApiKey


@handles(ApiKey.DESCRIBE_GROUPS, versions=(0, 6))
def describe_groups(coordinator: Coordinator, context: Context, request: Any) -> dict[str, Any]:
    return {
        "throttle_time": 0,
        "groups": [_describe(coordinator, context.version, group_id) for group_id in request.groups],
    }


def _describe(coordinator: Coordinator, version: int, group_id: str) -> dict[str, Any]:
    group = coordinator.describe_group(group_id)
    missing = group.error is ErrorCode.GROUP_ID_NOT_FOUND
    message = f"group {group_id} is not a classic group" if missing else None
    return {
        "error_code": ErrorCode.NONE if missing and version < 6 else group.error,
        "error_message": message,
        "group_id": group_id,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol_name,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
        "authorized_operations": NO_OPERATIONS,
    }
