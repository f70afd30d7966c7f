"""What clients ask of a coordinator and what it answers, in the words of Kafka's protocol.

One class a request, one a response, without the wire's versions: `version` is there only where it changes the meaning.
Each call carries the `token` its answer goes back with, and knows how it is refused as a whole.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from headrace.coordinator.effects import Token, unanswered
from headrace.errors import ErrorCode

NONE = ErrorCode.NONE
UNKNOWN_MEMBER_ID = ""
NO_GENERATION = -1

Partitions: TypeAlias = frozenset[tuple[uuid.UUID, int]]
Protocols: TypeAlias = tuple[tuple[str, bytes], ...]


@dataclass(slots=True)
class JoinedMember:
    """A member as its leader sees it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(slots=True)
class JoinGroupResponse:
    error: ErrorCode = NONE
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = ""
    members: list[JoinedMember] = field(default_factory=list)


@dataclass(slots=True)
class JoinGroup:
    """Enters a group (key 11). From version 4 a new dynamic member is first given its id; 9 may skip the assignment."""

    group_id: str
    member_id: str = ""
    group_instance_id: str | None = None
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = -1
    protocol_type: str = "consumer"
    protocols: Protocols = ()
    client_id: str = ""
    client_host: str = ""
    version: int = 9
    token: Token = unanswered

    def refuse(self, code: ErrorCode, message: str = "") -> JoinGroupResponse:
        return JoinGroupResponse(code, member_id=self.member_id)


@dataclass(slots=True)
class SyncGroupResponse:
    error: ErrorCode = NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(slots=True)
class SyncGroup:
    """Asks for a member's share (key 14); the leader brings everyone's."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: dict[str, bytes] = field(default_factory=dict)
    token: Token = unanswered

    def refuse(self, code: ErrorCode, message: str = "") -> SyncGroupResponse:
        return SyncGroupResponse(code)


@dataclass(slots=True)
class HeartbeatResponse:
    error: ErrorCode = NONE


@dataclass(slots=True)
class Heartbeat:
    """A member is alive (key 12)."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    token: Token = unanswered

    def refuse(self, code: ErrorCode, message: str = "") -> HeartbeatResponse:
        return HeartbeatResponse(code)


@dataclass(slots=True)
class LeavingMember:
    member_id: str
    group_instance_id: str | None = None
    error: ErrorCode = NONE


@dataclass(slots=True)
class LeaveGroupResponse:
    error: ErrorCode = NONE
    members: list[LeavingMember] = field(default_factory=list)


@dataclass(slots=True)
class LeaveGroup:
    """Members go (key 13); before version 3 there is exactly one, and its error is the answer's."""

    group_id: str
    members: list[LeavingMember]
    token: Token = unanswered

    def refuse(self, code: ErrorCode, message: str = "") -> LeaveGroupResponse:
        return LeaveGroupResponse(code)


@dataclass(slots=True)
class ConsumerGroupHeartbeatResponse:
    error: ErrorCode = NONE
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None
    """None: nothing new."""


@dataclass(slots=True)
class ConsumerGroupHeartbeat:
    """Joins (epoch 0), keeps alive and reconciles, or leaves (-1; -2 for a static member) by KIP-848 (key 68).

    None in a field means it has not changed since the member's last heartbeat.
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    topic_partitions: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    version: int = 1
    token: Token = unanswered

    def refuse(self, code: ErrorCode, message: str = "") -> ConsumerGroupHeartbeatResponse:
        return ConsumerGroupHeartbeatResponse(code, message or None)


class PartitionToCommit(NamedTuple):
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(slots=True)
class TopicToCommit:
    """A topic by name, or from version 10 by id."""

    name: str
    partitions: list[PartitionToCommit]
    topic_id: uuid.UUID | None = None


@dataclass(slots=True)
class TopicResult:
    """One result a partition, in the order asked."""

    name: str
    topic_id: uuid.UUID | None
    partitions: list[tuple[int, ErrorCode]]


@dataclass(slots=True)
class OffsetCommitResponse:
    topics: list[TopicResult]


@dataclass(slots=True)
class OffsetCommit:
    """Stores how far a group has come (key 8). Generation -1 comes from outside the group."""

    group_id: str
    topics: list[TopicToCommit]
    generation_id: int = NO_GENERATION
    member_id: str = ""
    group_instance_id: str | None = None
    retention_time_ms: int = -1
    version: int = 10
    token: Token = unanswered

    def refuse(self, code: ErrorCode, message: str = "") -> OffsetCommitResponse:
        return OffsetCommitResponse(
            [TopicResult(t.name, t.topic_id, [(p.partition, code) for p in t.partitions]) for t in self.topics]
        )


@dataclass(slots=True)
class TopicToFetch:
    name: str
    partitions: list[int]
    topic_id: uuid.UUID | None = None


@dataclass(slots=True)
class GroupToFetch:
    """One group's offsets; `topics` None: all it has. Members of the new protocol say who they are."""

    group_id: str
    topics: list[TopicToFetch] | None = None
    member_id: str | None = None
    member_epoch: int = -1


@dataclass(slots=True)
class FetchedOffset:
    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    error: ErrorCode = NONE


@dataclass(slots=True)
class FetchedTopic:
    name: str
    topic_id: uuid.UUID | None
    partitions: list[FetchedOffset]


@dataclass(slots=True)
class FetchedGroup:
    group_id: str
    error: ErrorCode = NONE
    topics: list[FetchedTopic] = field(default_factory=list)


@dataclass(slots=True)
class OffsetFetchResponse:
    groups: list[FetchedGroup]


@dataclass(slots=True)
class OffsetFetch:
    """How far groups have come (key 9). There are no open transactions yet, so every offset is stable."""

    groups: list[GroupToFetch]
    require_stable: bool = False
    token: Token = unanswered

    def refuse(self, code: ErrorCode, message: str = "") -> OffsetFetchResponse:
        return OffsetFetchResponse([FetchedGroup(g.group_id, code) for g in self.groups])


@dataclass(slots=True)
class OffsetDeleteResponse:
    error: ErrorCode = NONE
    topics: list[TopicResult] = field(default_factory=list)


@dataclass(slots=True)
class OffsetDelete:
    """Forgets how far a group has come in topics that nobody in it reads (key 47)."""

    group_id: str
    topics: list[TopicToFetch]
    token: Token = unanswered

    def refuse(self, code: ErrorCode, message: str = "") -> OffsetDeleteResponse:
        return OffsetDeleteResponse(code)


@dataclass(slots=True)
class DeleteGroupsResponse:
    groups: list[tuple[str, ErrorCode]]


@dataclass(slots=True)
class DeleteGroups:
    """Deletes groups without members, with their offsets (key 42)."""

    group_ids: list[str]
    token: Token = unanswered

    def refuse(self, code: ErrorCode, message: str = "") -> DeleteGroupsResponse:
        return DeleteGroupsResponse([(group_id, code) for group_id in self.group_ids])
