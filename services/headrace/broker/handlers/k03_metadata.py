"""Metadata: brokers, topics and leaders, from this broker's picture of the cluster.

Versions 0 to 13. Any broker answers for the whole cluster. The controller named is the broker that answers: it forwards
what changes the cluster, so that clients need not reach the controller. A topic that is not there is created when
`auto.create.topics.enable` and the request allow it, and the answer waits until it can be used.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from headrace.broker.broker import Broker
from headrace.cluster.image import NO_LEADER, Image, Partition, Topic
from headrace.cluster.topics import check_name
from headrace.errors import ErrorCode, KafkaError
from headrace.rpc import request_header
from headrace.v1 import controller_pb2 as pb
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey

NO_OPERATIONS = -(2**31)
"""What Kafka sends where authorized operations were not asked for."""

AUTO_CREATE_SECONDS = 5.0


@handles(ApiKey.METADATA, versions=(0, 13))
async def metadata(broker: Broker, context: Context, request: Any) -> dict[str, Any]:
    wanted = request.topics
    if wanted is None or (context.version == 0 and not wanted):
        topics = [describe(broker.image, topic) for topic in broker.image.topics.values()]
    else:
        if getattr(request, "allow_auto_topic_creation", True) and broker.config["auto.create.topics.enable"]:
            await create_missing(broker, wanted, context.client_id or "")
        topics = [_wanted(broker.image, w) for w in wanted]
    return {
        "throttle_time": 0,
        "brokers": [
            {"node_id": n.id, "host": n.kafka.host, "port": n.kafka.port, "rack": n.rack or None}
            for n in broker.image.brokers.values()
            if n.kafka is not None
        ],
        "cluster_id": broker.image.cluster_id,
        "controller_id": broker.id,
        "topics": topics,
        "cluster_authorized_operations": NO_OPERATIONS,
        "error_code": ErrorCode.NONE,
    }


def _wanted(image: Image, wanted: Any) -> dict[str, Any]:
    topic_id = getattr(wanted, "topic_id", None)
    if wanted.name is None and topic_id is not None:
        topic = image.topic_by_id(topic_id)
        if topic is None:
            return _missing(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id)
    else:
        topic = image.topics.get(wanted.name)
        if topic is None:
            return _missing(_why_missing(wanted.name), wanted.name, None)
    return describe(image, topic)


def _why_missing(name: str) -> ErrorCode:
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


def describe(image: Image, topic: Topic) -> dict[str, Any]:
    """A topic as Metadata and DescribeTopicPartitions show it."""
    brokers = image.brokers
    return {
        "error_code": ErrorCode.NONE,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.internal,
        "partitions": [describe_partition(brokers, i, p) for i, p in enumerate(topic.partitions)],
        "topic_authorized_operations": NO_OPERATIONS,
    }


def describe_partition(brokers: Any, index: int, partition: Partition) -> dict[str, Any]:
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


async def create_missing(broker: Broker, wanted: Iterable[Any], client_id: str) -> None:
    """Creates the named topics that are not there; what cannot be created stays missing in the answer."""
    names = [w.name for w in wanted if w.name is not None and w.name not in broker.image.topics]
    legal = [name for name in names if _why_missing(name) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    if not legal:
        return
    topics = [pb.CreateTopicsRequest.NewTopic(name=name, partitions=-1, replication_factor=-1) for name in legal]
    request = pb.CreateTopicsRequest(
        header=request_header(client_id), topics=topics, timeout_ms=int(AUTO_CREATE_SECONDS * 1000)
    )
    try:
        await broker.controller.call(lambda c: c.CreateTopics, request, AUTO_CREATE_SECONDS)
        await broker.cluster.wait_for(lambda image: all(name in image.topics for name in legal), AUTO_CREATE_SECONDS)
    except KafkaError:
        return
