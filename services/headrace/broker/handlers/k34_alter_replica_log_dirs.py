"""AlterReplicaLogDirs: moves replicas between the log directories of this broker (KIP-113).

Versions 1 to 2. LOG_DIR_NOT_FOUND for a directory that is none of the broker's, REPLICA_NOT_AVAILABLE for a partition
that is not here, KAFKA_STORAGE_ERROR when either side is offline. The answer says that a move began; DescribeLogDirs
shows how far it is. Kafka remembers the wish for a replica that comes later: that is not done.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey


@handles(ApiKey.ALTER_REPLICA_LOG_DIRS, versions=(1, 2))
def alter_replica_log_dirs(broker: Broker, context: Context, request: Any) -> dict[str, Any]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for wanted in request.dirs:
        for topic in wanted.topics:
            results = topics.setdefault(topic.name, [])
            for index in topic.partitions:
                results.append({"partition_index": index, "error_code": _move(broker, topic.name, index, wanted.path)})
    return {
        "throttle_time": 0,
        "results": [{"topic_name": name, "partitions": results} for name, results in topics.items()],
    }


def _move(broker: Broker, topic: str, index: int, path: str) -> ErrorCode:
    partition = broker.replicas.find(topic, index)
    if partition is None:
        return ErrorCode.REPLICA_NOT_AVAILABLE
    try:
        broker.moves.move(partition, path)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
