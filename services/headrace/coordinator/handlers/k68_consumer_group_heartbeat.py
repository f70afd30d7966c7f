"""ConsumerGroupHeartbeat: joins, keeps alive, reconciles and leaves a group of the new protocol (KIP-848).

Versions 0 and 1; in 1 members choose their own id and may subscribe to a pattern. Assignments are made by the server
with the assignors uniform and range.
"""

from __future__ import annotations

from typing import Any

from headrace.coordinator.calls import ConsumerGroupHeartbeat, ConsumerGroupHeartbeatResponse, Partitions
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.handlers.answering import answer_with, by_topic, host_of, milliseconds
from headrace.wire.api import LATER, Context, handles
from headrace.wire.protocol import ApiKey


@handles(ApiKey.CONSUMER_GROUP_HEARTBEAT, versions=(0, 1))
def consumer_group_heartbeat(coordinator: Coordinator, context: Context, request: Any) -> object:
    owned: Partitions | None = None
    if request.topic_partitions is not None:
        owned = frozenset((each.topic_id, index) for each in request.topic_partitions for index in each.partitions)
    names = request.subscribed_topic_names
    coordinator.handle(
        ConsumerGroupHeartbeat(
            request.group_id,
            request.member_id,
            request.member_epoch,
            request.instance_id,
            request.rack_id,
            milliseconds(request.rebalance_timeout),
            None if names is None else tuple(names),
            request.subscribed_topic_regex if context.version >= 1 else None,
            request.server_assignor,
            owned,
            context.client_id or "",
            host_of(context),
            context.version,
            answer_with(context, _write),
        )
    )
    return LATER


def _write(response: ConsumerGroupHeartbeatResponse) -> dict[str, Any]:
    assignment = None
    if response.assignment is not None:
        topics = [{"topic_id": topic_id, "partitions": indexes} for topic_id, indexes in by_topic(response.assignment)]
        assignment = {"topic_partitions": topics}
    return {
        "throttle_time": 0,
        "error_code": response.error,
        "error_message": response.error_message,
        "member_id": response.member_id,
        "member_epoch": response.member_epoch,
        "heartbeat_interval": response.heartbeat_interval_ms,
        "assignment": assignment,
    }
