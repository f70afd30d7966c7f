"""Kafka's API keys and the headers around every request and response.

Request:  int32 size · int16 api key · int16 version · int32 correlation id · nullable string client id · [tags]
Response: int32 size · int32 correlation id · [tags] · body

The tags are there from an API's first flexible version on (KIP-482). The client id keeps the old string form even then.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from headrace.wire.errors import MalformedRequest
from headrace.wire.primitives import skip_tags


class ApiKey(IntEnum):
    """Kafka's API keys by name."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


API_VERSIONS = 18
NEVER = 1 << 15
"""A version that no API reaches."""

FIRST_FLEXIBLE: dict[int, int] = {
    ApiKey.PRODUCE: 9,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 6,
    ApiKey.METADATA: 9,
    ApiKey.CONTROLLED_SHUTDOWN: 3,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 6,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.JOIN_GROUP: 6,
    ApiKey.HEARTBEAT: 4,
    ApiKey.LEAVE_GROUP: 4,
    ApiKey.SYNC_GROUP: 4,
    ApiKey.DESCRIBE_GROUPS: 5,
    ApiKey.LIST_GROUPS: 3,
    ApiKey.SASL_HANDSHAKE: NEVER,
    ApiKey.API_VERSIONS: 3,
    ApiKey.CREATE_TOPICS: 5,
    ApiKey.DELETE_TOPICS: 4,
    ApiKey.DELETE_RECORDS: 2,
    ApiKey.INIT_PRODUCER_ID: 2,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 3,
    ApiKey.END_TXN: 3,
    ApiKey.WRITE_TXN_MARKERS: 1,
    ApiKey.TXN_OFFSET_COMMIT: 3,
    ApiKey.DESCRIBE_ACLS: 2,
    ApiKey.CREATE_ACLS: 2,
    ApiKey.DELETE_ACLS: 2,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.ALTER_CONFIGS: 2,
    ApiKey.ALTER_REPLICA_LOG_DIRS: 2,
    ApiKey.DESCRIBE_LOG_DIRS: 2,
    ApiKey.SASL_AUTHENTICATE: 2,
    ApiKey.CREATE_PARTITIONS: 2,
    ApiKey.CREATE_DELEGATION_TOKEN: 2,
    ApiKey.RENEW_DELEGATION_TOKEN: 2,
    ApiKey.EXPIRE_DELEGATION_TOKEN: 2,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: 2,
    ApiKey.DELETE_GROUPS: 2,
    ApiKey.ELECT_LEADERS: 2,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.OFFSET_DELETE: NEVER,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: 1,
    ApiKey.ALTER_CLIENT_QUOTAS: 1,
    ApiKey.BEGIN_QUORUM_EPOCH: 1,
    ApiKey.END_QUORUM_EPOCH: 1,
    ApiKey.ALTER_PARTITION: 2,
    ApiKey.SHARE_GROUP_HEARTBEAT: 1,
    ApiKey.SHARE_GROUP_DESCRIBE: 1,
    ApiKey.SHARE_FETCH: 1,
    ApiKey.SHARE_ACKNOWLEDGE: 1,
}
"""The first flexible version where it is not 0."""

_PREFIX = struct.Struct(">hhih")
_new_tuple = tuple.__new__
_CORRELATION = struct.Struct(">i")


class RequestHeader(NamedTuple):
    """A parsed request header and where the body begins."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: int


def is_flexible(api_key: int, version: int) -> bool:
    """Whether this version has compact lengths and tags."""
    return version >= FIRST_FLEXIBLE.get(api_key, 0)


def response_header_is_flexible(api_key: int, version: int) -> bool:
    """As `is_flexible`, but ApiVersions always answers with the oldest header: its client does not know ours yet."""
    return api_key != ApiKey.API_VERSIONS and is_flexible(api_key, version)


def parse_request_header(frame: memoryview) -> RequestHeader:
    """The header at the start of `frame` (the bytes after the size)."""
    try:
        api_key, version, correlation_id, length = _PREFIX.unpack_from(frame, 0)
    except struct.error:
        return _short_header(frame)
    if api_key == ApiKey.CONTROLLED_SHUTDOWN and version == 0:
        return RequestHeader(api_key, version, correlation_id, None, 8)
    body = 10
    client_id = None
    if length > 0:
        body += length
        if body > len(frame):
            raise MalformedRequest(f"client id of {length} bytes in a request of {len(frame)}")
        raw = bytes(frame[10:body])
        client_id = _usual_client_id(raw) if length < 256 else _client_id(raw)
    elif length == 0:
        client_id = ""
    elif length != -1:
        raise MalformedRequest(f"client id of {length} bytes")
    if version >= FIRST_FLEXIBLE.get(api_key, 0):
        body = skip_tags(frame, body)
    return _new_tuple(RequestHeader, (api_key, version, correlation_id, client_id, body))


def _client_id(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise MalformedRequest("client id is not UTF-8") from None


_usual_client_id = lru_cache(maxsize=4096)(_client_id)
"""A connection says the same one with every request. Only short ones are kept: this is the clients' memory in ours."""


def _short_header(frame: memoryview) -> RequestHeader:
    """ControlledShutdown v0 alone has no client id; anything else this short is no request."""
    if len(frame) == 8:
        api_key, version, correlation_id = struct.unpack_from(">hhi", frame, 0)
        if api_key == ApiKey.CONTROLLED_SHUTDOWN and version == 0:
            return RequestHeader(api_key, version, correlation_id, None, 8)
    raise MalformedRequest(f"{len(frame)} bytes are too short for a request header")


def request_header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The header of a request of our own, without the size."""
    name = client_id.encode() if client_id is not None else None
    head = _PREFIX.pack(api_key, version, correlation_id, -1 if name is None else len(name)) + (name or b"")
    return head + b"\0" if is_flexible(api_key, version) else head


def parse_response_header(frame: memoryview, api_key: int, version: int) -> int:
    """Where the body of a response begins."""
    return skip_tags(frame, 4) if response_header_is_flexible(api_key, version) else 4


def correlation_of(frame: memoryview) -> int:
    """The correlation id of a response."""
    if len(frame) < 4:
        raise MalformedRequest(f"{len(frame)} bytes are too short for a response header")
    correlation_id: int = _CORRELATION.unpack_from(frame, 0)[0]
    return correlation_id
