"""Kafka's consumer protocol inside JoinGroup and SyncGroup: what a member subscribes to, and what it was assigned.

The coordinator of a classic group passes these bytes on unread, but it looks into them to know which topics a group
reads (so that their offsets are kept) and to convert a group between the classic and the consumer protocol.

Layout, big endian (int16 version first; a newer version only adds fields at the end):
  subscription: [topic] · userData bytes · v1: [(topic, [int32])] owned · v2: int32 generation · v3: nullable rack
  assignment:   [(topic, [int32])] · userData bytes
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

PROTOCOL_TYPE = "consumer"
_NEWEST = 3


class MalformedProtocol(ValueError):
    """The bytes are not Kafka's consumer protocol."""


@dataclass(frozen=True, slots=True)
class Subscription:
    version: int
    topics: tuple[str, ...]
    owned: tuple[tuple[str, int], ...] = ()
    rack_id: str | None = None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise MalformedProtocol(f"{size} bytes expected at {self._at}, there are {len(self._data) - self._at}")
        part = self._data[self._at : end]
        self._at = end
        return part

    def int16(self) -> int:
        return int(struct.unpack(">h", self._take(2))[0])

    def int32(self) -> int:
        return int(struct.unpack(">i", self._take(4))[0])

    def count(self, size: int) -> int:
        """The length of an array whose elements have at least `size` bytes, so that a lie costs no memory."""
        count = self.int32()
        if count < -1 or count * size > len(self._data) - self._at:
            raise MalformedProtocol(f"an array of {count} does not fit")
        return max(count, 0)

    def text(self) -> str | None:
        size = self.int16()
        if size == -1:
            return None
        try:
            return self._take(size).decode()
        except UnicodeDecodeError:
            raise MalformedProtocol("a name is not UTF-8") from None

    def name(self) -> str:
        if (name := self.text()) is None:
            raise MalformedProtocol("a topic has no name")
        return name

    def partitions(self) -> tuple[tuple[str, int], ...]:
        found: list[tuple[str, int]] = []
        for _ in range(self.count(6)):
            name = self.name()
            found += [(name, self.int32()) for _ in range(self.count(4))]
        return tuple(found)

    def skip_bytes(self) -> None:
        size = self.int32()
        if size > 0:
            self._take(size)

    def version(self) -> int:
        version = self.int16()
        if version < 0:
            raise MalformedProtocol(f"version {version}")
        return min(version, _NEWEST)


def read_subscription(data: bytes) -> Subscription:
    """What a member sent as metadata of a protocol; raises `MalformedProtocol`."""
    reader = _Reader(data)
    version = reader.version()
    topics = tuple(reader.name() for _ in range(reader.count(2)))
    reader.skip_bytes()
    owned = reader.partitions() if version >= 1 else ()
    if version >= 2:
        reader.int32()
    return Subscription(version, topics, owned, reader.text() if version >= 3 else None)


def subscription_version(data: bytes) -> int:
    """The version a member speaks; the oldest if its metadata cannot be read."""
    try:
        return _Reader(data).version()
    except MalformedProtocol:
        return 0


def read_assignment(data: bytes) -> tuple[tuple[str, int], ...]:
    """The partitions of an assignment; no bytes are no partitions. Raises `MalformedProtocol`."""
    if not data:
        return ()
    reader = _Reader(data)
    reader.version()
    return reader.partitions()


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def _partitions(partitions: Iterable[tuple[str, int]]) -> bytes:
    topics = [(name, [index for _, index in part]) for name, part in groupby(sorted(partitions), key=lambda p: p[0])]
    parts = [struct.pack(">i", len(topics))]
    for name, indexes in topics:
        parts.append(_text(name) + struct.pack(f">i{len(indexes)}i", len(indexes), *indexes))
    return b"".join(parts)


def write_assignment(version: int, partitions: Iterable[tuple[str, int]]) -> bytes:
    """An assignment in the version its reader speaks, with null user data."""
    return struct.pack(">h", version) + _partitions(partitions) + struct.pack(">i", -1)


def write_subscription(subscription: Subscription) -> bytes:
    """A subscription as a client writes it."""
    parts = [struct.pack(">hi", subscription.version, len(subscription.topics))]
    parts += [_text(topic) for topic in subscription.topics]
    parts.append(struct.pack(">i", -1))
    if subscription.version >= 1:
        parts.append(_partitions(subscription.owned))
    if subscription.version >= 2:
        parts.append(struct.pack(">i", -1))
    if subscription.version >= 3:
        parts.append(struct.pack(">h", -1) if subscription.rack_id is None else _text(subscription.rack_id))
    return b"".join(parts)
