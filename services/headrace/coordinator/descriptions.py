"""Groups as people see them: what ListGroups, DescribeGroups and ConsumerGroupDescribe answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.coordinator.calls import NONE, Partitions
from headrace.errors import ErrorCode


@dataclass(slots=True)
class ListedGroup:
    group_id: str
    protocol_type: str
    state: str
    type: str


@dataclass(slots=True)
class DescribedMember:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment: bytes = b""


@dataclass(slots=True)
class DescribedGroup:
    """A classic group; one that does not exist is Dead with GROUP_ID_NOT_FOUND (version 6; before it, no error)."""

    group_id: str
    error: ErrorCode = NONE
    state: str = "Dead"
    protocol_type: str = ""
    protocol_name: str = ""
    generation_id: int = -1
    members: list[DescribedMember] = field(default_factory=list)


@dataclass(slots=True)
class DescribedConsumer:
    """A member of a consumer group. `member_type` is 0 for one that speaks the classic protocol, else 1."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    assignment: Partitions
    target_assignment: Partitions
    member_type: int


@dataclass(slots=True)
class DescribedConsumerGroup:
    group_id: str
    error: ErrorCode = NONE
    state: str = "Dead"
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: list[DescribedConsumer] = field(default_factory=list)
