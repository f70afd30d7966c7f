"""OffsetForLeaderEpoch: where a leader epoch ended, for readers and followers that look for a divergence.

Versions 2 to 4 (KIP-320).
"""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.offsets import epoch_end
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey


@handles(ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=(2, 4))
def offset_for_leader_epoch(broker: Broker, context: Context, request: Any) -> dict[str, Any]:
    def answer(topic: str, wanted: Any) -> dict[str, Any]:
        code, epoch, end = ErrorCode.NONE, -1, -1
        try:
            current = wanted.current_leader_epoch
            epoch, end = epoch_end(broker.replicas, topic, wanted.partition, current, wanted.leader_epoch)
        except KafkaError as error:
            code = error.code
        return {"error_code": code, "partition": wanted.partition, "leader_epoch": epoch, "end_offset": end}

    return {
        "throttle_time": 0,
        "topics": [
            {"topic": t.topic, "partitions": [answer(t.topic, p) for p in t.partitions]} for t in request.topics
        ],
    }
