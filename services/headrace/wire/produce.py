"""Produce (key 0) on the hot path: the request parsed by hand over one memoryview, the response written by hand.

Request v3–13:  transactional_id · acks int16 · timeout_ms int32 · [topic: name (v13: id) · [partition int32 · records]]
Response v3–13: [topic · [partition · error int16 · base_offset · log_append_time · log_start_offset (v5+)
                · record errors and message (v8+) · tag 0 current leader (v10+)]] · throttle_time_ms · tag 0 endpoints

Version notes: v9 is flexible; v10 tells a producer the new leader (KIP-951); v12 adds partitions to a transaction by
itself (KIP-890), in the same bytes; v13 has topic ids instead of names (KIP-516).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias
from uuid import UUID

from headrace.wire import primitives as p
from headrace.wire.errors import MalformedRequest
from headrace.wire.topics import (
    NodeEndpoint,
    check_count,
    grouped,
    leader_struct,
    read_topic,
    write_endpoints,
    write_topic,
)

LOWEST, HIGHEST = 3, 13
RECORD_ERRORS, FLEXIBLE, LEADERS, TOPIC_IDS = 8, 9, 10, 13
_ACKS_TIMEOUT = struct.Struct(">hi")
_INDEX = struct.Struct(">i")
_INDEX_SIZE = struct.Struct(">ii")
_INDEX_BYTE = struct.Struct(">iB")
_RESULT = struct.Struct(">ihqq")
_RESULT_START = struct.Struct(">ihqqq")
_ACCEPTED = struct.Struct(">ihqqqHB")
"""One partition's result without an error, in a flexible version: no record errors, no message, no tags."""
_ACCEPTED_V8 = struct.Struct(">ihqqqih")
"""The same in the last version that is not."""
_END = bytes(6)
"""The end of a response after its only topic: the topic's tags, no throttling, no tags."""
_NO_THROTTLING = bytes(4)
_LONGEST_HEAD = 300
"""A topic's name has at most 249 bytes, and what is longer is not kept."""
_MANY = 0x7F
"""From so many partitions on, their number takes more than a byte in the flexible versions."""
_NO_LEADER = (-1, -1)
Outcome: TypeAlias = tuple[str | UUID, int, object | None, int, int, int]
"""What came of one partition: topic, index, error, base offset, log append time, log start offset."""
_new_tuple = tuple.__new__


class PartitionRecords(NamedTuple):
    """The records for one partition: the frame's own memory, to be stamped and appended as it is."""

    topic: str | UUID
    partition: int
    records: memoryview | None


@dataclass(slots=True)
class ProduceRequest:
    """A parsed request. `topic` of a partition is its name, from v13 on its id."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: list[PartitionRecords]
    only_topic: bytes = b""
    """How the topic is written when there is one only: the response writes it the same way."""


class RecordError(NamedTuple):
    """Which record of a batch was refused."""

    batch_index: int
    message: str | None = None


@dataclass(slots=True)
class PartitionResult:
    """What came of one partition's records."""

    topic: str | UUID
    partition: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[RecordError] = ()
    error_message: str | None = None
    current_leader: tuple[int, int] = _NO_LEADER
    """Leader id and epoch, for NOT_LEADER_OR_FOLLOWER."""


class _Head(NamedTuple):
    """What comes before the first partition, in a request for one topic and without a transaction."""

    acks: int
    timeout_ms: int
    topic: str | UUID
    only_topic: bytes
    partitions: int


def parse_request(version: int, body: memoryview) -> ProduceRequest:
    """The request in `body`; what is wrong with it is a `MalformedRequest`."""
    flexible = version >= FLEXIBLE
    try:
        # Where the head ends if it is a usual one. A producer says the same one again and again.
        position = 25 if version >= TOPIC_IDS else 9 + body[8] if flexible else 18 + (body[12] << 8 | body[13])
        head = _usual_head(version, bytes(body[:position])) if position <= _LONGEST_HEAD else None
        if head is not None:
            acks, timeout_ms, topic, only_topic, count = head
            partitions: list[PartitionRecords] = []
            read = _flexible_partitions if flexible else _legacy_partitions
            position = read(body, position, topic, count, partitions)
            if flexible:
                p.skip_tags(body, p.skip_tags(body, position))
            return ProduceRequest(None, acks, timeout_ms, partitions, only_topic)
    except (MalformedRequest, struct.error, IndexError):
        pass  # what is wrong is said below
    return _parse_any(version, body)


@lru_cache(maxsize=4096)
def _usual_head(version: int, data: bytes) -> _Head | None:
    """The head that `data` is, to its last byte; None if it is none."""
    flexible, head = version >= FLEXIBLE, memoryview(data)
    try:
        transactional_id, position = p.read_nullable_string(head, 0, flexible)
        acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(head, position)
        topics, begin = p.read_array_length(head, position + 6, flexible)
        topic, end = read_topic(head, begin, flexible, version >= TOPIC_IDS)
        count, position = (head[end] - 1, end + 1) if flexible else (_INDEX.unpack_from(head, end)[0], end + 4)
    except (MalformedRequest, struct.error, IndexError):
        return None
    if transactional_id is not None or topics != 1 or position != len(data) or not 0 <= count < _MANY:
        return None
    return _Head(acks, timeout_ms, topic, data[begin:end], count)


def _parse_any(version: int, body: memoryview) -> ProduceRequest:
    flexible = version >= FLEXIBLE
    transactional_id, position = p.read_nullable_string(body, 0, flexible)
    only_topic = b""
    try:
        acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(body, position)
        topics, position = p.read_array_length(body, position + 6, flexible)
        partitions: list[PartitionRecords] = []
        for _ in range(topics):
            begin = position
            topic, position = read_topic(body, position, flexible, version >= TOPIC_IDS)
            if topics == 1:
                only_topic = bytes(body[begin:position])
            count, position = p.read_array_length(body, position, flexible)
            check_count(len(partitions) + count)
            read = _flexible_partitions if flexible else _legacy_partitions
            position = read(body, position, topic, count, partitions)
            if flexible:
                position = p.skip_tags(body, position)
    except (struct.error, IndexError):
        raise MalformedRequest("the Produce request ends too early") from None
    if flexible:
        p.skip_tags(body, position)
    return ProduceRequest(transactional_id, acks, timeout_ms, partitions, only_topic)


def _legacy_partitions(
    body: memoryview, position: int, topic: str | UUID, count: int, out: list[PartitionRecords]
) -> int:
    for _ in range(count):
        index, size = _INDEX_SIZE.unpack_from(body, position)
        position += 8
        if size < 0:
            if size != -1:
                raise MalformedRequest(f"records of {size} bytes")
            out.append(PartitionRecords(topic, index, None))
            continue
        end = position + size
        if end > len(body):
            raise MalformedRequest(f"records of {size} bytes with {len(body) - position} left")
        out.append(_new_tuple(PartitionRecords, (topic, index, body[position:end])))
        position = end
    return position


def _flexible_partitions(
    body: memoryview, position: int, topic: str | UUID, count: int, out: list[PartitionRecords]
) -> int:
    for _ in range(count):
        index, size = _INDEX_BYTE.unpack_from(body, position)
        position += 5
        if size:
            if size > 0x7F:
                size, position = p.read_uvarint(body, position - 1)
            end = position + size - 1
            if end > len(body):
                raise MalformedRequest(f"a length of {size - 1} with {len(body) - position} bytes left")
            out.append(_new_tuple(PartitionRecords, (topic, index, body[position:end])))
            position = end
        else:
            out.append(PartitionRecords(topic, index, None))
        position = position + 1 if not body[position] else p.skip_tags(body, position)
    return position


def write_response(
    version: int,
    results: Sequence[PartitionResult],
    throttle_time_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> bytearray:
    """The body of a response; neighbouring results of one topic become one topic."""
    flexible = version >= FLEXIBLE
    out = bytearray()
    groups = grouped(results)
    p.write_length(out, len(groups), flexible)
    for topic, group in groups:
        write_topic(out, topic, flexible, version >= TOPIC_IDS)
        p.write_length(out, len(group), flexible)
        for result in group:
            _write_result(out, version, result)
        if flexible:
            out.append(0)
    out += _INDEX.pack(throttle_time_ms)
    if flexible:
        write_endpoints(out, node_endpoints if version >= LEADERS else ())
    return out


def write_accepted(version: int, only_topic: bytes, results: Sequence[Outcome]) -> bytearray | None:
    """The usual response, from v8 on: `write_response` of partitions of one topic, if none of them has an error.

    The topic comes as it was read.
    """
    if version < FLEXIBLE:
        out = bytearray(b"\0\0\0\x01")
        out += only_topic
        out += _INDEX.pack(len(results))
        for _, partition, error, base_offset, append_time, log_start in results:
            if error is not None:
                return None
            out += _ACCEPTED_V8.pack(partition, 0, base_offset, append_time, log_start, 0, -1)
        out += _NO_THROTTLING
        return out
    out = bytearray(b"\x02")
    out += only_topic
    p.write_uvarint(out, len(results) + 1)
    for _, partition, error, base_offset, append_time, log_start in results:
        if error is not None:
            return None
        out += _ACCEPTED.pack(partition, 0, base_offset, append_time, log_start, 0x0100, 0)
    out += _END
    return out


def _write_result(out: bytearray, version: int, result: PartitionResult) -> None:
    head = (result.partition, result.error_code, result.base_offset, result.log_append_time_ms)
    if version < 5:
        out += _RESULT.pack(*head)
        return
    out += _RESULT_START.pack(*head, result.log_start_offset)
    if version < RECORD_ERRORS:
        return
    flexible = version >= FLEXIBLE
    p.write_length(out, len(result.record_errors), flexible)
    for index, message in result.record_errors:
        out += _INDEX.pack(index)
        p.write_string(out, message, flexible)
        if flexible:
            out.append(0)
    p.write_string(out, result.error_message, flexible)
    if not flexible:
        return
    if version >= LEADERS and result.current_leader != _NO_LEADER:
        out.append(1)
        p.write_tag(out, 0, leader_struct(result.current_leader))
    else:
        out.append(0)
