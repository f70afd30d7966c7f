"""ListGroups: the groups of this coordinator.

Versions 0 to 5; 4 filters by state (KIP-518), 5 by type (KIP-848). COORDINATOR_LOAD_IN_PROGRESS while groups are still
being read.
"""

from __future__ import annotations

from typing import Any

from headrace.coordinator.coordinator import Coordinator
from headrace.errors import ErrorCode
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey


@handles(ApiKey.LIST_GROUPS, versions=(0, 5))
def list_groups(coordinator: Coordinator, context: Context, request: Any) -> dict[str, Any]:
    found = coordinator.list_groups(getattr(request, "states_filter", ()), getattr(request, "types_filter", ()))
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": group.type,
            }
            for group in found
        ],
    }
