"""Control messages: one mapping for every version, bytes as kio writes them, nothing but named errors for bad ones."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_entity_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from headrace.errors import ErrorCode
from headrace.wire import messages, protocol
from headrace.wire.errors import MalformedRequest, UnsupportedVersion
from headrace.wire.schema import EncodingError

METADATA = {
    "brokers": [{"node_id": 1, "host": "b-1", "port": 9092, "rack": "r"}, {"node_id": 2, "host": "b-2", "port": 9092}],
    "cluster_id": "cluster",
    "controller_id": 1,
    "error_code": ErrorCode.NONE,
    "topics": [
        {
            "error_code": ErrorCode.NONE,
            "name": "orders",
            "topic_id": UUID(int=9),
            "partitions": [
                {
                    "error_code": ErrorCode.LEADER_NOT_AVAILABLE,
                    "partition_index": 3,
                    "leader_id": 1,
                    "leader_epoch": 8,
                    "replica_nodes": [1, 2],
                    "isr_nodes": [1],
                    "offline_replicas": [2],
                }
            ],
        }
    ],
}


@pytest.mark.parametrize("version", range(14))
def test_one_mapping_serves_every_version(version) -> None:
    body = messages.encode(3, version, METADATA)
    entity = entity_reader(messages.message_class(3, version, "response"))(body, 0)[0]
    assert entity == messages.decode(3, version, body, "response")
    assert messages.encode(3, version, entity) == body
    partition = entity.topics[0].partitions[0]
    assert (partition.error_code, partition.partition_index, partition.isr_nodes) == (5, 3, (1,))
    assert getattr(entity.topics[0], "topic_id", UUID(int=9)) == UUID(int=9)
    assert getattr(partition, "leader_epoch", 8) == 8


SAMPLE = [(8, 8), (9, 8), (11, 5), (18, 4), (19, 2), (44, 1), (68, 1), (75, 0)]


@pytest.mark.parametrize(("api_key", "version"), SAMPLE)
@pytest.mark.parametrize("direction", ["request", "response"])
@settings(max_examples=5)
@given(data=st.data())
def test_bytes_are_kios(api_key, version, direction, data) -> None:
    cls = messages.message_class(api_key, version, direction)
    entity = data.draw(st.from_type(cls))
    out = io.BytesIO()
    try:
        entity_writer(cls)(out, entity)
    except (TypeError, ValueError):
        return  # kio's own strategies draw what its writers refuse, such as null in a tag
    assert messages.encode(api_key, version, entity, direction) == out.getvalue()
    again = messages.decode(api_key, version, out.getvalue(), direction)
    assert messages.encode(api_key, version, again, direction) == out.getvalue()


def test_times_are_milliseconds_or_pythons() -> None:
    results = {"error_code": 0, "throttle_time": 250, "responses": []}
    assert messages.encode(0, 3, results) == messages.encode(
        0, 3, {**results, "throttle_time": timedelta(seconds=0.25)}
    )
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    partition = {"index": 0, "error_code": 0, "base_offset": 1, "log_append_time": moment}
    as_datetime = {"responses": [{"name": "t", "partition_responses": [partition]}]}
    as_int = {
        "responses": [{"name": "t", "partition_responses": [{**partition, "log_append_time": 1704067200000}]}],
    }
    assert messages.encode(0, 3, as_datetime) == messages.encode(0, 3, as_int)


def test_a_missing_or_wrong_field_is_named() -> None:
    with pytest.raises(EncodingError, match=r"MetadataResponse\.topics"):
        messages.encode(3, 9, {"brokers": []})
    with pytest.raises(EncodingError, match="port"):
        messages.encode(3, 9, {"brokers": [{"node_id": 1, "host": "h", "port": 1 << 40}], "topics": []})
    with pytest.raises(EncodingError, match="host"):
        messages.encode(3, 9, {"brokers": [{"node_id": 1, "host": None, "port": 1}], "topics": []})


@pytest.mark.parametrize(
    "body", [b"\xff\xff\xff\xff\x0f" + b"\0" * 20, b"\xff" * 30, b"", b"\x02", b"\x80\x80\x80\x80\x80"]
)
def test_lengths_that_cannot_be_are_refused(body) -> None:
    with pytest.raises(MalformedRequest):
        messages.decode(3, 12, body)


def test_a_message_of_too_many_elements_is_refused() -> None:
    with pytest.raises(MalformedRequest, match="split it"):
        messages.decode(3, 1, (600_000).to_bytes(4, "big") + b"\0\0" * 600_000)


@settings(max_examples=150)
@given(st.sampled_from(SAMPLE), st.binary(max_size=80))
def test_garbage_gives_a_named_error_only(which, body) -> None:
    try:
        messages.decode(*which, body)
    except MalformedRequest:
        return


def test_unknown_messages() -> None:
    for api_key, version in ((3, 99), (999, 0), (3, -1)):
        with pytest.raises(UnsupportedVersion):
            messages.message_class(api_key, version, "request")
        assert messages.error_response(api_key, version, 35) is None


@pytest.mark.parametrize(("api_key", "name"), sorted(api_key_map.items()))
def test_error_responses_are_readable(api_key, name) -> None:
    version = max(schema_name_map[name])
    body = messages.error_response(api_key, version, ErrorCode.INVALID_REQUEST, "why")
    if body is not None:
        assert messages.decode(api_key, version, body, "response").error_code == ErrorCode.INVALID_REQUEST


def test_header_versions_are_kios() -> None:
    for api_key, name in api_key_map.items():
        versions = sorted(schema_name_map[name])
        first = protocol.FIRST_FLEXIBLE.get(api_key, 0)
        for version in {versions[0], versions[-1], *(v for v in versions if v in (first - 1, first))}:
            cls = load_entity_schema(name, version, EntityType.request)
            assert protocol.is_flexible(api_key, version) == cls.__flexible__, (name, version)
            header = load_entity_schema(name, version, EntityType.response).__header_schema__
            assert protocol.response_header_is_flexible(api_key, version) == (header.__version__ == 1), (name, version)
        assert protocol.ApiKey(api_key).name.lower() == name


def test_controlled_shutdown_v0_has_no_client_id() -> None:
    header = protocol.parse_request_header(memoryview(b"\0\7\0\0\0\0\0\5"))
    assert (header.api_key, header.correlation_id, header.client_id, header.body) == (7, 5, None, 8)
