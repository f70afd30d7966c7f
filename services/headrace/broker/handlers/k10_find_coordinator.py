"""FindCoordinator: the process that owns a consumer group.

Versions 0 to 6. Groups (key type 0) are answered from the ownership of the offsets topic; COORDINATOR_NOT_AVAILABLE
while nobody owns the group's partition. A coordinator's node id is a million and more, so that it is no broker's.
Transactions (1) and share groups (2) are not served: UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.wire.api import Context, handles
from headrace.wire.picture import find_coordinators
from headrace.wire.protocol import ApiKey


@handles(ApiKey.FIND_COORDINATOR, versions=(0, 6))
def find_coordinator(broker: Broker, context: Context, request: Any) -> dict[str, Any]:
    return find_coordinators(broker.image, context.version, request, context.connection.listener_name)
