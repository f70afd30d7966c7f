"""FindCoordinator: the process that owns a consumer group.

Versions 0 to 6, answered as a broker answers it.
"""

from __future__ import annotations

from typing import Any

from headrace.coordinator.coordinator import Coordinator
from headrace.wire.api import Context, handles
from headrace.wire.picture import find_coordinators
from headrace.wire.protocol import ApiKey


@handles(ApiKey.FIND_COORDINATOR, versions=(0, 6))
def find_coordinator(coordinator: Coordinator, context: Context, request: Any) -> dict[str, Any]:
    return find_coordinators(coordinator.image, context.version, request, context.connection.listener_name)
