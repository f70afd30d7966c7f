"""ListOffsets: offsets by time, and the ends of the log.

Versions 1 to 11. -1 is the high watermark, -2 the log start, -3 the record with the largest timestamp (KIP-734), -4 the
local log start, which is the log start as there is no tiered storage, -5 the last tiered offset, which does not exist.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.offsets import OffsetFound, list_offset
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey


@handles(ApiKey.LIST_OFFSETS, versions=(1, 11))
def list_offsets(broker: Broker, context: Context, request: Any) -> dict[str, Any]:
    replica = request.replica_id >= 0

    def answer(topic: str, wanted: Any) -> dict[str, Any]:
        code, found = ErrorCode.NONE, OffsetFound()
        try:
            epoch = getattr(wanted, "current_leader_epoch", -1)
            found = list_offset(
                broker.replicas, topic, wanted.partition_index, wanted.timestamp, epoch, replica=replica
            )
        except KafkaError as error:
            code = error.code
        return {"partition_index": wanted.partition_index, "error_code": code, **found._asdict()}

    return {
        "throttle_time": 0,
        "topics": [{"name": t.name, "partitions": [answer(t.name, p) for p in t.partitions]} for t in request.topics],
    }
