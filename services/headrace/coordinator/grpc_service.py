"""The Coordinator service over gRPC: the same groups as the Kafka listener's, for native clients and tools."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias

from headrace.coordinator import calls
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.descriptions import DescribedConsumer, DescribedConsumerGroup, DescribedMember
from headrace.coordinator.subscription import Subscription, write_assignment, write_subscription
from headrace.errors import ErrorCode, KafkaError
from headrace.rpc.errors import error_message, response_header
from headrace.v1 import common_pb2, coordinator_pb2_grpc
from headrace.v1 import coordinator_pb2 as pb

_CLIENT_VERSION = 9
"""Calls over gRPC mean what the newest of Kafka's versions mean."""

_CLASSIC_MEMBER = 0
_Optional: TypeAlias = Literal["instance_id", "rack_id", "subscribed_topic_regex", "server_assignor"]


class GroupService(coordinator_pb2_grpc.CoordinatorServicer):
    """See protos/headrace/v1/coordinator.proto."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def _ask(self, call: Any, how: Callable[[Any], None] | None = None) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        call.token = lambda response: None if answer.done() else answer.set_result(response)
        (how or self._coordinator.handle)(call)
        return await answer

    async def JoinGroup(self, request: pb.JoinGroupRequest, context: Any) -> pb.JoinGroupResponse:
        member = request.member
        found: calls.JoinGroupResponse = await self._ask(
            calls.JoinGroup(
                member.group_id,
                member.member_id,
                member.group_instance_id or None,
                request.session_timeout_ms,
                request.rebalance_timeout_ms,
                request.protocol_type,
                tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
                request.header.client_id,
                _host(context.peer()),
                _CLIENT_VERSION,
            )
        )
        return pb.JoinGroupResponse(
            header=response_header(request),
            error=_error(found.error),
            generation_id=found.generation_id,
            protocol_name=found.protocol_name or "",
            leader=found.leader,
            member_id=found.member_id,
            members=[
                pb.JoinedMember(
                    member_id=each.member_id, group_instance_id=each.group_instance_id or "", metadata=each.metadata
                )
                for each in found.members
            ],
            skip_assignment=found.skip_assignment,
        )

    async def SyncGroup(self, request: pb.SyncGroupRequest, context: Any) -> pb.SyncGroupResponse:
        member = request.member
        found: calls.SyncGroupResponse = await self._ask(
            calls.SyncGroup(
                member.group_id,
                member.generation_id,
                member.member_id,
                member.group_instance_id or None,
                None,
                request.protocol_name or None,
                dict(request.assignments),
            )
        )
        return pb.SyncGroupResponse(
            header=response_header(request),
            error=_error(found.error),
            protocol_name=found.protocol_name or "",
            assignment=found.assignment,
        )

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatResponse:
        member = request.member
        found: calls.HeartbeatResponse = await self._ask(
            calls.Heartbeat(member.group_id, member.generation_id, member.member_id, member.group_instance_id or None)
        )
        return pb.HeartbeatResponse(header=response_header(request), error=_error(found.error))

    async def LeaveGroup(self, request: pb.LeaveGroupRequest, context: Any) -> pb.LeaveGroupResponse:
        members = [calls.LeavingMember(m.member_id, m.group_instance_id or None) for m in request.members]
        found: calls.LeaveGroupResponse = await self._ask(calls.LeaveGroup(request.group_id, members))
        return pb.LeaveGroupResponse(
            header=response_header(request),
            error=_error(found.error),
            members=[_error(each.error) for each in found.members],
        )

    # --- the new protocol

    async def ConsumerGroupHeartbeat(
        self, request: pb.ConsumerGroupHeartbeatRequest, context: Any
    ) -> pb.ConsumerGroupHeartbeatResponse:
        owned: calls.Partitions | None = None
        if request.HasField("topic_partitions"):
            owned = frozenset(self._by_id(each) for each in request.topic_partitions.partitions)
        names = tuple(request.subscribed_topic_names.names) if request.HasField("subscribed_topic_names") else None
        found: calls.ConsumerGroupHeartbeatResponse = await self._ask(
            calls.ConsumerGroupHeartbeat(
                request.group_id,
                request.member_id,
                request.member_epoch,
                _given(request, "instance_id"),
                _given(request, "rack_id"),
                request.rebalance_timeout_ms,
                names,
                _given(request, "subscribed_topic_regex"),
                _given(request, "server_assignor"),
                owned,
                request.header.client_id,
                _host(context.peer()),
            )
        )
        answer = pb.ConsumerGroupHeartbeatResponse(
            header=response_header(request),
            error=error_message(KafkaError(found.error, found.error_message or "")),
            member_id=found.member_id or "",
            member_epoch=found.member_epoch,
            heartbeat_interval_ms=found.heartbeat_interval_ms,
        )
        if found.assignment is not None:
            answer.assignment.CopyFrom(self._listed(found.assignment))
        return answer

    async def ConsumerGroupDescribe(
        self, request: pb.ConsumerGroupDescribeRequest, context: Any
    ) -> pb.ConsumerGroupDescribeResponse:
        response = pb.ConsumerGroupDescribeResponse(header=response_header(request))
        for group_id in request.group_ids:
            found = self._coordinator.describe_consumer_group(group_id)
            response.groups.add(
                group_id=group_id,
                error=_error(found.error),
                state=found.state,
                group_epoch=found.group_epoch,
                assignment_epoch=found.assignment_epoch,
                assignor_name=found.assignor_name,
                members=[self._consumer(member) for member in found.members],
            )
        return response

    def _consumer(self, member: DescribedConsumer) -> pb.ConsumerGroupDescribeResponse.Member:
        return pb.ConsumerGroupDescribeResponse.Member(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=member.member_epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=member.subscribed_topic_names,
            subscribed_topic_regex=member.subscribed_topic_regex,
            assignment=self._listed(member.assignment),
            target_assignment=self._listed(member.target_assignment),
            classic=member.member_type == _CLASSIC_MEMBER,
        )

    def _by_id(self, partition: common_pb2.TopicPartition) -> tuple[uuid.UUID, int]:
        """A partition that a member owns; one of a topic without an id is named by its name."""
        topic_id = _topic_id(partition)
        if topic_id is None:
            topic = self._coordinator.image.topics.get(partition.topic)
            topic_id = topic.id if topic is not None else uuid.UUID(int=0)
        return topic_id, partition.partition

    def _listed(self, partitions: calls.Partitions) -> pb.PartitionList:
        return pb.PartitionList(
            partitions=[self._partition("", topic_id, index) for topic_id, index in sorted(partitions)]
        )

    # --- offsets

    async def OffsetCommit(self, request: pb.OffsetCommitRequest, context: Any) -> pb.OffsetCommitResponse:
        member = request.member
        topics = [
            calls.TopicToCommit(
                each.partition.topic,
                [calls.PartitionToCommit(each.partition.partition, each.offset, each.leader_epoch, each.metadata)],
                _topic_id(each.partition),
            )
            for each in request.offsets
        ]
        found: calls.OffsetCommitResponse = await self._ask(
            calls.OffsetCommit(
                member.group_id,
                topics,
                member.generation_id,
                member.member_id,
                member.group_instance_id or None,
                version=_CLIENT_VERSION,
            )
        )
        return pb.OffsetCommitResponse(
            header=response_header(request),
            partitions=_results((each.partition for each in request.offsets), found.topics),
        )

    async def OffsetFetch(self, request: pb.OffsetFetchRequest, context: Any) -> pb.OffsetFetchResponse:
        groups = [
            calls.GroupToFetch(
                group.group_id,
                [calls.TopicToFetch(p.topic, [p.partition], _topic_id(p)) for p in group.partitions] or None,
                group.member_id or None,
                group.member_epoch if group.HasField("member_epoch") else -1,
            )
            for group in request.groups
        ]
        found: calls.OffsetFetchResponse = await self._ask(
            calls.OffsetFetch(groups, request.require_stable), self._coordinator.fetch_offsets
        )
        response = pb.OffsetFetchResponse(header=response_header(request))
        for group in found.groups:
            answer = response.groups.add(group_id=group.group_id, error=_error(group.error))
            for topic in group.topics:
                for each in topic.partitions:
                    answer.offsets.add(
                        partition=self._partition(topic.name, topic.topic_id, each.partition),
                        offset=each.offset,
                        leader_epoch=each.leader_epoch,
                        metadata=each.metadata,
                        error=_error(each.error),
                    )
        return response

    def _partition(self, name: str, topic_id: uuid.UUID | None, index: int) -> common_pb2.TopicPartition:
        if topic_id is not None and not name:
            name = self._coordinator.image.topic_names.get(topic_id, "")
        return common_pb2.TopicPartition(topic=name, topic_id=topic_id.bytes if topic_id else b"", partition=index)

    async def OffsetDelete(self, request: pb.OffsetDeleteRequest, context: Any) -> pb.OffsetDeleteResponse:
        topics = [calls.TopicToFetch(p.topic, [p.partition], _topic_id(p)) for p in request.partitions]
        found: calls.OffsetDeleteResponse = await self._ask(calls.OffsetDelete(request.group_id, topics))
        return pb.OffsetDeleteResponse(
            header=response_header(request),
            error=_error(found.error),
            partitions=_results(request.partitions, found.topics),
        )

    # --- groups as a whole

    async def ListGroups(self, request: pb.ListGroupsRequest, context: Any) -> pb.ListGroupsResponse:
        response = pb.ListGroupsResponse(header=response_header(request))
        try:
            for group in self._coordinator.list_groups(request.states, request.types):
                response.groups.add(
                    group_id=group.group_id, protocol_type=group.protocol_type, state=group.state, type=group.type
                )
        except KafkaError as error:
            response.error.CopyFrom(error_message(error))
        return response

    async def DescribeGroups(self, request: pb.DescribeGroupsRequest, context: Any) -> pb.DescribeGroupsResponse:
        response = pb.DescribeGroupsResponse(header=response_header(request))
        for group_id in request.group_ids:
            found = self._coordinator.describe_consumer_group(group_id)
            if found.error is ErrorCode.GROUP_ID_NOT_FOUND:
                classic = self._coordinator.describe_group(group_id)
                response.groups.add(
                    group_id=group_id,
                    error=_error(classic.error),
                    state=classic.state,
                    protocol_type=classic.protocol_type,
                    protocol_name=classic.protocol_name,
                    generation_id=classic.generation_id,
                    members=[_member(each) for each in classic.members],
                )
            else:
                response.groups.add(
                    group_id=group_id,
                    error=_error(found.error),
                    state=found.state,
                    protocol_type="consumer",
                    protocol_name=found.assignor_name,
                    generation_id=found.group_epoch,
                    members=self._consumers(found),
                )
        return response

    def _consumers(self, group: DescribedConsumerGroup) -> list[pb.DescribeGroupsResponse.GroupMember]:
        """Members of the new protocol in the words of the old one, which is what tools read."""
        names = self._coordinator.image.topic_names
        members = []
        for each in group.members:
            owned = sorted((names[topic], index) for topic, index in each.assignment if topic in names)
            members.append(
                _member(
                    DescribedMember(
                        each.member_id,
                        each.instance_id,
                        each.client_id,
                        each.client_host,
                        write_subscription(Subscription(0, each.subscribed_topic_names)),
                        write_assignment(0, owned),
                    )
                )
            )
        return members

    async def DeleteGroups(self, request: pb.DeleteGroupsRequest, context: Any) -> pb.DeleteGroupsResponse:
        found: calls.DeleteGroupsResponse = await self._ask(
            calls.DeleteGroups(list(request.group_ids)), self._coordinator.delete_groups
        )
        codes = dict(found.groups)
        return pb.DeleteGroupsResponse(
            header=response_header(request), groups=[_error(codes[group_id]) for group_id in request.group_ids]
        )


def _error(code: ErrorCode) -> common_pb2.Error:
    return error_message(KafkaError(code, ""))


def _given(request: pb.ConsumerGroupHeartbeatRequest, field: _Optional) -> str | None:
    """A field that says something; an absent one has not changed."""
    value: str = getattr(request, field)
    return value if request.HasField(field) else None


def _topic_id(partition: common_pb2.TopicPartition) -> uuid.UUID | None:
    return uuid.UUID(bytes=partition.topic_id) if partition.topic_id else None


def _results(
    asked: Iterable[common_pb2.TopicPartition], found: list[calls.TopicResult]
) -> list[pb.OffsetCommitResponse.PartitionResult]:
    """One result for each partition asked about; each was asked as a topic of its own."""
    codes = [code for topic in found for _, code in topic.partitions]
    # A request that is refused as a whole has no results of its own.
    return [
        pb.OffsetCommitResponse.PartitionResult(partition=partition, error=_error(code))
        for partition, code in zip(asked, codes, strict=False)
    ]


def _member(member: DescribedMember) -> pb.DescribeGroupsResponse.GroupMember:
    return pb.DescribeGroupsResponse.GroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id or "",
        client_id=member.client_id,
        client_host=member.client_host,
        metadata=member.metadata,
        assignment=member.assignment,
    )


def _host(peer: str) -> str:
    """The address in gRPC's name of a peer: `ipv4:127.0.0.1:4711`, as Kafka writes it."""
    kind, _, rest = peer.partition(":")
    return "/" + rest.rpartition(":")[0] if kind in ("ipv4", "ipv6") else peer
