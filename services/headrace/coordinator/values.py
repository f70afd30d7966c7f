"""What the offsets topic remembers of groups: committed offsets, classic groups, and members of consumer groups.

The same classes hold it in memory. They are immutable: a change makes a new one and, where it must survive, a record.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from headrace.coordinator.calls import Partitions, Protocols

NO_PARTITIONS: Partitions = frozenset()
LEAVE_GROUP_EPOCH = -1
LEAVE_GROUP_STATIC_EPOCH = -2


class CommittedOffset(NamedTuple):
    """How far a group has come in one partition. `expires` is -1 unless the commit asked for its own retention."""

    offset: int
    leader_epoch: int
    metadata: str
    committed: int
    expires: int = -1


@dataclass(frozen=True, slots=True)
class ClassicMemberValue:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    metadata: bytes
    """The subscription under the protocol that was chosen."""
    assignment: bytes


@dataclass(frozen=True, slots=True)
class ClassicValue:
    """A classic group as of its last finished rebalance."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    state_since: int
    members: tuple[ClassicMemberValue, ...]


class MemberState(IntEnum):
    """Where a member of a consumer group is on its way to its target assignment."""

    STABLE = 1
    UNREVOKED_PARTITIONS = 2
    """It still has to give partitions back."""
    UNRELEASED_PARTITIONS = 3
    """It waits for partitions that others still have to give back."""


@dataclass(frozen=True, slots=True)
class ClassicProtocol:
    """What is kept of a member of a consumer group that speaks the classic protocol."""

    session_timeout_ms: int
    protocols: Protocols


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """Who a member of a consumer group is and what it wants."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topic_names: tuple[str, ...] = ()
    """Sorted."""
    topic_regex: str | None = None
    assignor: str | None = None
    classic: ClassicProtocol | None = None


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """What a member of a consumer group has. `previous_epoch` is accepted once more: the answer may have been lost."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    revoking: Partitions = NO_PARTITIONS
    """Taken from the member, but it has not confirmed yet that it stopped."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupEpochs:
    """The epochs of a consumer group: of its members and subscriptions, and of the assignment made from them."""

    epoch: int = 0
    assignment_epoch: int = 0
    fingerprint: int = 0
    """Of the subscribed topics, when the epoch was made."""
