"""ListGroups: a broker has no groups.

Versions 0 to 5. Clients ask every node in Metadata and put the answers together; coordinators are among those nodes and
list the groups they own, each group once.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.errors import ErrorCode
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey


@handles(ApiKey.LIST_GROUPS, versions=(0, 5))
def list_groups(broker: Broker, context: Context, request: Any) -> dict[str, Any]:
    return {"throttle_time": 0, "error_code": ErrorCode.NONE, "groups": []}
