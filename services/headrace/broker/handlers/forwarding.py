"""How a handler passes a request on to the active controller and turns its answer back into Kafka's."""

from __future__ import annotations

from typing import Any

from headrace.errors import ErrorCode
from headrace.v1 import common_pb2

FORWARD_SECONDS = 30.0
"""How long a broker tries when the request does not say."""

GRACE_SECONDS = 5.0
"""How much longer than the request's own time the broker waits: the controller answers at its time's end."""


def seconds_of(timeout: Any) -> float:
    """A request's timeout field, which kio reads as a timedelta, in seconds."""
    return max(0.0, float(timeout.total_seconds()))


def refusal(error: common_pb2.Error) -> dict[str, Any]:
    """A controller's word on one topic, partition or resource."""
    return {"error_code": ErrorCode(error.code), "error_message": error.message or None}
