"""Topics and partitions as the gRPC contract writes them."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.cluster.image import Partition, Topic
from headrace.v1 import common_pb2 as pb


def partition_state(index: int, state: Partition) -> pb.PartitionState:
    return pb.PartitionState(
        partition=index,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=state.isr,
        replicas=state.replicas,
        adding=state.adding,
        removing=state.removing,
        partition_epoch=state.partition_epoch,
    )


def topic_of(topic: Topic, indexes: Iterable[int]) -> pb.Topic:
    """A topic with some of its partitions."""
    return pb.Topic(
        name=topic.name,
        topic_id=topic.id.bytes,
        partitions=[partition_state(index, topic.partitions[index]) for index in indexes],
        internal=topic.internal,
    )
