"""The members of a classic group: who is in it, who leads, which protocols all of them can use.

This is the bookkeeping under the state machine of `classic`. It decides nothing about when a group rebalances.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from headrace.coordinator.calls import JoinedMember, JoinGroup, Protocols, SyncGroup
from headrace.coordinator.descriptions import DescribedMember
from headrace.coordinator.effects import TimerKey
from headrace.coordinator.subscription import PROTOCOL_TYPE, MalformedProtocol, read_subscription
from headrace.coordinator.values import ClassicMemberValue
from headrace.errors import ErrorCode, KafkaError


class ClassicMember:
    """A member. `join` and `sync` are its requests that wait for an answer."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "group_instance_id",
        "is_new",
        "join",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_key",
        "session_timeout_ms",
        "sync",
    )

    def __init__(
        self,
        group_id: str,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.is_new = False
        self.join: JoinGroup | None = None
        self.sync: SyncGroup | None = None
        self.session_key = session_key(group_id, member_id)

    def metadata(self, protocol_name: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")

    def vote(self, candidates: set[str]) -> str:
        """Its favourite of those everyone can use."""
        return next(name for name, _ in self.protocols if name in candidates)

    def describe(self, protocol_name: str | None) -> DescribedMember:
        described = DescribedMember(self.member_id, self.group_instance_id, self.client_id, self.client_host)
        if protocol_name is not None:
            described.metadata = self.metadata(protocol_name)
            described.assignment = self.assignment
        return described


def session_key(group_id: str, member_id: str) -> TimerKey:
    return TimerKey("session", group_id, member_id)


def rebalance_timeout(call: JoinGroup) -> int:
    """Version 0 of JoinGroup has no rebalance timeout: the session's is used."""
    return call.session_timeout_ms if call.rebalance_timeout_ms < 0 else call.rebalance_timeout_ms


class Roster:
    """Members in the order they came, with the counts that answer questions about all of them at once."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.members: dict[str, ClassicMember] = {}
        self.static: dict[str, str] = {}
        self.pending: set[str] = set()
        """Ids given out with MEMBER_ID_REQUIRED whose members have not come back yet."""
        self.leader: str | None = None
        self.protocol_type: str | None = None
        self.awaiting_join = 0
        self._supported: Counter[str] = Counter()

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(self.members.values())

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static[member.group_instance_id] = member.member_id
        self.pending.discard(member.member_id)
        self._supported.update(name for name, _ in member.protocols)

    def remove(self, member_id: str) -> ClassicMember | None:
        """Forget a member (or a pending id); the caller has answered what it waits for."""
        self.pending.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self._supported.subtract(name for name, _ in member.protocols)
        if member.join is not None:
            self.awaiting_join -= 1
        if member.group_instance_id is not None and self.static.get(member.group_instance_id) == member_id:
            del self.static[member.group_instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def rename_static(self, member: ClassicMember, member_id: str) -> ClassicMember:
        """The same instance under a new member id, leading if it led."""
        was_leader = self.leader == member.member_id
        self.remove(member.member_id)
        renamed = ClassicMember(
            self.group_id,
            member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
            member.protocols,
            member.assignment,
        )
        protocol_type = self.protocol_type or ""
        self.add(renamed, protocol_type)
        if was_leader:
            self.leader = member_id
        return renamed

    def update(self, member: ClassicMember, call: JoinGroup) -> None:
        self.set_protocols(member, call.protocols)
        member.rebalance_timeout_ms = rebalance_timeout(call)
        member.session_timeout_ms = call.session_timeout_ms

    def set_protocols(self, member: ClassicMember, protocols: Protocols) -> None:
        self._supported.subtract(name for name, _ in member.protocols)
        member.protocols = protocols
        self._supported.update(name for name, _ in protocols)

    def all_joined(self) -> bool:
        return self.awaiting_join == len(self.members) and not self.pending

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it is here for the next generation, else the first member that is."""
        if self.leader is None:
            return False
        if self.members[self.leader].join is not None:
            return True
        joined = next((member for member in self if member.join is not None), None)
        if joined is None:
            return False
        self.leader = joined.member_id
        return True

    def longest_rebalance_timeout(self) -> int:
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def check(self, member_id: str, group_instance_id: str | None) -> ClassicMember:
        """The member that speaks; UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another has its place."""
        if group_instance_id is not None:
            owner = self.static.get(group_instance_id)
            if owner is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has instance id {group_instance_id}")
            if owner != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, f"{owner} took over instance id {group_instance_id}")
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is not in group {self.group_id}: join again")
        return member

    # Protocols

    def common_protocols(self) -> set[str]:
        size = len(self.members)
        return {name for name, count in self._supported.items() if count == size}

    def has_common(self, protocols: Protocols) -> bool:
        size = len(self.members)
        return any(self._supported[name] == size for name, _ in protocols)

    def select_protocol(self) -> str:
        """The protocol with the most votes among those all can use; the earliest voter breaks a tie."""
        candidates = self.common_protocols()
        votes = Counter(member.vote(candidates) for member in self)
        return max(votes, key=votes.__getitem__)

    def subscribed_topics(self, protocol_name: str | None) -> frozenset[str] | None:
        """Topics of a group of consumers; None if the group is not one, or a member's metadata cannot be read."""
        if self.protocol_type != PROTOCOL_TYPE:
            return None
        if not self.members or protocol_name is None:
            return frozenset()
        try:
            return frozenset(
                topic for member in self for topic in read_subscription(member.metadata(protocol_name)).topics
            )
        except MalformedProtocol:
            return None

    def as_leader_sees(self, protocol_name: str | None) -> list[JoinedMember]:
        return [JoinedMember(m.member_id, m.group_instance_id, m.metadata(protocol_name)) for m in self]

    def values(self, protocol_name: str | None, assignments: dict[str, bytes]) -> tuple[ClassicMemberValue, ...]:
        """The members as records keep them."""
        return tuple(
            ClassicMemberValue(
                m.member_id,
                m.group_instance_id,
                m.client_id,
                m.client_host,
                m.rebalance_timeout_ms,
                m.session_timeout_ms,
                m.metadata(protocol_name),
                assignments.get(m.member_id, b""),
            )
            for m in self
        )

    def restore(self, values: Iterable[ClassicMemberValue], protocol_type: str, protocol_name: str | None) -> None:
        """The members as records kept them; only the chosen protocol is known until they join again."""
        for value in values:
            member = ClassicMember(
                self.group_id,
                value.member_id,
                value.group_instance_id,
                value.client_id,
                value.client_host,
                value.rebalance_timeout_ms,
                value.session_timeout_ms,
                ((protocol_name or "", value.metadata),),
                value.assignment,
            )
            self.add(member, protocol_type)
