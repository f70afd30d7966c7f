"""DescribeLogDirs: a coordinator has none.

Versions 1 to 4. Tools that ask every node they know get an empty list.
"""

from __future__ import annotations

from typing import Any

from headrace.coordinator.coordinator import Coordinator
from headrace.errors import ErrorCode
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey


@handles(ApiKey.DESCRIBE_LOG_DIRS, versions=(1, 4))
def describe_log_dirs(coordinator: Coordinator, context: Context, request: Any) -> dict[str, Any]:
    return {"throttle_time": 0, "error_code": ErrorCode.NONE, "results": []}
