"""The picture as gRPC messages, and back."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

from headrace.cluster.image import (
    NO_LEADER,
    BrokerChanged,
    BrokerConfigChanged,
    BrokerGone,
    Change,
    ControllerChanged,
    ControllerEpochChanged,
    CoordinatorChanged,
    CoordinatorGone,
    Delta,
    Endpoint,
    Image,
    Node,
    OffsetsOwner,
    OffsetsOwnerChanged,
    Partition,
    PartitionsChanged,
    Topic,
    TopicChanged,
    TopicConfigChanged,
    TopicGone,
    shared,
)
from headrace.v1 import common_pb2, metadata_pb2

_TOPIC = common_pb2.CONFIG_RESOURCE_TOPIC
_BROKER = common_pb2.CONFIG_RESOURCE_BROKER


def node_to_proto(node: Node) -> common_pb2.Node:
    message = common_pb2.Node(
        id=node.id,
        grpc=common_pb2.Endpoint(host=node.grpc.host, port=node.grpc.port),
        rack=node.rack,
        epoch=node.epoch,
        directory_id=node.directory_id.bytes if node.directory_id else b"",
    )
    if node.kafka is not None:
        message.kafka.host, message.kafka.port = node.kafka.host, node.kafka.port
    for name, endpoint in node.listeners:
        message.listeners.add(name=name, endpoint=common_pb2.Endpoint(host=endpoint.host, port=endpoint.port))
    return message


def node_from_proto(message: common_pb2.Node) -> Node:
    return Node(
        id=message.id,
        epoch=message.epoch,
        grpc=Endpoint(message.grpc.host, message.grpc.port),
        kafka=Endpoint(message.kafka.host, message.kafka.port) if message.HasField("kafka") else None,
        rack=message.rack,
        directory_id=uuid.UUID(bytes=message.directory_id) if message.directory_id else None,
        listeners=tuple((each.name, Endpoint(each.endpoint.host, each.endpoint.port)) for each in message.listeners),
    )


def partition_to_proto(index: int, partition: Partition) -> common_pb2.PartitionState:
    return common_pb2.PartitionState(
        partition=index,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=partition.isr,
        replicas=partition.replicas,
        adding=partition.adding,
        removing=partition.removing,
        partition_epoch=partition.partition_epoch,
        eligible_leader_replicas=partition.elr,
        last_known_elr=[r for r in (partition.last_known_leader,) if r != NO_LEADER],
    )


def partition_from_proto(message: common_pb2.PartitionState) -> Partition:
    """The state alone; its index stays in the message."""
    return Partition(
        message.leader,
        message.leader_epoch,
        shared(tuple(message.isr)),
        shared(tuple(message.replicas)),
        message.partition_epoch,
        tuple(message.adding),
        tuple(message.removing),
        tuple(message.eligible_leader_replicas),
        message.last_known_elr[0] if message.last_known_elr else NO_LEADER,
    )


def topic_to_proto(topic: Topic) -> common_pb2.Topic:
    return common_pb2.Topic(
        name=topic.name,
        topic_id=topic.id.bytes,
        partitions=[partition_to_proto(index, state) for index, state in enumerate(topic.partitions)],
        internal=topic.internal,
    )


def topic_from_proto(message: common_pb2.Topic) -> Topic:
    """A whole topic: its partitions come ordered by index."""
    return Topic(
        message.name, uuid.UUID(bytes=message.topic_id), tuple(partition_from_proto(p) for p in message.partitions)
    )


def snapshot_to_proto(image: Image, topics: Iterable[str] | None = None) -> metadata_pb2.Snapshot:
    """All of `image`, or with `topics` only those (and their settings) beside the nodes."""
    chosen, topic_configs = image.topics, image.topic_configs
    if topics is not None:
        chosen = {name: image.topics[name] for name in topics if name in image.topics}
        topic_configs = {name: image.topic_configs[name] for name in chosen if name in image.topic_configs}
    # Without a choice also the settings of topics that are not visible yet: no later change would bring them.
    configs = [_configs(_TOPIC, name, values) for name, values in topic_configs.items()]
    configs += [_configs(_BROKER, name, values) for name, values in image.broker_configs.items()]
    return metadata_pb2.Snapshot(
        revision=image.revision,
        cluster_id=image.cluster_id,
        brokers=map(node_to_proto, image.brokers.values()),
        coordinators=map(node_to_proto, image.coordinators.values()),
        controller=node_to_proto(image.controller) if image.controller else None,
        controller_epoch=image.controller_epoch,
        topics=map(topic_to_proto, chosen.values()),
        configs=configs,
        offsets_owners=[_owner_to_proto(index, owner) for index, owner in image.offsets_owners.items()],
    )


def image_from_proto(message: metadata_pb2.Snapshot) -> Image:
    topics = {topic.name: topic_from_proto(topic) for topic in message.topics}
    configs: dict[int, dict[str, dict[str, str]]] = {_TOPIC: {}, _BROKER: {}}
    for overrides in message.configs:
        configs.setdefault(overrides.resource.type, {})[overrides.resource.name] = dict(overrides.values)
    return Image(
        cluster_id=message.cluster_id,
        revision=message.revision,
        brokers={node.id: node_from_proto(node) for node in message.brokers},
        coordinators={node.id: node_from_proto(node) for node in message.coordinators},
        controller=node_from_proto(message.controller) if message.HasField("controller") else None,
        controller_epoch=message.controller_epoch,
        topics=topics,
        topic_names={topic.id: name for name, topic in topics.items()},
        topic_configs=configs[_TOPIC],
        broker_configs=configs[_BROKER],
        offsets_owners={o.partition: OffsetsOwner(o.coordinator, o.epoch) for o in message.offsets_owners},
    )


def delta_to_proto(delta: Delta) -> metadata_pb2.Delta:
    return metadata_pb2.Delta(revision=delta.revision, changes=map(change_to_proto, delta.changes))


def delta_from_proto(message: metadata_pb2.Delta) -> Delta:
    """What this version knows of a delta; kinds of change that came later are left out."""
    changes = (change_from_proto(change) for change in message.changes)
    return Delta(message.revision, tuple(change for change in changes if change is not None))


def change_to_proto(change: Change) -> metadata_pb2.Change:
    match change:
        case BrokerChanged(node):
            return metadata_pb2.Change(broker=node_to_proto(node))
        case BrokerGone(broker):
            return metadata_pb2.Change(broker_gone=broker)
        case CoordinatorChanged(node):
            return metadata_pb2.Change(coordinator=node_to_proto(node))
        case CoordinatorGone(coordinator):
            return metadata_pb2.Change(coordinator_gone=coordinator)
        case ControllerChanged(controller):
            return metadata_pb2.Change(controller=node_to_proto(controller) if controller else common_pb2.Node())
        case ControllerEpochChanged(epoch):
            return metadata_pb2.Change(controller_epoch=epoch)
        case TopicChanged(topic):
            return metadata_pb2.Change(topic=topic_to_proto(topic))
        case TopicGone(topic_id):
            return metadata_pb2.Change(topic_gone=topic_id.bytes)
        case PartitionsChanged(topic_id, partitions):
            states = [partition_to_proto(index, state) for index, state in partitions.items()]
            return metadata_pb2.Change(
                partitions=metadata_pb2.PartitionChange(topic_id=topic_id.bytes, partitions=states)
            )
        case TopicConfigChanged(name, values):
            return metadata_pb2.Change(config=_configs(_TOPIC, name, values))
        case BrokerConfigChanged(name, values):
            return metadata_pb2.Change(config=_configs(_BROKER, name, values))
        case OffsetsOwnerChanged(partition, None):
            return metadata_pb2.Change(offsets_owner_gone=partition)
        case OffsetsOwnerChanged(partition, OffsetsOwner() as owner):
            return metadata_pb2.Change(offsets_owner=_owner_to_proto(partition, owner))
    raise TypeError(f"not a change: {change!r}")


def change_from_proto(message: metadata_pb2.Change) -> Change | None:
    """The change, or None for a kind that this version does not know."""
    match message.WhichOneof("change"):
        case "broker":
            return BrokerChanged(node_from_proto(message.broker))
        case "broker_gone":
            return BrokerGone(message.broker_gone)
        case "coordinator":
            return CoordinatorChanged(node_from_proto(message.coordinator))
        case "coordinator_gone":
            return CoordinatorGone(message.coordinator_gone)
        case "controller":
            # An empty Node means that nobody is active; a real one always says where it is reached.
            active = message.controller.HasField("grpc")
            return ControllerChanged(node_from_proto(message.controller) if active else None)
        case "controller_epoch":
            return ControllerEpochChanged(message.controller_epoch)
        case "topic":
            return TopicChanged(topic_from_proto(message.topic))
        case "topic_gone":
            return TopicGone(uuid.UUID(bytes=message.topic_gone))
        case "partitions":
            states = {state.partition: partition_from_proto(state) for state in message.partitions.partitions}
            return PartitionsChanged(uuid.UUID(bytes=message.partitions.topic_id), states)
        case "config":
            return _config_change(message.config)
        case "offsets_owner":
            owner = message.offsets_owner
            return OffsetsOwnerChanged(owner.partition, OffsetsOwner(owner.coordinator, owner.epoch))
        case "offsets_owner_gone":
            return OffsetsOwnerChanged(message.offsets_owner_gone, None)
    return None


def _config_change(message: common_pb2.ConfigOverrides) -> Change | None:
    name, values = message.resource.name, dict(message.values)
    if message.resource.type == _TOPIC:
        return TopicConfigChanged(name, values)
    return BrokerConfigChanged(name, values) if message.resource.type == _BROKER else None


def _configs(
    kind: common_pb2.ConfigResourceType.ValueType, name: str, values: Mapping[str, str]
) -> common_pb2.ConfigOverrides:
    return common_pb2.ConfigOverrides(resource=common_pb2.ConfigResource(type=kind, name=name), values=dict(values))


def _owner_to_proto(partition: int, owner: OffsetsOwner) -> metadata_pb2.OffsetsOwner:
    return metadata_pb2.OffsetsOwner(partition=partition, coordinator=owner.coordinator, epoch=owner.epoch)
