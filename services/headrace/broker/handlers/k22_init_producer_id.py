"""InitProducerId: an id and epoch for an idempotent producer.

Versions 0 to 5. A producer without a transactional id gets a new id each time it asks, as in Kafka. Transactions are
not served: UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey


@handles(ApiKey.INIT_PRODUCER_ID, versions=(0, 5))
async def init_producer_id(broker: Broker, context: Context, request: Any) -> dict[str, Any]:
    if request.transactional_id is not None:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "transactions are not served")
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE,
        "producer_id": await broker.producer_ids.next(),
        "producer_epoch": 0,
    }
