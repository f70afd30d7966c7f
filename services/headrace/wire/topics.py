"""What Produce and Fetch share: topics by name or by id, partitions grouped by topic, leaders and where they are."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar
from uuid import UUID

from headrace.wire import primitives as p
from headrace.wire.errors import MalformedRequest

MAX_PARTITIONS = 200_000
"""Partitions of one request: what a frame of many empty ones can grow into is bounded."""

_INDEX = struct.Struct(">i")
_LEADER = struct.Struct(">iib")


class OfTopic(Protocol):
    """Anything that belongs to a topic: named by name, in later versions by id."""

    @property
    def topic(self) -> str | UUID: ...


T = TypeVar("T", bound=OfTopic)


class NodeEndpoint(NamedTuple):
    """Where a leader named in a response is."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def check_count(count: int) -> None:
    """Refuse a request for too many partitions."""
    if count > MAX_PARTITIONS:
        raise MalformedRequest(f"more than {MAX_PARTITIONS} partitions in one request: split it")


def grouped(items: Iterable[T]) -> list[tuple[str | UUID, list[T]]]:
    """Neighbours of one topic together, in their order."""
    groups: list[tuple[str | UUID, list[T]]] = []
    for item in items:
        if groups and groups[-1][0] == item.topic:
            groups[-1][1].append(item)
        else:
            groups.append((item.topic, [item]))
    return groups


def read_topic(body: memoryview, position: int, flexible: bool, by_id: bool) -> tuple[str | UUID, int]:
    """A topic's id or name, whichever the version has."""
    return p.read_uuid(body, position) if by_id else p.read_string(body, position, flexible)


def write_topic(out: bytearray, topic: str | UUID, flexible: bool, by_id: bool) -> None:
    """A topic's id or name, whichever the version has."""
    if by_id:
        assert isinstance(topic, UUID), f"this version names topics by id, not {topic!r}"
        out += topic.bytes
    else:
        assert isinstance(topic, str), f"this version names topics by name, not {topic!r}"
        p.write_string(out, topic, flexible)


def write_endpoints(out: bytearray, endpoints: Sequence[NodeEndpoint]) -> None:
    """The last tags of a response: tag 0, the endpoints of the leaders named in it."""
    if not endpoints:
        out.append(0)
        return
    value = bytearray()
    p.write_uvarint(value, len(endpoints) + 1)
    for node_id, host, port, rack in endpoints:
        value += _INDEX.pack(node_id)
        p.write_string(value, host, True)
        value += _INDEX.pack(port)
        p.write_string(value, rack, True)
        value.append(0)
    out.append(1)
    p.write_tag(out, 0, value)


def leader_struct(leader: tuple[int, int]) -> bytes:
    """A LeaderIdAndEpoch with its empty tags."""
    return _LEADER.pack(leader[0], leader[1], 0)
