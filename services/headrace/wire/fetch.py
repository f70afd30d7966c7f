"""Fetch (key 1) on the hot path: requests parsed and responses written by hand (the client's side is `fetch_client`).
Records are never copied: in a response they are parts between the written bytes, which may be ranges of files.

Request v4–18:  replica_id (to v14) · max_wait_ms · min_bytes · max_bytes · isolation int8 · session id and epoch (v7+)
                · [topic: name (v13+: id) · [partition]] · forgotten topics (v7+) · rack_id (v11+)
                · tag 0 cluster id (v12+) · tag 1 replica state (v15+)
Response v4–18: throttle_time_ms · error and session id (v7+) · [topic · [partition · records]] · tag 0 endpoints (v16+)

Version notes: v5 log start offset (KIP-107); v7 sessions (KIP-227); v9 current leader epoch (KIP-320); v11 rack and
preferred read replica (KIP-392); v12 flexible, last fetched epoch and diverging epoch (KIP-595); v13 topic ids
(KIP-516); v15 replica state with its epoch (KIP-903); v16 endpoints of new leaders (KIP-951); v17 directory id
(KIP-853); v18 the follower's high watermark (KIP-1166).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from headrace.wire import primitives as p
from headrace.wire.errors import MalformedRequest
from headrace.wire.sending import MEMORY, Part
from headrace.wire.topics import (
    NodeEndpoint,
    check_count,
    grouped,
    leader_struct,
    read_topic,
    write_endpoints,
    write_topic,
)

LOWEST, HIGHEST = 4, 18
FLEXIBLE, TOPIC_IDS = 12, 13
MAX_INT64 = 0x7FFFFFFFFFFFFFFF

_HEAD_OLD = struct.Struct(">iiiib")
_HEAD_NEW = struct.Struct(">iiib")
_SESSION = struct.Struct(">ii")
_INDEX = struct.Struct(">i")
_REPLICA_STATE = struct.Struct(">iqb")
_EPOCH_END = struct.Struct(">iqb")
_ABORTED = struct.Struct(">qq")
_HEAD = struct.Struct(">ihq")
_NONE = (-1, -1)

# The fixed fields of a requested partition by version, in the order of `RequestedPartition`'s first numbers.
_PARTITION_4 = struct.Struct(">iqi")
_PARTITION_5 = struct.Struct(">iqqi")
_PARTITION_9 = struct.Struct(">iiqqi")
_PARTITION_12 = struct.Struct(">iiqiqi")


class RequestedPartition(NamedTuple):
    """What is asked of one partition."""

    topic: str | UUID
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    replica_directory_id: UUID | None = None
    high_watermark: int = MAX_INT64


class ForgottenPartition(NamedTuple):
    """A partition that leaves the fetch session."""

    topic: str | UUID
    partition: int


@dataclass(slots=True)
class FetchRequest:
    """A request of any version. `topic` of a partition is its name, from v13 on its id."""

    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 0x7FFFFFFF
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    partitions: list[RequestedPartition] = field(default_factory=list)
    forgotten: list[ForgottenPartition] = field(default_factory=list)
    rack_id: str = ""
    cluster_id: str | None = None
    replica_id: int = -1
    replica_epoch: int = -1


@dataclass(slots=True)
class PartitionResult:
    """What one partition answers. `records` is one part or a list of them."""

    topic: str | UUID
    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Part | list[Part] | None = b""
    aborted_transactions: Sequence[tuple[int, int]] | None = None
    """(producer id, first offset); None unless the reader is read_committed."""
    preferred_read_replica: int = -1
    diverging_epoch: tuple[int, int] = _NONE
    """(epoch, end offset)"""
    current_leader: tuple[int, int] = _NONE
    """(leader id, leader epoch)"""
    snapshot_id: tuple[int, int] = _NONE
    """(end offset, epoch): never sent, since there are no snapshots; kept where a response has one."""


def parse_request(version: int, body: memoryview) -> FetchRequest:
    """The request in `body`; what is wrong with it is a `MalformedRequest`."""
    try:
        return _parse_request(version, body)
    except struct.error:
        raise MalformedRequest("the Fetch request ends too early") from None


def _parse_request(version: int, body: memoryview) -> FetchRequest:
    flexible = version >= FLEXIBLE
    if version >= 15:
        request = FetchRequest(*_HEAD_NEW.unpack_from(body, 0))
        position = 13
    else:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation = _HEAD_OLD.unpack_from(body, 0)
        request = FetchRequest(max_wait_ms, min_bytes, max_bytes, isolation, replica_id=replica_id)
        position = 17
    if version >= 7:
        request.session_id, request.session_epoch = _SESSION.unpack_from(body, position)
        position += 8
    topics, position = p.read_array_length(body, position, flexible)
    for _ in range(topics):
        topic, position = read_topic(body, position, flexible, version >= TOPIC_IDS)
        count, position = p.read_array_length(body, position, flexible)
        check_count(len(request.partitions) + count)
        position = _read_partitions(version, body, position, topic, count, request.partitions)
        if flexible:
            position = p.skip_tags(body, position)
    if version >= 7:
        position = _read_forgotten(version, body, position, request)
    if version >= 11:
        request.rack_id, position = p.read_string(body, position, flexible)
    if flexible:
        _read_request_tags(version, body, position, request)
    return request


def _read_partitions(
    version: int, body: memoryview, position: int, topic: str | UUID, count: int, out: list[RequestedPartition]
) -> int:
    if version >= FLEXIBLE:
        return _read_flexible_partitions(version, body, position, topic, count, out)
    layout = _PARTITION_9 if version >= 9 else _PARTITION_5 if version >= 5 else _PARTITION_4
    size = layout.size
    for _ in range(count):
        values = layout.unpack_from(body, position)
        position += size
        if version >= 9:
            index, leader_epoch, offset, start, max_bytes = values
        elif version >= 5:
            index, offset, start, max_bytes = values
            leader_epoch = -1
        else:
            index, offset, max_bytes = values
            leader_epoch = start = -1
        out.append(RequestedPartition(topic, index, offset, max_bytes, leader_epoch, -1, start))
    return position


def _read_flexible_partitions(
    version: int, body: memoryview, position: int, topic: str | UUID, count: int, out: list[RequestedPartition]
) -> int:
    unpack, size = _PARTITION_12.unpack_from, _PARTITION_12.size
    for _ in range(count):
        index, leader_epoch, offset, fetched_epoch, start, max_bytes = unpack(body, position)
        position += size
        directory: UUID | None = None
        high_watermark = MAX_INT64
        if position < len(body) and body[position] == 0:
            position += 1
        else:
            tags, position = p.read_tags(body, position)
            for tag, begin, end in tags:
                if tag == 0 and version >= 17:
                    directory = p.read_uuid(body[:end], begin)[0]
                    directory = directory if directory.int else None
                elif tag == 1 and version >= 18:
                    high_watermark = p.INT64.unpack_from(body[:end], begin)[0]
        out.append(
            RequestedPartition(
                topic, index, offset, max_bytes, leader_epoch, fetched_epoch, start, directory, high_watermark
            )
        )
    return position


def _read_forgotten(version: int, body: memoryview, position: int, request: FetchRequest) -> int:
    flexible = version >= FLEXIBLE
    topics, position = p.read_array_length(body, position, flexible)
    for _ in range(topics):
        topic, position = read_topic(body, position, flexible, version >= TOPIC_IDS)
        count, position = p.read_array_length(body, position, flexible)
        check_count(len(request.forgotten) + count)
        indexes = struct.unpack_from(f">{count}i", body, position)
        position += 4 * count
        request.forgotten += [ForgottenPartition(topic, index) for index in indexes]
        if flexible:
            position = p.skip_tags(body, position)
    return position


def _read_request_tags(version: int, body: memoryview, position: int, request: FetchRequest) -> None:
    for tag, begin, end in p.read_tags(body, position)[0]:
        value = body[begin:end]
        if tag == 0:
            request.cluster_id = p.read_nullable_string(value, 0, True)[0]
        elif tag == 1 and version >= 15:
            request.replica_id, request.replica_epoch, _ = _REPLICA_STATE.unpack_from(value, 0)


# --- the response ------------------------------------------------------------------------------------------------


def write_response(
    version: int,
    results: Sequence[PartitionResult],
    error_code: int = 0,
    session_id: int = 0,
    throttle_time_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> list[Part]:
    """The parts of a response; neighbouring results of one topic become one topic."""
    flexible = version >= FLEXIBLE
    parts: list[Part] = []
    out = bytearray(_INDEX.pack(throttle_time_ms))
    if version >= 7:
        out += struct.pack(">hi", error_code, session_id)
    groups = grouped(results)
    p.write_length(out, len(groups), flexible)
    for topic, group in groups:
        write_topic(out, topic, flexible, version >= TOPIC_IDS)
        p.write_length(out, len(group), flexible)
        for result in group:
            out = _write_result(parts, out, version, result)
        if flexible:
            out.append(0)
    if flexible:
        write_endpoints(out, node_endpoints if version >= 16 else ())
    if out:
        parts.append(out)
    return parts


JOIN_BELOW = 1024
"""Records in memory smaller than this are copied into the bytes around them."""


def _write_result(parts: list[Part], out: bytearray, version: int, result: PartitionResult) -> bytearray:
    """Write one partition at the end of `out`; returns the bytearray that the next one goes into."""
    flexible = version >= FLEXIBLE
    out += _HEAD.pack(result.partition, result.error_code, result.high_watermark)
    out += p.INT64.pack(result.last_stable_offset)
    if version >= 5:
        out += p.INT64.pack(result.log_start_offset)
    aborted = result.aborted_transactions
    p.write_length(out, -1 if aborted is None else len(aborted), flexible)
    for producer_id, first_offset in aborted or ():
        out += _ABORTED.pack(producer_id, first_offset)
        if flexible:
            out.append(0)
    if version >= 11:
        out += _INDEX.pack(result.preferred_read_replica)
    out = _write_records(parts, out, result.records, flexible)
    if flexible:
        _write_result_tags(out, result)
    return out


def _write_records(parts: list[Part], out: bytearray, records: Part | list[Part] | None, flexible: bool) -> bytearray:
    if records is None:
        p.write_length(out, -1, flexible)
        return out
    pieces = records if isinstance(records, list) else [records]
    size = 0
    for piece in pieces:
        size += len(piece) if isinstance(piece, MEMORY) else piece.length
    p.write_length(out, size, flexible)
    for piece in pieces:
        if isinstance(piece, MEMORY) and len(piece) < JOIN_BELOW:
            out += piece
            continue
        if out:
            parts.append(out)
            out = bytearray()
        parts.append(piece)
    return out


def _write_result_tags(out: bytearray, result: PartitionResult) -> None:
    diverging = result.diverging_epoch != _NONE
    leader = result.current_leader != _NONE
    snapshot = result.snapshot_id != _NONE
    out.append(diverging + leader + snapshot)
    if diverging:
        p.write_tag(out, 0, _EPOCH_END.pack(*result.diverging_epoch, 0))
    if leader:
        p.write_tag(out, 1, leader_struct(result.current_leader))
    if snapshot:
        p.write_tag(out, 2, struct.pack(">qib", *result.snapshot_id, 0))
