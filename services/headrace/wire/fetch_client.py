"""The client's side of Fetch: requests written, responses parsed with the records left where they were received."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from headrace.wire import primitives as p
from headrace.wire.errors import MalformedRequest
from headrace.wire.fetch import (
    FLEXIBLE,
    MAX_INT64,
    TOPIC_IDS,
    FetchRequest,
    ForgottenPartition,
    PartitionResult,
    RequestedPartition,
)
from headrace.wire.topics import NodeEndpoint, grouped, read_topic, write_topic

_INDEX = struct.Struct(">i")


@dataclass(slots=True)
class FetchResponse:
    """A parsed response; `records` of a partition are memoryviews of its frame."""

    throttle_time_ms: int = 0
    error_code: int = 0
    session_id: int = 0
    partitions: list[PartitionResult] = field(default_factory=list)
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)


def write_request(version: int, request: FetchRequest) -> bytes:
    """The body of a request; neighbouring partitions of one topic become one topic."""
    flexible = version >= FLEXIBLE
    out = bytearray()
    if version < 15:
        out += _INDEX.pack(request.replica_id)
    out += struct.pack(">iiib", request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level)
    if version >= 7:
        out += struct.pack(">ii", request.session_id, request.session_epoch)
    groups = grouped(request.partitions)
    p.write_length(out, len(groups), flexible)
    for topic, partitions in groups:
        write_topic(out, topic, flexible, version >= TOPIC_IDS)
        p.write_length(out, len(partitions), flexible)
        for each in partitions:
            _write_partition(out, version, each)
        if flexible:
            out.append(0)
    if version >= 7:
        _write_forgotten(out, version, request.forgotten)
    if version >= 11:
        p.write_string(out, request.rack_id, flexible)
    if flexible:
        _write_request_tags(out, version, request)
    return bytes(out)


def _write_partition(out: bytearray, version: int, each: RequestedPartition) -> None:
    out += _INDEX.pack(each.partition)
    if version >= 9:
        out += _INDEX.pack(each.current_leader_epoch)
    out += p.INT64.pack(each.fetch_offset)
    if version >= 12:
        out += _INDEX.pack(each.last_fetched_epoch)
    if version >= 5:
        out += p.INT64.pack(each.log_start_offset)
    out += _INDEX.pack(each.max_bytes)
    if version < FLEXIBLE:
        return
    directory = each.replica_directory_id if version >= 17 else None
    known = version >= 18 and each.high_watermark != MAX_INT64
    out.append((directory is not None) + known)
    if directory is not None:
        p.write_tag(out, 0, directory.bytes)
    if known:
        p.write_tag(out, 1, p.INT64.pack(each.high_watermark))


def _write_forgotten(out: bytearray, version: int, forgotten: Sequence[ForgottenPartition]) -> None:
    flexible = version >= FLEXIBLE
    groups = grouped(forgotten)
    p.write_length(out, len(groups), flexible)
    for topic, partitions in groups:
        write_topic(out, topic, flexible, version >= TOPIC_IDS)
        p.write_length(out, len(partitions), flexible)
        out += struct.pack(f">{len(partitions)}i", *(each.partition for each in partitions))
        if flexible:
            out.append(0)


def _write_request_tags(out: bytearray, version: int, request: FetchRequest) -> None:
    tags = bytearray()
    count = 0
    if request.cluster_id is not None:
        value = bytearray()
        p.write_string(value, request.cluster_id, True)
        p.write_tag(tags, 0, value)
        count += 1
    if version >= 15 and (request.replica_id, request.replica_epoch) != (-1, -1):
        p.write_tag(tags, 1, struct.pack(">iqb", request.replica_id, request.replica_epoch, 0))
        count += 1
    out.append(count)
    out += tags


def parse_response(version: int, body: memoryview) -> FetchResponse:
    """The response in `body`, without copying its records."""
    try:
        return _parse_response(version, body)
    except struct.error:
        raise MalformedRequest("the Fetch response ends too early") from None


def _parse_response(version: int, body: memoryview) -> FetchResponse:
    flexible = version >= FLEXIBLE
    response = FetchResponse(_INDEX.unpack_from(body, 0)[0])
    position = 4
    if version >= 7:
        response.error_code, response.session_id = struct.unpack_from(">hi", body, position)
        position += 6
    topics, position = p.read_array_length(body, position, flexible)
    for _ in range(topics):
        topic, position = read_topic(body, position, flexible, version >= TOPIC_IDS)
        count, position = p.read_array_length(body, position, flexible)
        for _ in range(count):
            result, position = _parse_result(version, body, position, topic)
            response.partitions.append(result)
        if flexible:
            position = p.skip_tags(body, position)
    if flexible:
        for tag, begin, end in p.read_tags(body, position)[0]:
            if tag == 0 and version >= 16:
                response.node_endpoints = _parse_endpoints(body[begin:end])
    return response


def _parse_result(version: int, body: memoryview, position: int, topic: str | UUID) -> tuple[PartitionResult, int]:
    flexible = version >= FLEXIBLE
    index, error_code, high_watermark, stable = struct.unpack_from(">ihqq", body, position)
    result = PartitionResult(topic, index, error_code, high_watermark, stable)
    position += 22
    if version >= 5:
        result.log_start_offset = p.INT64.unpack_from(body, position)[0]
        position += 8
    count, position = p.read_length(body, position, flexible)
    if count >= 0:
        aborted = []
        for _ in range(count):
            aborted.append(struct.unpack_from(">qq", body, position))
            position += 16
            if flexible:
                position = p.skip_tags(body, position)
        result.aborted_transactions = aborted
    if version >= 11:
        result.preferred_read_replica = _INDEX.unpack_from(body, position)[0]
        position += 4
    size, position = p.read_length(body, position, flexible)
    result.records = body[position : position + size] if size >= 0 else None
    position += max(size, 0)
    if flexible:
        if position < len(body) and not body[position]:
            return result, position + 1
        tags, position = p.read_tags(body, position)
        for tag, begin, end in tags:
            _parse_tag(result, tag, body[begin:end])
    return result, position


def _parse_tag(result: PartitionResult, tag: int, value: memoryview) -> None:
    if tag == 0:
        result.diverging_epoch = struct.unpack_from(">iq", value, 0)
    elif tag == 1:
        result.current_leader = struct.unpack_from(">ii", value, 0)
    elif tag == 2:
        result.snapshot_id = struct.unpack_from(">qi", value, 0)


def _parse_endpoints(value: memoryview) -> list[NodeEndpoint]:
    endpoints = []
    count, position = p.read_array_length(value, 0, True)
    for _ in range(count):
        node_id = _INDEX.unpack_from(value, position)[0]
        host, position = p.read_string(value, position + 4, True)
        port = _INDEX.unpack_from(value, position)[0]
        rack, position = p.read_nullable_string(value, position + 4, True)
        position = p.skip_tags(value, position)
        endpoints.append(NodeEndpoint(node_id, host, port, rack))
    return endpoints
