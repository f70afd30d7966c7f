"""The Coordinator service over gRPC gives the answers of the Kafka listener: one contract, asked through both doors."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from tests.integration.cluster import Cluster

from headrace.errors import ErrorCode
from headrace.v1 import common_pb2, coordinator_pb2_grpc
from headrace.v1 import coordinator_pb2 as pb
from headrace.wire.client import Client
from headrace.wire.protocol import ApiKey

RANGE = (("range", b"\0\0\0\0\0\0\xff\xff\xff\xff"),)


class Grpc:
    """The calls of this test through the native door; answers are named by their error, then what else is compared."""

    def __init__(self, stub: coordinator_pb2_grpc.CoordinatorAsyncStub) -> None:
        self.stub = stub

    async def join(self, group: str, member: str = "", session: int = 6000, protocols: Any = RANGE) -> tuple[Any, ...]:
        answer = await self.stub.JoinGroup(
            pb.JoinGroupRequest(
                member=pb.Member(group_id=group, member_id=member),
                session_timeout_ms=session,
                rebalance_timeout_ms=6000,
                protocol_type="consumer",
                protocols=[pb.Protocol(name=name, metadata=data) for name, data in protocols],
            )
        )
        return name(answer.error.code), answer.member_id, answer.generation_id, answer.protocol_name

    async def sync(self, group: str, member: str, generation: int, shares: dict[str, bytes]) -> tuple[Any, ...]:
        who = pb.Member(group_id=group, member_id=member, generation_id=generation)
        answer = await self.stub.SyncGroup(pb.SyncGroupRequest(member=who, assignments=shares))
        return name(answer.error.code), answer.assignment

    async def heartbeat(self, group: str, member: str, generation: int) -> str:
        who = pb.Member(group_id=group, member_id=member, generation_id=generation)
        return name((await self.stub.Heartbeat(pb.HeartbeatRequest(member=who))).error.code)

    async def leave(self, group: str, member: str) -> tuple[Any, ...]:
        answer = await self.stub.LeaveGroup(pb.LeaveGroupRequest(group_id=group, members=[pb.Member(member_id=member)]))
        return name(answer.error.code), [name(each.code) for each in answer.members]

    async def commit(self, group: str, topic: str, index: int, offset: int, **who: Any) -> list[str]:
        request = pb.OffsetCommitRequest(
            member=pb.Member(group_id=group, member_id=who.get("member", ""), generation_id=who.get("generation", -1))
        )
        request.offsets.add(
            partition=common_pb2.TopicPartition(topic=topic, partition=index),
            offset=offset,
            leader_epoch=-1,
            metadata=who.get("metadata", ""),
        )
        return [name(each.error.code) for each in (await self.stub.OffsetCommit(request)).partitions]

    async def fetch(self, group: str, topic: str, index: int) -> tuple[Any, ...]:
        request = pb.OffsetFetchRequest()
        request.groups.add(group_id=group, partitions=[common_pb2.TopicPartition(topic=topic, partition=index)])
        (found,) = (await self.stub.OffsetFetch(request)).groups
        return name(found.error.code), [(each.offset, each.metadata, name(each.error.code)) for each in found.offsets]

    async def forget(self, group: str, topic: str, index: int) -> tuple[Any, ...]:
        partitions = [common_pb2.TopicPartition(topic=topic, partition=index)]
        answer = await self.stub.OffsetDelete(pb.OffsetDeleteRequest(group_id=group, partitions=partitions))
        return name(answer.error.code), [name(each.error.code) for each in answer.partitions]

    async def listed(self, group: str) -> list[tuple[str, str]]:
        answer = await self.stub.ListGroups(pb.ListGroupsRequest())
        return [(each.state, each.type) for each in answer.groups if each.group_id == group]

    async def described(self, group: str) -> tuple[Any, ...]:
        (found,) = (await self.stub.DescribeGroups(pb.DescribeGroupsRequest(group_ids=[group]))).groups
        members = [(each.member_id, each.metadata, each.assignment) for each in found.members]
        return name(found.error.code), found.state, found.protocol_name, members

    async def delete(self, group: str) -> str:
        return name((await self.stub.DeleteGroups(pb.DeleteGroupsRequest(group_ids=[group]))).groups[0].code)

    async def beat(self, group: str, member: str, epoch: int, **given: Any) -> tuple[Any, ...]:
        request = pb.ConsumerGroupHeartbeatRequest(
            group_id=group, member_id=member, member_epoch=epoch, rebalance_timeout_ms=given.get("timeout", -1)
        )
        if (topics := given.get("topics")) is not None:
            request.subscribed_topic_names.names.extend(topics)
        if (assignor := given.get("assignor")) is not None:
            request.server_assignor = assignor
        if given.get("owned") is not None:
            request.topic_partitions.SetInParent()
        answer = await self.stub.ConsumerGroupHeartbeat(request)
        share = None
        if answer.HasField("assignment"):
            share = sorted((uuid.UUID(bytes=p.topic_id), p.partition) for p in answer.assignment.partitions)
        return name(answer.error.code), answer.member_epoch, answer.heartbeat_interval_ms, share

    async def consumers(self, group: str) -> tuple[Any, ...]:
        request = pb.ConsumerGroupDescribeRequest(group_ids=[group])
        (found,) = (await self.stub.ConsumerGroupDescribe(request)).groups
        members = [
            (
                each.member_id,
                each.member_epoch,
                list(each.subscribed_topic_names),
                sorted((p.topic, p.partition) for p in each.assignment.partitions),
                sorted((p.topic, p.partition) for p in each.target_assignment.partitions),
            )
            for each in found.members
        ]
        return name(found.error.code), found.state, found.group_epoch, found.assignor_name, members


class Kafka:
    """The same through Kafka's door, in the newest version that names topics by name."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def join(self, group: str, member: str = "", session: int = 6000, protocols: Any = RANGE) -> tuple[Any, ...]:
        answer = await self.client.request(
            ApiKey.JOIN_GROUP,
            9,
            {
                "group_id": group,
                "session_timeout": session,
                "rebalance_timeout": 6000,
                "member_id": member,
                "group_instance_id": None,
                "protocol_type": "consumer",
                "protocols": [{"name": each, "metadata": data} for each, data in protocols],
                "reason": None,
            },
        )
        return name(answer.error_code), answer.member_id, answer.generation_id, answer.protocol_name or ""

    async def sync(self, group: str, member: str, generation: int, shares: dict[str, bytes]) -> tuple[Any, ...]:
        answer = await self.client.request(
            ApiKey.SYNC_GROUP,
            5,
            {
                "group_id": group,
                "generation_id": generation,
                "member_id": member,
                "group_instance_id": None,
                "protocol_type": None,
                "protocol_name": None,
                "assignments": [{"member_id": each, "assignment": share} for each, share in shares.items()],
            },
        )
        return name(answer.error_code), answer.assignment

    async def heartbeat(self, group: str, member: str, generation: int) -> str:
        request = {"group_id": group, "generation_id": generation, "member_id": member, "group_instance_id": None}
        return name((await self.client.request(ApiKey.HEARTBEAT, 4, request)).error_code)

    async def leave(self, group: str, member: str) -> tuple[Any, ...]:
        who = {"member_id": member, "group_instance_id": None, "reason": None}
        answer = await self.client.request(ApiKey.LEAVE_GROUP, 5, {"group_id": group, "members": [who]})
        return name(answer.error_code), [name(each.error_code) for each in answer.members]

    async def commit(self, group: str, topic: str, index: int, offset: int, **who: Any) -> list[str]:
        partition = {
            "partition_index": index,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": who.get("metadata", ""),
        }
        request = {
            "group_id": group,
            "generation_id_or_member_epoch": who.get("generation", -1),
            "member_id": who.get("member", ""),
            "group_instance_id": None,
            "topics": [{"name": topic, "partitions": [partition]}],
        }
        answer = await self.client.request(ApiKey.OFFSET_COMMIT, 9, request)
        return [name(each.error_code) for each in answer.topics[0].partitions]

    async def fetch(self, group: str, topic: str, index: int) -> tuple[Any, ...]:
        asked = {
            "group_id": group,
            "member_id": None,
            "member_epoch": -1,
            "topics": [{"name": topic, "partition_indexes": [index]}],
        }
        request = {"groups": [asked], "require_stable": False}
        (found,) = (await self.client.request(ApiKey.OFFSET_FETCH, 9, request)).groups
        offsets = [each for topic in found.topics for each in topic.partitions]
        return name(found.error_code), [(o.committed_offset, o.metadata or "", name(o.error_code)) for o in offsets]

    async def forget(self, group: str, topic: str, index: int) -> tuple[Any, ...]:
        topics = [{"name": topic, "partitions": [{"partition_index": index}]}]
        answer = await self.client.request(ApiKey.OFFSET_DELETE, 0, {"group_id": group, "topics": topics})
        return name(answer.error_code), [name(p.error_code) for topic in answer.topics for p in topic.partitions]

    async def listed(self, group: str) -> list[tuple[str, str]]:
        answer = await self.client.request(ApiKey.LIST_GROUPS, 5, {"states_filter": [], "types_filter": []})
        return [(each.group_state, each.group_type) for each in answer.groups if each.group_id == group]

    async def described(self, group: str) -> tuple[Any, ...]:
        request = {"groups": [group], "include_authorized_operations": False}
        (found,) = (await self.client.request(ApiKey.DESCRIBE_GROUPS, 6, request)).groups
        members = [(each.member_id, each.member_metadata, each.member_assignment) for each in found.members]
        return name(found.error_code), found.group_state, found.protocol_data, members

    async def delete(self, group: str) -> str:
        answer = await self.client.request(ApiKey.DELETE_GROUPS, 2, {"groups_names": [group]})
        return name(answer.results[0].error_code)

    async def beat(self, group: str, member: str, epoch: int, **given: Any) -> tuple[Any, ...]:
        request = {
            "group_id": group,
            "member_id": member,
            "member_epoch": epoch,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": given.get("timeout", -1),
            "subscribed_topic_names": given.get("topics"),
            "subscribed_topic_regex": None,
            "server_assignor": given.get("assignor"),
            "topic_partitions": given.get("owned"),
        }
        answer = await self.client.request(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
        share = None
        if answer.assignment is not None:
            parts = answer.assignment.topic_partitions
            share = sorted((each.topic_id, index) for each in parts for index in each.partitions)
        interval = answer.heartbeat_interval.total_seconds() * 1000
        return name(answer.error_code), answer.member_epoch, interval, share

    async def consumers(self, group: str) -> tuple[Any, ...]:
        request = {"group_ids": [group], "include_authorized_operations": False}
        (found,) = (await self.client.request(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, request)).groups
        members = [
            (
                each.member_id,
                each.member_epoch,
                list(each.subscribed_topic_names),
                _places(each.assignment),
                _places(each.target_assignment),
            )
            for each in found.members
        ]
        return name(found.error_code), found.group_state, found.group_epoch, found.assignor_name, members


def _places(assignment: Any) -> list[tuple[str, int]]:
    return sorted((each.topic_name, index) for each in assignment.topic_partitions for index in each.partitions)


def name(code: int) -> str:
    return ErrorCode(code).name


@pytest.fixture
async def doors(own_cluster: Cluster) -> AsyncIterator[tuple[Grpc, Kafka]]:
    found = own_cluster.process("coordinator")
    host, _, port = found["kafka"].rpartition(":")
    client = await Client.connect(host, int(port))
    async with grpc.aio.insecure_channel(found["grpc"]) as channel:
        yield Grpc(coordinator_pb2_grpc.CoordinatorStub(channel)), Kafka(client)
    client.close()


def group_id() -> str:
    return f"contract-{uuid.uuid4().hex[:8]}"


REFUSED: dict[str, Callable[[Any, str, str], Any]] = {
    "a group without a name": lambda door, group, topic: door.join(""),
    "a session that is too short": lambda door, group, topic: door.join(group, session=1),
    "no protocols": lambda door, group, topic: door.join(group, protocols=()),
    "joining with an id nobody gave": lambda door, group, topic: door.join(group, "me"),
    "a share in no group": lambda door, group, topic: door.sync(group, "me", 1, {}),
    "a heartbeat in no group": lambda door, group, topic: door.heartbeat(group, "me", 1),
    "leaving no group": lambda door, group, topic: door.leave(group, "me"),
    "a commit of a generation that is not": lambda door, group, topic: door.commit(group, topic, 0, 1, generation=3),
    "a commit for an unknown topic": lambda door, group, topic: door.commit(group, "nothing", 0, 1),
    "a commit for an unknown partition": lambda door, group, topic: door.commit(group, topic, 99, 1),
    "too much metadata": lambda door, group, topic: door.commit(group, topic, 0, 1, metadata="m" * 5000),
    "offsets of no group": lambda door, group, topic: door.fetch(group, topic, 0),
    "forgetting in no group": lambda door, group, topic: door.forget(group, topic, 0),
    "describing no group": lambda door, group, topic: door.described(group),
    "deleting no group": lambda door, group, topic: door.delete(group),
    "no group of the new protocol": lambda door, group, topic: door.consumers(group),
    "a beat in no group": lambda door, group, topic: door.beat(group, "me", 4),
    "joining without topics": lambda door, group, topic: door.beat(group, "me", 0, timeout=5000, owned=[]),
    "an assignor that is not there": lambda door, group, topic: door.beat(
        group, "me", 0, timeout=5000, owned=[], topics=[topic], assignor="mine"
    ),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_both_refuse_with_the_same_words(
    what: str, doors: tuple[Grpc, Kafka], new_topic: Callable[..., str]
) -> None:
    topic = new_topic("refused", 1)
    native, kafka = [await REFUSED[what](door, group_id(), topic) for door in doors]
    assert native == kafka
    if what != "offsets of no group":
        assert "NONE" not in (native if isinstance(native, list) else [native[0]]), native


async def test_one_group_through_both(doors: tuple[Grpc, Kafka], new_topic: Callable[..., str]) -> None:
    """Every step through one door, seen the same through both; then the other way round."""
    topic = new_topic("both", 1)
    for door in doors:
        group = group_id()
        required, member, _, _ = await door.join(group)
        assert required == "MEMBER_ID_REQUIRED"
        error, same, generation, protocol = await door.join(group, member)
        assert (error, same, generation, protocol) == ("NONE", member, 1, "range")
        assert await door.sync(group, member, generation, {member: b"mine"}) == ("NONE", b"mine")
        expected: tuple[Any, ...] = ("NONE", "Stable", "range", [(member, RANGE[0][1], b"mine")])
        assert [await each.described(group) for each in doors] == [expected, expected]
        assert [await each.listed(group) for each in doors] == [[("Stable", "classic")]] * 2
        assert [await each.heartbeat(group, member, generation) for each in doors] == ["NONE", "NONE"]
        assert [await each.heartbeat(group, member, 7) for each in doors] == ["ILLEGAL_GENERATION"] * 2
        who = {"member": member, "generation": generation, "metadata": "why"}
        assert await door.commit(group, topic, 0, 5, **who) == ["NONE"]
        assert [await each.commit(group, topic, 0, 9) for each in doors] == [["UNKNOWN_MEMBER_ID"]] * 2
        assert [await each.fetch(group, topic, 0) for each in doors] == [("NONE", [(5, "why", "NONE")])] * 2
        assert [await each.delete(group) for each in doors] == ["NON_EMPTY_GROUP"] * 2
        assert await door.leave(group, member) == ("NONE", ["NONE"])
        assert [await each.listed(group) for each in doors] == [[("Empty", "classic")]] * 2
        assert await door.forget(group, topic, 0) == ("NONE", ["NONE"])
        assert [await each.fetch(group, topic, 0) for each in doors] == [("NONE", [(-1, "", "NONE")])] * 2
        await door.commit(group, topic, 0, 6)
        assert await door.delete(group) == "NONE"
        assert [await each.listed(group) for each in doors] == [[], []]


async def test_the_new_protocol_through_both(doors: tuple[Grpc, Kafka], new_topic: Callable[..., str]) -> None:
    topic = new_topic("modern", 2)
    for door in doors:
        group, member = group_id(), str(uuid.uuid4())
        error, epoch, interval, share = await door.beat(group, member, 0, timeout=5000, owned=[], topics=[topic])
        assert (error, epoch, interval) == ("NONE", 1, 5000)
        assert [index for _, index in share] == [0, 1]
        places = [(topic, 0), (topic, 1)]
        expected = ("NONE", "Stable", 1, "uniform", [(member, 1, [topic], places, places)])
        assert [await each.consumers(group) for each in doors] == [expected, expected]
        assert [await each.listed(group) for each in doors] == [[("Stable", "consumer")]] * 2
        assert [(await each.beat(group, member, 1))[:2] for each in doors] == [("NONE", 1)] * 2
        assert [(await each.beat(group, member, 9))[0] for each in doors] == ["FENCED_MEMBER_EPOCH"] * 2
        assert [(await each.beat(group, "other", 1))[0] for each in doors] == ["UNKNOWN_MEMBER_ID"] * 2
        stale = {"member": member, "generation": 5}
        assert [await each.commit(group, topic, 0, 1, **stale) for each in doors] == [["STALE_MEMBER_EPOCH"]] * 2
        assert (await door.beat(group, member, -1))[:2] == ("NONE", -1)
        assert [await each.listed(group) for each in doors] == [[("Empty", "consumer")]] * 2
