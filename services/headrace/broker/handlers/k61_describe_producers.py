"""DescribeProducers: the idempotent producers that a partition's leader remembers.

Version 0 (KIP-664).
"""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import ACCEPTED, Broker, refused
from headrace.errors import KafkaError
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey


@handles(ApiKey.DESCRIBE_PRODUCERS, versions=(0, 0))
def describe_producers(broker: Broker, context: Context, request: Any) -> dict[str, Any]:
    def answer(topic: str, index: int) -> dict[str, Any]:
        producers: list[dict[str, Any]] = []
        outcome = ACCEPTED
        try:
            partition = broker.replicas.get(topic, index)
            partition.check_epoch(-1)
            producers = [
                {
                    "producer_id": producer_id,
                    "producer_epoch": producer.epoch,
                    "last_sequence": producer.last_sequence,
                    "last_timestamp": producer.timestamp,
                    "coordinator_epoch": -1,
                    "current_txn_start_offset": -1,
                }
                for producer_id, producer in partition.log.producers.producers.items()
            ]
        except KafkaError as error:
            outcome = refused(error)
        return {"partition_index": index, **outcome, "active_producers": producers}

    return {
        "throttle_time": 0,
        "topics": [
            {"name": t.name, "partitions": [answer(t.name, index) for index in t.partition_indexes]}
            for t in request.topics
        ],
    }
