"""DescribeCluster: the cluster's id and its brokers.

Versions 0 to 2. Only brokers are described (endpoint type 1): clients do not talk to controllers.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.api import Context, handles
from headrace.wire.picture import NO_OPERATIONS
from headrace.wire.protocol import ApiKey

BROKERS = 1


@handles(ApiKey.DESCRIBE_CLUSTER, versions=(0, 2))
def describe_cluster(broker: Broker, context: Context, request: Any) -> dict[str, Any]:
    if getattr(request, "endpoint_type", BROKERS) != BROKERS:
        raise KafkaError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "ask for brokers: controllers are not for clients")
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "endpoint_type": BROKERS,
        "cluster_id": broker.image.cluster_id,
        "controller_id": broker.id,
        "brokers": [
            {"broker_id": node.id, "host": at.host, "port": at.port, "rack": node.rack or None, "is_fenced": False}
            for node in broker.image.brokers.values()
            if (at := node.kafka_by(context.connection.listener_name)) is not None
        ],
        "cluster_authorized_operations": NO_OPERATIONS,
    }
