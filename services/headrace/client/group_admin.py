"""Consumer groups for tools: listed, described, their offsets read and changed, deleted. Part of `Admin`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.client.cluster import Cluster, error_of, raise_for
from headrace.client.consumer_protocol import decode_assignment
from headrace.client.types import OffsetAndMetadata, TopicPartition
from headrace.cluster.coordination import coordinator_of
from headrace.errors import ErrorCode, KafkaError
from headrace.v1 import common_pb2
from headrace.v1 import coordinator_pb2 as pb

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group, and what it reads.

    >>> GroupMember("m-1", "", "billing", "/10.0.0.5", (TopicPartition("orders", 0),)).client_id
    'billing'
    """

    member_id: str
    group_instance_id: str
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group with its members.

    >>> GroupDescription("billing", "Empty", "consumer", "", 3, ()).state
    'Empty'
    """

    group_id: str
    state: str
    protocol_type: str
    assignor: str
    generation: int
    members: tuple[GroupMember, ...]


class GroupAdmin:
    """The calls of `Admin` that go to coordinators."""

    _cluster: Cluster
    _timeout: float

    async def list_groups(self, states: Iterable[str] = (), types: Iterable[str] = ()) -> dict[str, str]:
        """Every group with its state; with `states` or `types` (classic, consumer) only those of one of them.

        >>> await admin.list_groups()  # doctest: +SKIP
        {'billing': 'Stable'}
        """
        request = pb.ListGroupsRequest(states=list(states), types=list(types))

        async def attempt(left: float) -> dict[str, str]:
            nodes = self._cluster.image.coordinators.values()
            if not nodes:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the cluster has no coordinator: start one")
            found: dict[str, str] = {}
            for node in nodes:
                answer = await self._cluster.call(self._cluster.coordinator(node).ListGroups, request, left)
                raise_for(answer.error)
                found.update({group.group_id: group.state for group in answer.groups})
            return dict(sorted(found.items()))

        return await self._cluster.until_done(attempt, self._timeout)

    async def describe_group(self, group_id: str) -> GroupDescription:
        """A group with its members and what they read.

        >>> (await admin.describe_group("billing")).members  # doctest: +SKIP
        """

        async def attempt(left: float) -> GroupDescription:
            request = pb.DescribeGroupsRequest(group_ids=[group_id])
            (group,) = (await self._ask(group_id, "DescribeGroups", request, left)).groups
            raise_for(group.error)
            if group.state == "Dead":
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id}")
            members = [
                GroupMember(
                    m.member_id,
                    m.group_instance_id,
                    m.client_id,
                    m.client_host,
                    tuple(sorted(decode_assignment(m.assignment))),
                )
                for m in group.members
            ]
            return GroupDescription(
                group_id, group.state, group.protocol_type, group.protocol_name, group.generation_id, tuple(members)
            )

        return await self._cluster.until_done(attempt, self._timeout)

    async def list_group_offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Everything a group has committed.

        >>> await admin.list_group_offsets("billing")  # doctest: +SKIP
        """

        async def attempt(left: float) -> dict[TopicPartition, OffsetAndMetadata]:
            request = pb.OffsetFetchRequest()
            request.groups.add(group_id=group_id)
            (group,) = (await self._ask(group_id, "OffsetFetch", request, left)).groups
            raise_for(group.error)
            return {
                TopicPartition(at.partition.topic, at.partition.partition): OffsetAndMetadata(
                    at.offset, at.metadata, at.leader_epoch
                )
                for at in group.offsets
                if not at.error.code and at.offset >= 0
            }

        return await self._cluster.until_done(attempt, self._timeout)

    async def alter_group_offsets(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Stores offsets for a group that has no members.

        >>> await admin.alter_group_offsets("billing", {where: OffsetAndMetadata(0)})  # doctest: +SKIP
        """

        async def attempt(left: float) -> None:
            request = pb.OffsetCommitRequest(member=pb.Member(group_id=group_id, generation_id=-1))
            for partition, at in offsets.items():
                request.offsets.add(
                    partition=_proto(partition), offset=at.offset, leader_epoch=at.leader_epoch, metadata=at.metadata
                )
            for result in (await self._ask(group_id, "OffsetCommit", request, left)).partitions:
                raise_for(result.error)

        await self._with_hint(lambda: self._cluster.until_done(attempt, self._timeout), group_id)

    async def delete_group_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Forgets what a group has committed in some partitions.

        >>> await admin.delete_group_offsets("billing", [TopicPartition("orders", 0)])  # doctest: +SKIP
        """
        listed = [_proto(partition) for partition in partitions]

        async def attempt(left: float) -> None:
            request = pb.OffsetDeleteRequest(group_id=group_id, partitions=listed)
            answer = await self._ask(group_id, "OffsetDelete", request, left)
            raise_for(answer.error)
            for result in answer.partitions:
                raise_for(result.error)

        await self._cluster.until_done(attempt, self._timeout)

    async def delete_groups(self, group_ids: Iterable[str]) -> dict[str, KafkaError | None]:
        """Deletes groups without members; the answer says for each why it failed, or None.

        >>> await admin.delete_groups(["billing"])  # doctest: +SKIP
        """
        found: dict[str, KafkaError | None] = {}
        for group_id in group_ids:

            async def attempt(left: float, group_id: str = group_id) -> None:
                request = pb.DeleteGroupsRequest(group_ids=[group_id])
                (error,) = (await self._ask(group_id, "DeleteGroups", request, left)).groups
                if error.code:
                    refused = error_of(error)
                    raise KafkaError(refused.code, refused.message or group_id)

            try:
                await self._cluster.until_done(attempt, self._timeout)
                found[group_id] = None
            except KafkaError as error:
                found[group_id] = error
        return found

    async def remove_group_members(
        self, group_id: str, member_ids: Iterable[str] = (), *, instance_ids: Iterable[str] = ()
    ) -> dict[str, KafkaError | None]:
        """Sends members away, by id or by `group.instance.id`; neither: all of them. Live ones join again.

        >>> await admin.remove_group_members("billing", instance_ids=["pod-3"])  # doctest: +SKIP
        """
        members = [pb.Member(member_id=each) for each in member_ids]
        members += [pb.Member(group_instance_id=each) for each in instance_ids]
        if not members:
            members = [pb.Member(member_id=each.member_id) for each in (await self.describe_group(group_id)).members]

        async def attempt(left: float) -> dict[str, KafkaError | None]:
            request = pb.LeaveGroupRequest(group_id=group_id, members=members, reason="removed by an administrator")
            answer = await self._ask(group_id, "LeaveGroup", request, left)
            raise_for(answer.error)
            return {
                who.member_id or who.group_instance_id: error_of(error) if error.code else None
                for who, error in zip(members, answer.members, strict=True)
            }

        return await self._cluster.until_done(attempt, self._timeout)

    async def _ask(self, group_id: str, method: str, request: Any, timeout: float) -> Any:
        node = coordinator_of(self._cluster.image, group_id)
        return await self._cluster.call(getattr(self._cluster.coordinator(node), method), request, timeout)

    async def _with_hint(self, work: Callable[[], Awaitable[T]], group_id: str) -> T:
        try:
            return await work()
        except KafkaError as error:
            if error.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
                text = f"group {group_id} has members: stop them before you change its offsets"
                raise KafkaError(ErrorCode.NON_EMPTY_GROUP, text) from None
            raise


def _proto(partition: TopicPartition) -> common_pb2.TopicPartition:
    return common_pb2.TopicPartition(topic=partition.topic, partition=partition.partition)
