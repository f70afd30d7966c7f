"""The picture of the cluster in the words of Metadata and FindCoordinator, for every service that answers them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from headrace.cluster.coordination import coordinator_of
from headrace.cluster.image import NO_LEADER, Image, Node, Partition, Topic
from headrace.cluster.topics import check_name
from headrace.errors import ErrorCode, KafkaError

NO_OPERATIONS = -(2**31)
"""What Kafka sends where authorized operations were not asked for."""

FIRST_COORDINATOR_NODE = 1_000_000
"""Coordinators are nodes of Metadata too, with ids that no broker has. A client keeps only nodes that are in there:
librdkafka drops a coordinator that is not, and Java's admin client never finds it."""

GROUP = 0
"""The key type of a consumer group in FindCoordinator."""


def coordinator_node(coordinator_id: int) -> int:
    """The node id under which clients know a coordinator."""
    return FIRST_COORDINATOR_NODE + coordinator_id


def metadata(image: Image, wanted: Any, answering: int, listener: str) -> dict[str, Any]:
    """A Metadata response: all topics, or those `wanted`. `answering` is the broker named as the controller.

    `listener` is the one that the client came by: it is told the addresses of the same name, and of no other node.
    """
    reachable = {node.id: node for node in image.brokers.values() if node.kafka_by(listener) is not None}
    if wanted is None:
        topics = [describe(reachable, topic) for topic in image.topics.values()]
    else:
        topics = [_wanted(image, reachable, each) for each in wanted]
    return {
        "throttle_time": 0,
        "brokers": nodes(image, listener),
        "cluster_id": image.cluster_id,
        "controller_id": answering,
        "topics": topics,
        "cluster_authorized_operations": NO_OPERATIONS,
        "error_code": ErrorCode.NONE,
    }


def nodes(image: Image, listener: str) -> list[dict[str, Any]]:
    """Brokers and coordinators that a client which came by this listener can reach."""
    known = {node.id: node for node in image.brokers.values()}
    known |= {coordinator_node(node.id): node for node in image.coordinators.values()}
    return [
        {"node_id": node_id, "host": where.host, "port": where.port, "rack": node.rack or None}
        for node_id, node in known.items()
        if (where := node.kafka_by(listener)) is not None
    ]


def find_coordinators(image: Image, version: int, request: Any, listener: str) -> dict[str, Any]:
    """A FindCoordinator response to a client that came by this listener."""
    keys = request.coordinator_keys if version >= 4 else (request.key,)
    answers = [_find(image, getattr(request, "key_type", GROUP), key, listener) for key in keys]
    return {"throttle_time": 0, "coordinators": answers, **(answers[0] if answers else {})}


def _find(image: Image, key_type: int, key: str, listener: str) -> dict[str, Any]:
    try:
        if key_type != GROUP:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "transactions and share groups are not served")
        node = coordinator_of(image, key)
        at = node.kafka_by(listener)
        if at is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"coordinator {node.id} has no listener {listener}")
        where = {"node_id": coordinator_node(node.id), "host": at.host, "port": at.port}
        return {"key": key, **where, "error_code": ErrorCode.NONE, "error_message": None}
    except KafkaError as error:
        nowhere = {"node_id": -1, "host": "", "port": -1}
        return {"key": key, **nowhere, "error_code": error.code, "error_message": error.message}


def _wanted(image: Image, reachable: Mapping[int, Node], wanted: Any) -> dict[str, Any]:
    topic_id = getattr(wanted, "topic_id", None)
    if wanted.name is None and topic_id is not None:
        topic = image.topic_by_id(topic_id)
        if topic is None:
            return _missing(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id)
    else:
        topic = image.topics.get(wanted.name)
        if topic is None:
            return _missing(why_missing(wanted.name), wanted.name, None)
    return describe(reachable, topic)


def why_missing(name: str) -> ErrorCode:
    """INVALID_TOPIC_EXCEPTION for a name that no topic can have."""
    try:
        check_name(name)
    except KafkaError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _missing(code: ErrorCode, name: str | None, topic_id: uuid.UUID | None) -> dict[str, Any]:
    return {
        "error_code": code,
        "name": name or "",
        "topic_id": topic_id,
        "is_internal": False,
        "partitions": [],
        "topic_authorized_operations": NO_OPERATIONS,
    }


def describe(brokers: Mapping[int, Node], topic: Topic) -> dict[str, Any]:
    """A topic as Metadata shows it to a client that can reach these brokers."""
    return {
        "error_code": ErrorCode.NONE,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.internal,
        "partitions": [describe_partition(brokers, i, p) for i, p in enumerate(topic.partitions)],
        "topic_authorized_operations": NO_OPERATIONS,
    }


def describe_partition(brokers: Mapping[int, Node], index: int, partition: Partition) -> dict[str, Any]:
    alive = partition.leader in brokers
    return {
        "error_code": ErrorCode.NONE if alive else ErrorCode.LEADER_NOT_AVAILABLE,
        "partition_index": index,
        "leader_id": partition.leader if alive else NO_LEADER,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "offline_replicas": [r for r in partition.replicas if r not in brokers],
    }


def last_known_elr(partition: Partition) -> list[int]:
    """Who led a partition last that nobody leads."""
    return [] if partition.last_known_leader == NO_LEADER else [partition.last_known_leader]
