"""SyncGroup: the leader of a classic group hands out the assignment, everyone gets a share.

Versions 0 to 5; 3 brings static members (KIP-345), 5 names protocol type and protocol (KIP-559).
"""

from __future__ import annotations

from typing import Any

from headrace.coordinator.calls import SyncGroup, SyncGroupResponse
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.handlers.answering import answer_with
from headrace.wire.api import LATER, Context, handles
from headrace.wire.protocol import ApiKey


@handles(ApiKey.SYNC_GROUP, versions=(0, 5))
def sync_group(coordinator: Coordinator, context: Context, request: Any) -> object:
    named = context.version >= 5
    coordinator.handle(
        SyncGroup(
            request.group_id,
            request.generation_id,
            request.member_id,
            request.group_instance_id if context.version >= 3 else None,
            request.protocol_type if named else None,
            request.protocol_name if named else None,
            {each.member_id: each.assignment for each in request.assignments},
            answer_with(context, _write),
        )
    )
    return LATER


def _write(response: SyncGroupResponse) -> dict[str, Any]:
    return {
        "throttle_time": 0,
        "error_code": response.error,
        "protocol_type": response.protocol_type,
        "protocol_name": response.protocol_name,
        "assignment": response.assignment,
    }
