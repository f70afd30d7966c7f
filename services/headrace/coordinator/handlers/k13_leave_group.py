"""LeaveGroup: members go, and the others rebalance at once.

Versions 0 to 5; from 3 on many may go at once, by member id or by group instance id (KIP-345), 5 says why (KIP-800).
"""

from __future__ import annotations

from typing import Any

from headrace.coordinator.calls import LeaveGroup, LeaveGroupResponse, LeavingMember
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.handlers.answering import answer_with
from headrace.errors import ErrorCode
from headrace.wire.api import LATER, Context, handles
from headrace.wire.protocol import ApiKey


@handles(ApiKey.LEAVE_GROUP, versions=(0, 5))
def leave_group(coordinator: Coordinator, context: Context, request: Any) -> object:
    if context.version >= 3:
        members = [LeavingMember(member.member_id, member.group_instance_id) for member in request.members]
    else:
        members = [LeavingMember(request.member_id)]

    def write(response: LeaveGroupResponse) -> dict[str, Any]:
        error = response.error
        if context.version < 3 and error is ErrorCode.NONE and response.members:
            error = response.members[0].error
        return {
            "throttle_time": 0,
            "error_code": error,
            "members": [
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.group_instance_id,
                    "error_code": member.error,
                }
                for member in response.members
            ],
        }

    coordinator.handle(LeaveGroup(request.group_id, members, answer_with(context, write)))
    return LATER
