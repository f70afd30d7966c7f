"""DeleteGroups: deletes groups without members, with their offsets.

Versions 0 to 2. NON_EMPTY_GROUP while a group has members, GROUP_ID_NOT_FOUND when there is none.
"""

from __future__ import annotations

from typing import Any

from headrace.coordinator.calls import DeleteGroups, DeleteGroupsResponse
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.handlers.answering import answer_with
from headrace.wire.api import LATER, Context, handles
from headrace.wire.protocol import ApiKey


@handles(ApiKey.DELETE_GROUPS, versions=(0, 2))
def delete_groups(coordinator: Coordinator, context: Context, request: Any) -> object:
    coordinator.delete_groups(DeleteGroups(list(request.groups_names), answer_with(context, _write)))
    return LATER


def _write(response: DeleteGroupsResponse) -> dict[str, Any]:
    return {
        "throttle_time": 0,
        "results": [{"group_id": group_id, "error_code": code} for group_id, code in response.groups],
    }
