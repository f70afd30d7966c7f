"""Parts of topics as the gRPC contract writes them."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.cluster.image import Topic
from headrace.cluster.protos import partition_to_proto
from headrace.v1 import common_pb2 as pb


def topic_of(topic: Topic, indexes: Iterable[int]) -> pb.Topic:
    """A topic with some of its partitions."""
    return pb.Topic(
        name=topic.name,
        topic_id=topic.id.bytes,
        partitions=[partition_to_proto(index, topic.partitions[index]) for index in indexes],
        internal=topic.internal,
    )
