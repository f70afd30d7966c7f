"""Produce's hand-written codec against kio's, in every version."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode
from tests.unit.wire.kio_messages import classes, make, ms, write

from headrace.wire import produce
from headrace.wire.errors import MalformedRequest
from headrace.wire.messages import encode
from headrace.wire.topics import NodeEndpoint, write_topic

_ID, _ID2 = UUID(int=7), UUID(int=8)
VERSIONS = range(produce.LOWEST, produce.HIGHEST + 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=40)
topics = st.lists(
    st.tuples(
        TEXT,
        st.uuids().filter(lambda each: each.int),
        st.lists(st.tuples(INT32, st.none() | st.binary(max_size=300)), max_size=4),
    ),
    max_size=4,
    unique_by=(lambda topic: topic[0], lambda topic: topic[1]),
)


def kio_request(version: int, transactional_id: str | None, acks: int, timeout_ms: int, asked: list) -> bytes:
    module = classes(0, version, "request")
    data = tuple(
        make(
            module.TopicProduceData,
            name=name,
            topic_id=topic_id,
            partition_data=tuple(module.PartitionProduceData(index=i, records=r) for i, r in partitions),
        )
        for name, topic_id, partitions in asked
    )
    return write(
        module.ProduceRequest(transactional_id=transactional_id, acks=acks, timeout=ms(timeout_ms), topic_data=data)
    )


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=8)
@given(transactional_id=st.none() | TEXT, acks=INT16, timeout_ms=INT32, asked=topics)
def test_a_request_says_what_kio_wrote(version, transactional_id, acks, timeout_ms, asked) -> None:
    body = kio_request(version, transactional_id, acks, timeout_ms, asked)
    request = produce.parse_request(version, memoryview(body))
    assert (request.transactional_id, request.acks, request.timeout_ms) == (transactional_id, acks, timeout_ms)
    expected = [
        (topic_id if version >= 13 else name, index, records)
        for name, topic_id, partitions in asked
        for index, records in partitions
    ]
    assert [(t, i, None if r is None else bytes(r)) for t, i, r in request.partitions] == expected


def test_records_are_the_frames_own_memory() -> None:
    frame = bytearray(kio_request(9, None, 1, 1000, [("t", None, [(0, b"x" * 100)])]))
    records = produce.parse_request(9, memoryview(frame)).partitions[0].records
    assert records is not None
    records[0] = ord("y")
    assert frame.count(b"y" + b"x" * 99) == 1


results = st.lists(
    st.tuples(
        INT32,
        st.sampled_from([0, 1, 3, 6, 87]),
        INT64,
        st.just(-1) | st.integers(0, 10**9).map(lambda seconds: seconds * 1000),
        INT64,
        st.lists(st.builds(produce.RecordError, INT32, st.none() | TEXT), max_size=3),
        st.none() | TEXT,
        st.just((-1, -1)) | st.tuples(INT32, INT32),
    ),
    min_size=1,
    max_size=3,
)
endpoints = st.lists(st.builds(NodeEndpoint, INT32, TEXT, INT32, st.none() | TEXT), max_size=3)


answers = st.lists(st.tuples(TEXT, st.uuids(), results), max_size=3, unique_by=lambda topic: topic[0])


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=8)
@given(answered=answers, throttle=INT32, nodes=endpoints)
def test_a_response_is_byte_for_byte_kios(version, answered, throttle, nodes) -> None:
    flat = []
    responses = []
    for name, topic_id, partitions in answered:
        topic = topic_id if version >= 13 else name
        flat += [produce.PartitionResult(topic, *values) for values in partitions]
        responses.append((name, topic_id, partitions))
    module = classes(0, version, "response")
    entity = make(
        module.ProduceResponse,
        throttle_time=ms(throttle),
        responses=tuple(
            make(
                module.TopicProduceResponse,
                name=name,
                topic_id=topic_id,
                partition_responses=tuple(
                    make(
                        module.PartitionProduceResponse,
                        index=index,
                        error_code=KioErrorCode(error),
                        base_offset=base,
                        log_append_time=None if time < 0 else datetime.fromtimestamp(time // 1000, UTC),
                        log_start_offset=start,
                        record_errors=tuple(
                            module.BatchIndexAndErrorMessage(batch_index=i, batch_index_error_message=m)
                            for i, m in errors
                        )
                        if version >= 8
                        else (),
                        error_message=message,
                        current_leader=module.LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
                        if version >= 10
                        else None,
                    )
                    for index, error, base, time, start, errors, message, leader in partitions
                ),
            )
            for name, topic_id, partitions in responses
        ),
        node_endpoints=tuple(module.NodeEndpoint(node_id=n, host=h, port=port, rack=r) for n, h, port, r in nodes)
        if version >= 10
        else (),
    )
    expected = write(entity)
    assert bytes(produce.write_response(version, flat, throttle, nodes)) == expected
    assert encode(0, version, entity) == expected


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=8)
@given(data=st.data())
def test_damaged_requests_give_a_named_error_only(version, data) -> None:
    whole = bytearray(kio_request(version, "tx", -1, 5, [("topic", _ID, [(0, b"abc"), (1, None)]), ("u", _ID2, [])]))
    cut = data.draw(st.integers(0, len(whole)))
    body = whole[:cut]
    for position, value in data.draw(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4)):
        if position < len(body):
            body[position] = value
    try:
        produce.parse_request(version, memoryview(body))
    except MalformedRequest:
        return


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=25)
@given(data=st.data())
def test_the_usual_request_is_read_as_any_other(version, data) -> None:
    """Whole, cut off or damaged: the short way says what the long one does."""
    partitions = data.draw(st.lists(st.tuples(INT32, st.none() | st.binary(max_size=20)), max_size=3))
    body = bytearray(kio_request(version, None, 1, 5, [(data.draw(st.sampled_from(["t", "topic"])), _ID, partitions)]))
    del body[data.draw(st.integers(len(body) // 2, len(body) + len(body) // 2)) :]
    for position, value in data.draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 255)), max_size=1)):
        if position < len(body):
            body[position] = value
    assert _read(produce.parse_request, version, body) == _read(produce._parse_any, version, body)


def _read(parse, version, body):
    try:
        return parse(version, memoryview(body))
    except MalformedRequest as error:
        return str(error)


@given(st.sampled_from(VERSIONS), st.binary(max_size=200))
def test_garbage_gives_a_named_error_only(version, body) -> None:
    try:
        produce.parse_request(version, memoryview(body))
    except MalformedRequest:
        return


def test_an_array_larger_than_its_request_is_refused_before_a_loop() -> None:
    with pytest.raises(MalformedRequest, match="length"):
        produce.parse_request(3, memoryview(b"\xff\xff" + b"\0" * 6 + b"\x7f\xff\xff\xff"))


def test_too_many_partitions_are_refused() -> None:
    body = b"\0" + b"\0" * 6 + b"\x02" + b"\x02t" + b"\xc2\x9a\x0c" + b"\0" * (6 * 200_001)
    with pytest.raises(MalformedRequest, match="partitions"):
        produce.parse_request(9, memoryview(body))


@pytest.mark.parametrize("version", range(produce.RECORD_ERRORS, produce.HIGHEST + 1))
def test_the_usual_response_is_the_general_one(version: int) -> None:
    topic = UUID(int=9) if version >= produce.TOPIC_IDS else "orders"
    results = [(topic, 7, None, 123456789012, -1, 42), (topic, 8, None, 0, 1_700_000_000_000, 0)]
    general = [produce.PartitionResult(topic, partition, 0, *offsets) for _, partition, _, *offsets in results]
    written = bytearray()
    write_topic(written, topic, version >= produce.FLEXIBLE, version >= produce.TOPIC_IDS)
    for count in (1, 2):
        assert produce.write_accepted(version, bytes(written), results[:count]) == produce.write_response(
            version, general[:count]
        )
