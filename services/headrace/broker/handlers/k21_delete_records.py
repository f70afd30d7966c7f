"""DeleteRecords: moves the start of a log forward.

Versions 0 to 2. -1 means the high watermark. A compacted topic refuses with POLICY_VIOLATION.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.offsets import delete_records as delete
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey


@handles(ApiKey.DELETE_RECORDS, versions=(0, 2))
def delete_records(broker: Broker, context: Context, request: Any) -> dict[str, Any]:
    def answer(topic: str, wanted: Any) -> dict[str, Any]:
        code, low = ErrorCode.NONE, -1
        try:
            low = delete(broker.replicas, topic, wanted.partition_index, wanted.offset)
        except KafkaError as error:
            code = error.code
        return {"partition_index": wanted.partition_index, "low_watermark": low, "error_code": code}

    return {
        "throttle_time": 0,
        "topics": [{"name": t.name, "partitions": [answer(t.name, p) for p in t.partitions]} for t in request.topics],
    }
