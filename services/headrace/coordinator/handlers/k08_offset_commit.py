"""OffsetCommit: stores how far a group has come.

Versions 2 to 10; the answer comes when the offsets are on every in-sync replica. From 7 on static members say who they
are (KIP-345), 8 is flexible, 9 takes member epochs of the new protocol (KIP-848), 10 names topics by id. Versions 2 to
4 may bring their own retention time. Offsets are kept by topic id in every version, so a topic that is deleted and made
again starts without any. Metadata is at most `offset.metadata.max.bytes`: OFFSET_METADATA_TOO_LARGE.
Read and written by hand: of all that groups send, commits are the most.
"""

from __future__ import annotations

import struct
import uuid

from headrace.coordinator.calls import (
    OffsetCommit,
    OffsetCommitResponse,
    PartitionToCommit,
    TopicResult,
    TopicToCommit,
)
from headrace.coordinator.coordinator import Coordinator
from headrace.wire import primitives as p
from headrace.wire.api import LATER, Context, handles
from headrace.wire.errors import MalformedRequest
from headrace.wire.protocol import ApiKey

LEADER_EPOCHS, INSTANCES, FLEXIBLE, TOPIC_IDS = 6, 7, 8, 10
_PARTITION = struct.Struct(">iqi")
_OLD_PARTITION = struct.Struct(">iq")
_RESULT = struct.Struct(">ih")
_FLEXIBLE_RESULT = struct.Struct(">ihB")
_NOT_THROTTLED = bytes(4)


@handles(ApiKey.OFFSET_COMMIT, versions=(2, 10), raw=True)
def offset_commit(coordinator: Coordinator, context: Context, body: memoryview) -> object:
    version = context.version
    call = parse(version, body)
    call.token = lambda response: context.complete(write(version, response))
    coordinator.handle(call)
    return LATER


def parse(version: int, body: memoryview) -> OffsetCommit:
    """The request in `body`; what is wrong with it is a `MalformedRequest`."""
    flexible = version >= FLEXIBLE
    try:
        group_id, at = p.read_string(body, 0, flexible)
        generation_id = p.INT32.unpack_from(body, at)[0]
        member_id, at = p.read_string(body, at + 4, flexible)
        instance_id, retention_ms = None, -1
        if version >= INSTANCES:
            instance_id, at = p.read_nullable_string(body, at, flexible)
        elif version <= 4:
            retention_ms = p.INT64.unpack_from(body, at)[0]
            at += 8
        count, at = p.read_array_length(body, at, flexible)
        topics: list[TopicToCommit] = []
        for _ in range(count):
            name, topic_id = "", None
            if version >= TOPIC_IDS:
                topic_id, at = p.read_uuid(body, at)
            else:
                name, at = p.read_string(body, at, flexible)
            partitions, at = _partitions(version, body, at)
            topics.append(TopicToCommit(name, partitions, topic_id))
            if flexible:
                at = p.skip_tags(body, at)
        if flexible:
            p.skip_tags(body, at)
    except struct.error:
        raise MalformedRequest("the OffsetCommit request ends too early") from None
    return OffsetCommit(group_id, topics, generation_id, member_id, instance_id, retention_ms, version)


def _partitions(version: int, body: memoryview, at: int) -> tuple[list[PartitionToCommit], int]:
    flexible = version >= FLEXIBLE
    count, at = p.read_array_length(body, at, flexible)
    found: list[PartitionToCommit] = []
    for _ in range(count):
        if version >= LEADER_EPOCHS:
            index, offset, leader_epoch = _PARTITION.unpack_from(body, at)
            at += 16
        else:
            index, offset = _OLD_PARTITION.unpack_from(body, at)
            leader_epoch = -1
            at += 12
        metadata, at = p.read_nullable_string(body, at, flexible)
        found.append(PartitionToCommit(index, offset, leader_epoch, metadata or ""))
        if flexible:
            at = p.skip_tags(body, at)
    return found, at


def write(version: int, response: OffsetCommitResponse) -> bytearray:
    """The response's body."""
    flexible = version >= FLEXIBLE
    out = bytearray(_NOT_THROTTLED if version >= 3 else b"")
    p.write_length(out, len(response.topics), flexible)
    for topic in response.topics:
        _write_topic(out, version, topic)
    if flexible:
        out.append(0)
    return out


def _write_topic(out: bytearray, version: int, topic: TopicResult) -> None:
    flexible = version >= FLEXIBLE
    if version >= TOPIC_IDS:
        out += (topic.topic_id or uuid.UUID(int=0)).bytes
    else:
        p.write_string(out, topic.name, flexible)
    p.write_length(out, len(topic.partitions), flexible)
    if flexible:
        out += b"".join([_FLEXIBLE_RESULT.pack(index, code, 0) for index, code in topic.partitions])
        out.append(0)
    else:
        out += b"".join([_RESULT.pack(index, code) for index, code in topic.partitions])
