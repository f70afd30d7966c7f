"""JoinGroup: enters a group of the classic protocol; answered when the group has formed.

Versions 0 to 9. 1 adds the rebalance timeout, from 4 on a new member is first told its id (KIP-394), 5 brings static
members (KIP-345), 8 a reason for people (KIP-800), 9 may tell a leader to leave the assignment as it is (KIP-814).
"""

from __future__ import annotations

from typing import Any

from headrace.coordinator.calls import JoinGroup, JoinGroupResponse
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.handlers.answering import answer_with, host_of, milliseconds
from headrace.wire.api import LATER, Context, handles
from headrace.wire.protocol import ApiKey


@handles(ApiKey.JOIN_GROUP, versions=(0, 9))
def join_group(coordinator: Coordinator, context: Context, request: Any) -> object:
    version = context.version

    def write(response: JoinGroupResponse) -> dict[str, Any]:
        return {
            "throttle_time": 0,
            "error_code": response.error,
            "generation_id": response.generation_id,
            "protocol_type": response.protocol_type,
            # It cannot be null before version 7.
            "protocol_name": response.protocol_name if version >= 7 else response.protocol_name or "",
            "leader": response.leader,
            "skip_assignment": response.skip_assignment,
            "member_id": response.member_id,
            "members": [
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.group_instance_id,
                    "metadata": member.metadata,
                }
                for member in response.members
            ],
        }

    session = milliseconds(request.session_timeout)
    coordinator.handle(
        JoinGroup(
            request.group_id,
            request.member_id,
            request.group_instance_id if version >= 5 else None,
            session,
            milliseconds(request.rebalance_timeout) if version >= 1 else session,
            request.protocol_type,
            tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
            context.client_id or "",
            host_of(context),
            version,
            answer_with(context, write),
        )
    )
    return LATER
