"""Which coordinator a consumer group belongs to: the owner of the group's partition of the offsets topic."""

from __future__ import annotations

import struct

from headrace.cluster.image import Image, Node
from headrace.cluster.topics import OFFSETS_TOPIC
from headrace.errors import ErrorCode, KafkaError


def java_hash(text: str) -> int:
    """Java's `String.hashCode`: over UTF-16 code units, as a signed 32-bit number.

    >>> java_hash("hello"), java_hash("polygenelubricants")
    (99162322, -2147483648)
    """
    encoded = text.encode("utf-16-le", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack("<H", encoded):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for(name: str, partitions: int) -> int:
    """The partition of a group in the offsets topic (or of a transactional id in its topic)."""
    hashed = java_hash(name)
    # Java cannot negate its smallest number; Kafka takes 0 for it.
    return (0 if hashed == -(1 << 31) else abs(hashed)) % partitions


def coordinator_of(image: Image, group_id: str) -> Node:
    """The live coordinator of `group_id`, or COORDINATOR_NOT_AVAILABLE, which tells clients to ask again."""
    topic = image.topics.get(OFFSETS_TOPIC)
    if topic is None:
        raise _not_available(f"{OFFSETS_TOPIC} does not exist yet")
    partition = partition_for(group_id, len(topic.partitions))
    owner = image.offsets_owners.get(partition)
    if owner is None:
        raise _not_available(f"nobody owns partition {partition} of {OFFSETS_TOPIC} yet")
    node = image.coordinators.get(owner.coordinator)
    if node is None:
        raise _not_available(f"coordinator {owner.coordinator}, which owns partition {partition}, is not alive")
    return node


def _not_available(text: str) -> KafkaError:
    return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
