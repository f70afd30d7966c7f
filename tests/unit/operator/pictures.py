"""Small pictures of clusters for the tests."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from headrace.cluster.image import Endpoint, Image, Node, Partition, Topic

NAMESPACE = uuid.UUID(int=7)


def node(broker: int, rack: str = "") -> Node:
    return Node(broker, 1, Endpoint(f"b{broker}", 9094), Endpoint(f"b{broker}", 9092), rack)


def partition(
    replicas: Sequence[int],
    isr: Sequence[int] | None = None,
    leader: int | None = None,
    adding: Sequence[int] = (),
    removing: Sequence[int] = (),
) -> Partition:
    in_sync = tuple(replicas if isr is None else isr)
    first = leader if leader is not None else (in_sync[0] if in_sync else -1)
    return Partition(first, 0, in_sync, tuple(replicas), 0, tuple(adding), tuple(removing))


def topic(name: str, *partitions: Partition) -> Topic:
    return Topic(name, uuid.uuid5(NAMESPACE, name), partitions)


def image(
    brokers: Sequence[int] | Mapping[int, str],
    *topics: Topic,
    min_isr: int | None = None,
    configs: Mapping[str, Mapping[str, str]] | None = None,
) -> Image:
    racks = brokers if isinstance(brokers, Mapping) else dict.fromkeys(brokers, "")
    return Image(
        revision=1,
        brokers={b: node(b, rack) for b, rack in racks.items()},
        controller=node(0),
        topics={t.name: t for t in topics},
        topic_configs=dict(configs or {}),
        broker_configs={"": {"min.insync.replicas": str(min_isr)}} if min_isr else {},
    )
