"""Kafka's consumer protocol: subscriptions and shares as members of a group exchange them, so that members written in
other languages can be in the same group.

    subscription  int16 version, topics, user data, [v1: owned partitions], [v2: int32 generation], [v3: rack]
    assignment    int16 version, partitions by topic, user data
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from struct import error as StructError

from headrace.client.assignors import Subscription
from headrace.client.types import TopicPartition
from headrace.errors import ErrorCode, KafkaError

VERSION = 3
_INT16, _INT32 = Struct(">h"), Struct(">i")


def encode_subscription(subscription: Subscription) -> bytes:
    """What a member tells its leader.

    >>> decode_subscription(encode_subscription(Subscription(("orders",)))).topics
    ('orders',)
    """
    out = bytearray(_INT16.pack(VERSION))
    out += _INT32.pack(len(subscription.topics))
    for topic in subscription.topics:
        out += _string(topic)
    out += _nullable(subscription.user_data)
    out += _by_topic(subscription.owned)
    out += _INT32.pack(subscription.generation)
    out += _INT16.pack(-1)
    return bytes(out)


def decode_subscription(data: bytes, instance_id: str = "") -> Subscription:
    """What a member told: of any version, newer ones included."""
    reader = _Reader(data)
    try:
        version = reader.int16()
        topics = tuple(reader.string() for _ in range(reader.int32()))
        user_data = reader.nullable()
        owned = reader.partitions() if version >= 1 else ()
        generation = reader.int32() if version >= 2 else -1
    except (StructError, UnicodeDecodeError, ValueError):
        raise _damaged("subscription") from None
    return Subscription(topics, tuple(owned), generation, instance_id, user_data)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """What the leader gives a member.

    >>> decode_assignment(encode_assignment([TopicPartition("orders", 1)]))
    [TopicPartition(topic='orders', partition=1)]
    """
    return bytes(_INT16.pack(0) + _by_topic(partitions) + _nullable(None))


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """What a member was given; nothing at all is an empty share."""
    if not data:
        return []
    reader = _Reader(data)
    try:
        reader.int16()
        return list(reader.partitions())
    except (StructError, UnicodeDecodeError, ValueError):
        raise _damaged("assignment") from None


def _damaged(what: str) -> KafkaError:
    return KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"a member's {what} cannot be read: use one protocol")


def _string(text: str) -> bytes:
    encoded = text.encode()
    return _INT16.pack(len(encoded)) + encoded


def _nullable(data: bytes | None) -> bytes:
    return _INT32.pack(-1) if data is None else _INT32.pack(len(data)) + data


def _by_topic(partitions: Iterable[TopicPartition]) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    out = bytearray(_INT32.pack(len(topics)))
    for topic, indexes in topics.items():
        out += _string(topic)
        out += _INT32.pack(len(indexes))
        for index in indexes:
            out += _INT32.pack(index)
    return bytes(out)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, count: int) -> bytes:
        if count < 0 or self._at + count > len(self._data):
            raise ValueError("too short")
        self._at += count
        return self._data[self._at - count : self._at]

    def int16(self) -> int:
        return int(_INT16.unpack(self._take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self._take(4))[0])

    def string(self) -> str:
        return self._take(self.int16()).decode()

    def nullable(self) -> bytes | None:
        length = self.int32()
        return None if length < 0 else self._take(length)

    def partitions(self) -> tuple[TopicPartition, ...]:
        found = []
        for _ in range(self.int32()):
            topic = self.string()
            found += [TopicPartition(topic, self.int32()) for _ in range(self.int32())]
        return tuple(found)
