"""Heartbeat: a member of a classic group is alive.

Versions 0 to 4; 3 brings static members (KIP-345). REBALANCE_IN_PROGRESS tells the member to join again.
"""

from __future__ import annotations

from typing import Any

from headrace.coordinator.calls import Heartbeat, HeartbeatResponse
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.handlers.answering import answer_with
from headrace.wire.api import LATER, Context, handles
from headrace.wire.protocol import ApiKey


@handles(ApiKey.HEARTBEAT, versions=(0, 4))
def heartbeat(coordinator: Coordinator, context: Context, request: Any) -> object:
    coordinator.handle(
        Heartbeat(
            request.group_id,
            request.generation_id,
            request.member_id,
            request.group_instance_id if context.version >= 3 else None,
            answer_with(context, _write),
        )
    )
    return LATER


def _write(response: HeartbeatResponse) -> dict[str, Any]:
    return {"throttle_time": 0, "error_code": response.error}
