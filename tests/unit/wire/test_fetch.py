"""Fetch's hand-written codec, both directions, against kio's, in every version."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode
from tests.unit.wire.kio_messages import classes, make, ms, write

from headrace.wire import fetch, fetch_client
from headrace.wire.errors import MalformedRequest
from headrace.wire.sending import MEMORY
from headrace.wire.topics import NodeEndpoint

VERSIONS = range(fetch.LOWEST, fetch.HIGHEST + 1)
INT8 = st.integers(-128, 127)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=20)
UUIDS = st.uuids().filter(lambda each: each.int)
NUMBERS = st.tuples(INT32, INT64, INT32, INT32, INT32, INT64, st.none() | UUIDS, st.just(fetch.MAX_INT64) | INT64)


def unique_topics(inner: st.SearchStrategy) -> st.SearchStrategy:
    topic = st.tuples(TEXT, UUIDS, st.lists(inner, min_size=1, max_size=3))
    return st.lists(topic, max_size=3, unique_by=(lambda t: t[0], lambda t: t[1]))


requests = st.fixed_dictionaries(
    {
        "max_wait_ms": INT32,
        "min_bytes": INT32,
        "max_bytes": INT32,
        "isolation_level": INT8,
        "session_id": INT32,
        "session_epoch": INT32,
        "rack_id": TEXT,
        "cluster_id": st.none() | TEXT,
        "replica_id": INT32,
        "replica_epoch": INT64,
    }
)


def ours(version: int, values: dict, asked: list, forgotten: list) -> fetch.FetchRequest:
    """The request as it comes out of a parser of this version: fields it lacks have their defaults."""
    defaults = fetch.FetchRequest()
    first = {"session_id": 7, "session_epoch": 7, "rack_id": 11, "cluster_id": 12, "replica_epoch": 15}
    kept = {name: v if version >= first.get(name, 0) else getattr(defaults, name) for name, v in values.items()}
    partitions = [
        fetch.RequestedPartition(
            topic_id if version >= 13 else name,
            index,
            offset,
            size,
            leader_epoch if version >= 9 else -1,
            fetched_epoch if version >= 12 else -1,
            start if version >= 5 else -1,
            directory if version >= 17 else None,
            high_watermark if version >= 18 else fetch.MAX_INT64,
        )
        for name, topic_id, each in asked
        for index, offset, size, leader_epoch, fetched_epoch, start, directory, high_watermark in each
    ]
    gone = [
        fetch.ForgottenPartition(topic_id if version >= 13 else name, index)
        for name, topic_id, indexes in forgotten
        for index in indexes
        if version >= 7
    ]
    return fetch.FetchRequest(**kept, partitions=partitions, forgotten=gone)


def kio_request(version: int, values: dict, asked: list, forgotten: list) -> bytes:
    module = classes(1, version, "request")
    topics = tuple(
        make(
            module.FetchTopic,
            topic=name,
            topic_id=topic_id,
            partitions=tuple(
                make(
                    module.FetchPartition,
                    partition=index,
                    fetch_offset=offset,
                    partition_max_bytes=size,
                    current_leader_epoch=leader_epoch,
                    last_fetched_epoch=fetched_epoch,
                    log_start_offset=start,
                    replica_directory_id=directory,
                    high_watermark=high_watermark,
                )
                for index, offset, size, leader_epoch, fetched_epoch, start, directory, high_watermark in each
            ),
        )
        for name, topic_id, each in asked
    )
    extra = {}
    if version >= 15:
        extra["replica_state"] = module.ReplicaState(
            replica_id=values["replica_id"], replica_epoch=values["replica_epoch"]
        )
    if version >= 7:
        extra["forgotten_topics_data"] = tuple(
            make(module.ForgottenTopic, topic=name, topic_id=topic_id, partitions=tuple(indexes))
            for name, topic_id, indexes in forgotten
        )
    return write(make(module.FetchRequest, **values, max_wait=ms(values["max_wait_ms"]), topics=topics, **extra))


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=8)
@given(values=requests, asked=unique_topics(NUMBERS), forgotten=unique_topics(INT32))
def test_requests_in_both_directions(version, values, asked, forgotten) -> None:
    body = kio_request(version, values, asked, forgotten)
    request = ours(version, values, asked, forgotten)
    assert fetch.parse_request(version, memoryview(body)) == request
    assert fetch_client.write_request(version, request) == body


pairs = st.just((-1, -1)) | st.tuples(INT32, INT32)
PARTITIONS = st.tuples(
    INT32,
    st.sampled_from([0, 1, 6, 74]),
    INT64,
    INT64,
    INT64,
    st.none() | st.binary(max_size=1500),
    st.none() | st.lists(st.tuples(INT64, INT64), max_size=2),
    INT32,
    pairs,
    pairs,
    pairs,
)
endpoints = st.lists(st.builds(NodeEndpoint, INT32, TEXT, INT32, st.none() | TEXT), max_size=2)


def kio_response(version: int, answered: list, error: int, session: int, throttle: int, nodes: list) -> bytes:
    module = classes(1, version, "response")

    def partition(values: tuple) -> object:
        index, code, high, stable, start, records, aborted, preferred, diverging, leader, snapshot = values
        tags = {}
        if version >= 12:
            tags["diverging_epoch"] = module.EpochEndOffset(epoch=diverging[0], end_offset=diverging[1])
            tags["current_leader"] = module.LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
            tags["snapshot_id"] = module.SnapshotId(end_offset=snapshot[0], epoch=snapshot[1])
        return make(
            module.PartitionData,
            partition_index=index,
            error_code=KioErrorCode(code),
            high_watermark=high,
            last_stable_offset=stable,
            log_start_offset=start,
            records=records,
            aborted_transactions=None
            if aborted is None
            else tuple(module.AbortedTransaction(producer_id=p, first_offset=o) for p, o in aborted),
            preferred_read_replica=preferred,
            **tags,
        )

    entity = make(
        module.FetchResponse,
        throttle_time=ms(throttle),
        error_code=KioErrorCode(error),
        session_id=session,
        responses=tuple(
            make(
                module.FetchableTopicResponse,
                topic=name,
                topic_id=topic_id,
                partitions=tuple(partition(each) for each in partitions),
            )
            for name, topic_id, partitions in answered
        ),
        node_endpoints=tuple(module.NodeEndpoint(node_id=n, host=h, port=p, rack=r) for n, h, p, r in nodes)
        if version >= 16
        else (),
    )
    return write(entity)


def our_results(version: int, answered: list) -> list[fetch.PartitionResult]:
    return [
        fetch.PartitionResult(topic_id if version >= 13 else name, *values)
        for name, topic_id, partitions in answered
        for values in partitions
    ]


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=8)
@given(
    answered=unique_topics(PARTITIONS),
    error=st.sampled_from([0, 70, 71]),
    session=INT32,
    throttle=st.integers(0, 9),
    nodes=endpoints,
)
def test_responses_in_both_directions(version, answered, error, session, throttle, nodes) -> None:
    body = kio_response(version, answered, error, session, throttle, nodes)
    parts = fetch.write_response(version, our_results(version, answered), error, session, throttle, nodes)
    assert all(isinstance(part, MEMORY) for part in parts)
    assert b"".join(parts) == body  # type: ignore[arg-type]

    response = fetch_client.parse_response(version, memoryview(body))
    again = fetch.write_response(
        version,
        response.partitions,
        response.error_code,
        response.session_id,
        response.throttle_time_ms,
        response.node_endpoints,
    )
    assert b"".join(again) == body  # type: ignore[arg-type]
    assert (response.error_code, response.session_id) == ((error, session) if version >= 7 else (0, 0))
    assert response.node_endpoints == (nodes if version >= 16 else [])


class Range:
    position, length, released = 5, 7000, 0

    def fileno(self) -> int:
        return -1

    def release(self) -> None:
        self.released += 1


def test_file_ranges_stay_parts_of_their_own() -> None:
    first, second = Range(), Range()
    parts = fetch.write_response(
        12,
        [
            fetch.PartitionResult("t", 0, records=first),
            fetch.PartitionResult("t", 1, records=[second, b"small"]),
        ],
    )
    assert parts[1] is first
    assert parts[3] is second
    flat = b"".join(p if isinstance(p, MEMORY) else b"\7" * p.length for p in parts)
    response = fetch_client.parse_response(12, memoryview(flat))
    assert [bytes(each.records) for each in response.partitions] == [b"\7" * 7000, b"\7" * 7000 + b"small"]


_VALUES = {
    "max_wait_ms": 5,
    "min_bytes": 1,
    "max_bytes": 9,
    "isolation_level": 0,
    "session_id": 1,
    "session_epoch": 2,
    "rack_id": "r",
    "cluster_id": "c",
    "replica_id": 3,
    "replica_epoch": 4,
}
_ASKED = [("topic", UUID(int=1), [(0, 5, 100, 1, 2, 3, UUID(int=4), 5)])]


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=8)
@given(data=st.data())
def test_damage_gives_a_named_error_only(version, data) -> None:
    request = kio_request(version, _VALUES, _ASKED, [("topic", UUID(int=1), [1, 2])])
    results = [("t", UUID(int=1), [(0, 6, 1, 1, 1, b"abc", [(1, 2)], 1, (1, 2), (3, 4), (5, 6))])]
    response = kio_response(version, results, 0, 1, 0, [NodeEndpoint(1, "h", 2)])
    for whole, parse in ((request, fetch.parse_request), (response, fetch_client.parse_response)):
        body = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
        for position, value in data.draw(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 255)), max_size=4)):
            if position < len(body):
                body[position] = value
        try:
            parse(version, memoryview(body))
        except MalformedRequest:
            continue


@given(st.sampled_from(VERSIONS), st.binary(max_size=150))
def test_garbage_gives_a_named_error_only(version, body) -> None:
    for parse in (fetch.parse_request, fetch_client.parse_response):
        try:
            parse(version, memoryview(body))
        except MalformedRequest:
            continue
