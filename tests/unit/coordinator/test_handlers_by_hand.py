"""OffsetCommit and Heartbeat by hand: what kio writes is read, what is written kio reads, in every version."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from headrace.coordinator.calls import HeartbeatResponse, OffsetCommitResponse, PartitionToCommit, TopicResult
from headrace.coordinator.handlers import k12_heartbeat
from headrace.coordinator.handlers.k08_offset_commit import parse, write
from headrace.errors import ErrorCode
from headrace.wire import messages
from headrace.wire.errors import MalformedRequest

VERSIONS = range(2, 11)
TOPIC_ID = uuid.UUID(int=5)


def request(version: int) -> bytes:
    partitions = [
        {"partition_index": 3, "committed_offset": 70, "committed_leader_epoch": 4, "committed_metadata": "mine"},
        {"partition_index": 4, "committed_offset": 71, "committed_leader_epoch": -1, "committed_metadata": None},
    ]
    given: dict[str, Any] = {
        "group_id": "g",
        "generation_id_or_member_epoch": 8,
        "member_id": "m",
        "group_instance_id": "i",
        "retention_time": 1000,
        "topics": [{"name": "t", "topic_id": TOPIC_ID, "partitions": partitions}],
    }
    return messages.encode(8, version, given, "request")


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_are_read(version: int) -> None:
    call = parse(version, memoryview(request(version)))
    assert (call.group_id, call.generation_id, call.member_id, call.version) == ("g", 8, "m", version)
    assert call.group_instance_id == ("i" if version >= 7 else None)
    assert call.retention_time_ms == (1000 if version <= 4 else -1)
    assert [(t.name, t.topic_id) for t in call.topics] == [("", TOPIC_ID) if version >= 10 else ("t", None)]
    assert call.topics[0].partitions == [
        PartitionToCommit(3, 70, 4 if version >= 6 else -1, "mine"),
        PartitionToCommit(4, 71, -1, ""),
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_responses_are_written(version: int) -> None:
    results = [(3, ErrorCode.NONE), (4, ErrorCode.ILLEGAL_GENERATION)]
    written = write(version, OffsetCommitResponse([TopicResult("t", TOPIC_ID, results)]))
    read = messages.decode(8, version, bytes(written), "response")
    assert [(p.partition_index, p.error_code) for p in read.topics[0].partitions] == [(3, 0), (4, 22)]
    assert (read.topics[0].topic_id if version >= 10 else read.topics[0].name) == (TOPIC_ID if version >= 10 else "t")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_that_ends_anywhere_is_malformed(version: int) -> None:
    whole = request(version)
    for size in range(len(whole)):
        with pytest.raises(MalformedRequest):
            parse(version, memoryview(whole[:size]))


def heartbeat(version: int) -> bytes:
    given = {"group_id": "g", "generation_id": 7, "member_id": "m", "group_instance_id": "i"}
    return messages.encode(12, version, given, "request")


@pytest.mark.parametrize("version", range(5))
def test_heartbeats_are_read_and_answered(version: int) -> None:
    call = k12_heartbeat.parse(version, memoryview(heartbeat(version)))
    assert (call.group_id, call.generation_id, call.member_id) == ("g", 7, "m")
    assert call.group_instance_id == ("i" if version >= 3 else None)
    written = k12_heartbeat.write(version, HeartbeatResponse(ErrorCode.REBALANCE_IN_PROGRESS))
    assert messages.decode(12, version, written, "response").error_code == 27


@pytest.mark.parametrize("version", range(5))
def test_a_heartbeat_that_ends_anywhere_is_malformed(version: int) -> None:
    whole = heartbeat(version)
    for size in range(len(whole)):
        with pytest.raises(MalformedRequest):
            k12_heartbeat.parse(version, memoryview(whole[:size]))
