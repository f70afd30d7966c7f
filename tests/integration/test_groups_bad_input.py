"""What members and committers should not send: each gets Kafka's own error code, and the group goes on."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from tests.integration.raw import Wire, seconds

TopicFactory = Callable[..., str]
SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"


def request(api_key: int, version: int, **fields: Any) -> Any:
    """A request of kio's; nested parts are given as (name of the part, fields)."""
    kind = load_request_schema(api_key, version)
    parts = vars(__import__(kind.__module__, fromlist=["_"]))

    def build(value: Any) -> Any:
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], dict):
            return parts[value[0]](**{name: build(each) for name, each in value[1].items()})
        if isinstance(value, list):
            return tuple(build(each) for each in value)
        return value

    return kind(**{name: build(value) for name, value in fields.items()})


def join(group: str, member: str = "", protocol: str = "range", session: float = 10.0, **other: Any) -> Any:
    fields = {
        "group_id": group,
        "session_timeout": seconds(session),
        "rebalance_timeout": seconds(10),
        "member_id": member,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [("JoinGroupRequestProtocol", {"name": protocol, "metadata": SUBSCRIPTION})],
        "reason": None,
    }
    return request(11, 9, **(fields | other))


def sync(group: str, generation: int, member: str, assignments: dict[str, bytes] | None = None) -> Any:
    shares = [
        ("SyncGroupRequestAssignment", {"member_id": name, "assignment": share})
        for name, share in (assignments or {}).items()
    ]
    return request(
        14,
        5,
        group_id=group,
        generation_id=generation,
        member_id=member,
        group_instance_id=None,
        protocol_type="consumer",
        protocol_name="range",
        assignments=shares,
    )


def heartbeat(group: str, generation: int, member: str) -> Any:
    return request(12, 4, group_id=group, generation_id=generation, member_id=member, group_instance_id=None)


def leave(group: str, member: str) -> Any:
    identity = ("MemberIdentity", {"member_id": member, "group_instance_id": None, "reason": None})
    return request(13, 5, group_id=group, members=[identity])


def commit(
    group: str, topic: str, generation: int = -1, member: str = "", partition: int = 0, metadata: str = ""
) -> Any:
    place = {
        "partition_index": partition,
        "committed_offset": 1,
        "committed_leader_epoch": -1,
        "committed_metadata": metadata,
    }
    of_topic = {"name": topic, "partitions": [("OffsetCommitRequestPartition", place)]}
    return request(
        8,
        9,
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        group_instance_id=None,
        topics=[("OffsetCommitRequestTopic", of_topic)],
    )


def consumer_heartbeat(group: str, member: str, epoch: int, **other: Any) -> Any:
    fields = {
        "group_id": group,
        "member_id": member,
        "member_epoch": epoch,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": seconds(30),
        "subscribed_topic_names": [],
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": [],
    }
    return request(68, 1, **(fields | other))


class Group:
    """A stable classic group of one member."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.id = f"group-{uuid.uuid4().hex[:8]}"
        told = wire.call(join(self.id))
        assert told.error_code is ErrorCode.member_id_required
        joined = wire.call(join(self.id, told.member_id))
        assert joined.error_code is ErrorCode.none
        self.member, self.generation = joined.member_id, joined.generation_id
        synced = wire.call(sync(self.id, self.generation, self.member, {self.member: b"mine"}))
        assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"mine")

    def beats(self) -> ErrorCode:
        code: ErrorCode = self.wire.call(heartbeat(self.id, self.generation, self.member)).error_code
        return code


@pytest.fixture
def wire(bootstrap: str) -> Iterator[Wire]:
    """A connection to the coordinator; one process owns every group here."""
    with Wire(bootstrap) as broker:
        found = broker.call(request(10, 2, key="any", key_type=0))
    assert found.error_code is ErrorCode.none
    with Wire(f"{found.host}:{found.port}") as coordinator:
        yield coordinator


@pytest.fixture
def group(wire: Wire) -> Group:
    return Group(wire)


def code_of(answer: Any) -> ErrorCode:
    """The error of an answer: its own, or that of its only part."""
    for name in ("topics", "partitions", "members", "groups"):
        if getattr(answer, name, ()) and getattr(answer, "error_code", ErrorCode.none) is ErrorCode.none:
            return code_of(getattr(answer, name)[0])
    code: ErrorCode = answer.error_code
    return code


BAD: dict[str, tuple[Callable[[Group, str], Any], ErrorCode]] = {
    "heartbeat of an unknown member": (
        lambda g, _: heartbeat(g.id, g.generation, "nobody"),
        ErrorCode.unknown_member_id,
    ),
    "heartbeat of an old generation": (
        lambda g, _: heartbeat(g.id, g.generation - 1, g.member),
        ErrorCode.illegal_generation,
    ),
    "heartbeat in no group": (lambda g, _: heartbeat("no-such-group", 1, "nobody"), ErrorCode.unknown_member_id),
    "sync of an unknown member": (lambda g, _: sync(g.id, g.generation, "nobody"), ErrorCode.unknown_member_id),
    "sync of an old generation": (lambda g, _: sync(g.id, g.generation + 7, g.member), ErrorCode.illegal_generation),
    "join without a group": (lambda g, _: join(""), ErrorCode.invalid_group_id),
    "join with a made-up member id": (lambda g, _: join(g.id, "made-up"), ErrorCode.unknown_member_id),
    "join with another protocol": (lambda g, _: join(g.id, "", "sticky"), ErrorCode.inconsistent_group_protocol),
    "join with another protocol type": (
        lambda g, _: join(g.id, "", protocol_type="connect"),
        ErrorCode.inconsistent_group_protocol,
    ),
    "join without protocols": (
        lambda g, _: join("new-group", "", protocols=[]),
        ErrorCode.inconsistent_group_protocol,
    ),
    "join with a session too short": (lambda g, _: join(g.id, session=1), ErrorCode.invalid_session_timeout),
    "join with a session too long": (lambda g, _: join(g.id, session=7200), ErrorCode.invalid_session_timeout),
    "leave of an unknown member": (lambda g, _: leave(g.id, "nobody"), ErrorCode.unknown_member_id),
    "commit of an unknown member": (
        lambda g, topic: commit(g.id, topic, g.generation, "nobody"),
        ErrorCode.unknown_member_id,
    ),
    "commit of an old generation": (
        lambda g, topic: commit(g.id, topic, g.generation - 1, g.member),
        ErrorCode.illegal_generation,
    ),
    "commit from outside a group with members": (lambda g, topic: commit(g.id, topic), ErrorCode.unknown_member_id),
    "commit for an unknown topic": (
        lambda g, _: commit(g.id, "no-such-topic", g.generation, g.member),
        ErrorCode.unknown_topic_or_partition,
    ),
    "commit for an unknown partition": (
        lambda g, topic: commit(g.id, topic, g.generation, g.member, partition=99),
        ErrorCode.unknown_topic_or_partition,
    ),
    "commit with too much metadata": (
        lambda g, topic: commit(g.id, topic, g.generation, g.member, metadata="x" * 5000),
        ErrorCode.offset_metadata_too_large,
    ),
    "delete a group with members": (lambda g, _: request(42, 2, groups_names=[g.id]), ErrorCode.non_empty_group),
    "delete a group that is not there": (
        lambda g, _: request(42, 2, groups_names=["no-such-group"]),
        ErrorCode.group_id_not_found,
    ),
    "describe a group that is not there": (
        lambda g, _: request(15, 6, groups=["no-such-group"], include_authorized_operations=False),
        ErrorCode.group_id_not_found,
    ),
    "consumer heartbeat of an unknown member": (
        lambda g, _: consumer_heartbeat("no-such-group", "nobody", 3, topic_partitions=None),
        ErrorCode.group_id_not_found,
    ),
    "consumer heartbeat with an unknown assignor": (
        lambda g, topic: consumer_heartbeat(
            f"new-{uuid.uuid4().hex}", "m", 0, subscribed_topic_names=[topic], server_assignor="sticky"
        ),
        ErrorCode.unsupported_assignor,
    ),
    "consumer heartbeat with a broken pattern": (
        lambda g, _: consumer_heartbeat(
            f"new-{uuid.uuid4().hex}", "m", 0, subscribed_topic_names=None, subscribed_topic_regex="a(("
        ),
        ErrorCode.invalid_regular_expression,
    ),
    "consumer heartbeat without a group": (lambda g, _: consumer_heartbeat("", "m", 0), ErrorCode.invalid_request),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_its_own_error(what: str, group: Group, topic: str) -> None:
    bad, expected = BAD[what]
    assert code_of(_results(group.wire.call(bad(group, topic)))) is expected
    assert group.beats() is ErrorCode.none, "the group goes on"


def _results(answer: Any) -> Any:
    """DeleteGroups calls its parts results."""
    return answer.results[0] if hasattr(answer, "results") else answer


@pytest.fixture(scope="module")
def topic(new_topic: TopicFactory) -> str:
    return new_topic("bad-groups", 1)


def test_an_assignment_nobody_can_read_is_stored_and_given_back(wire: Wire) -> None:
    """The coordinator passes assignments on unread: a malformed one is between a leader and its members."""
    name = f"group-{uuid.uuid4().hex[:8]}"
    told = wire.call(join(name))
    joined = wire.call(join(name, told.member_id))
    rubbish = b"\xff" * 100
    synced = wire.call(sync(name, joined.generation_id, joined.member_id, {joined.member_id: rubbish, "ghost": b"x"}))
    assert (synced.error_code, synced.assignment) == (ErrorCode.none, rubbish)
    described = wire.call(request(15, 5, groups=[name], include_authorized_operations=False)).groups[0]
    assert [member.member_assignment for member in described.members] == [rubbish]


def test_a_group_of_another_coordinator_is_refused_by_brokers(bootstrap: str) -> None:
    with Wire(bootstrap) as broker:
        listed = broker.call(request(16, 5, states_filter=[], types_filter=[]))
    assert (listed.error_code, listed.groups) == (ErrorCode.none, ())
