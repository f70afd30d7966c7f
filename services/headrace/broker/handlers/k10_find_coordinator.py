"""FindCoordinator: the process that owns a consumer group.

Versions 0 to 6. Groups (key type 0) are answered from the ownership of the offsets topic; COORDINATOR_NOT_AVAILABLE
while nobody owns the group's partition. Transactions (1) and share groups (2) are not served: UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.cluster.coordination import coordinator_of
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey

GROUP = 0


@handles(ApiKey.FIND_COORDINATOR, versions=(0, 6))
def find_coordinator(broker: Broker, context: Context, request: Any) -> dict[str, Any]:
    keys = request.coordinator_keys if context.version >= 4 else (request.key,)
    answers = [_find(broker, getattr(request, "key_type", GROUP), key) for key in keys]
    return {"throttle_time": 0, "coordinators": answers, **(answers[0] if answers else {})}


def _find(broker: Broker, key_type: int, key: str) -> dict[str, Any]:
    try:
        if key_type != GROUP:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "transactions and share groups are not served")
        node = coordinator_of(broker.image, key)
        assert node.kafka is not None
        return {
            "key": key,
            "node_id": node.id,
            "host": node.kafka.host,
            "port": node.kafka.port,
            "error_code": ErrorCode.NONE,
            "error_message": None,
        }
    except KafkaError as error:
        return {
            "key": key,
            "node_id": -1,
            "host": "",
            "port": -1,
            "error_code": error.code,
            "error_message": error.message,
        }
