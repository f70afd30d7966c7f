"""A classic consumer group: members join, a leader assigns, everyone syncs, and heartbeats keep it together.

    Empty ──join──▶ PreparingRebalance ──all joined or time is up──▶ CompletingRebalance ──sync stored──▶ Stable
      ▲                 ▲        │ nobody left                          │                                 │
      └─────────────────┼────────┘                                      │                                 │
                        └──── a member comes, goes, changes or expires ─┴─────────────────────────────────┘
    any ──deleted, expired, converted or unloaded──▶ Dead

Each generation has one leader and one assignment, which is stored before anyone hears of it. Requests that wait (a
JoinGroup until the group has formed, a SyncGroup until the assignment is stored) are kept on their member and are
always answered: by the group, by the request that replaces them, or by the timeout that ends the wait.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from headrace.coordinator.calls import (
    UNKNOWN_MEMBER_ID,
    Heartbeat,
    HeartbeatResponse,
    JoinGroup,
    JoinGroupResponse,
    LeaveGroup,
    LeaveGroupResponse,
    LeavingMember,
    OffsetCommit,
    SyncGroup,
    SyncGroupResponse,
)
from headrace.coordinator.descriptions import DescribedGroup
from headrace.coordinator.effects import TimerKey
from headrace.coordinator.env import Env
from headrace.coordinator.records import classic_record
from headrace.coordinator.roster import ClassicMember, Roster, rebalance_timeout, session_key
from headrace.coordinator.subscription import PROTOCOL_TYPE
from headrace.coordinator.values import ClassicValue
from headrace.errors import ErrorCode, KafkaError

_MEMBER_ID_REQUIRED_VERSION = 4
_SKIP_ASSIGNMENT_VERSION = 9


class GroupState(StrEnum):
    """States of a classic group, as ListGroups names them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class ClassicGroup:
    """One classic group. Calls and timers come from the shard; effects go to `env.fx`."""

    type = "classic"

    def __init__(self, group_id: str, env: Env) -> None:
        self.group_id = group_id
        self.roster = Roster(group_id)
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_name: str | None = None
        self.subscribed: frozenset[str] | None = None
        self.state_since = env.now
        self.stored: ClassicValue | None = None
        """What the log says of the group, once the appends under way are stored."""
        self._in_log: ClassicValue | None = None
        self._env = env
        self._previous = GroupState.EMPTY
        self._pending_sync: set[str] = set()
        self._new_member_added = False
        self._initial_wait = (0, 0)
        """The delay running now and the time left after it, while a new group waits for more members."""
        self._rebalance_began = 0
        self._join_key = TimerKey("join", group_id)
        self._sync_key = TimerKey("sync", group_id)

    @classmethod
    def restore(cls, group_id: str, value: ClassicValue, env: Env) -> ClassicGroup:
        """The group as its record tells it, with everyone's session started afresh."""
        group = cls(group_id, env)
        group.generation = value.generation
        group.protocol_name = value.protocol_name
        group.roster.protocol_type = value.protocol_type or None
        group.roster.restore(value.members, value.protocol_type, value.protocol_name)
        if value.leader in group.roster.members:
            group.roster.leader = value.leader
        group.state = group._previous = GroupState.STABLE if value.members else GroupState.EMPTY
        group.state_since = value.state_since
        group.subscribed = group.roster.subscribed_topics(value.protocol_name)
        group.stored = group._in_log = value
        return group

    def start(self) -> None:
        """Begin to expect heartbeats, after loading or conversion."""
        for member in self.roster:
            self._expect_heartbeat(member)
        if len(self.roster.members) > self._env.config.group_max_size:
            self._prepare_rebalance()

    @property
    def protocol_type(self) -> str | None:
        return self.roster.protocol_type

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.roster.protocol_type == PROTOCOL_TYPE

    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    def subscribed_to(self, topic: str) -> bool:
        """Whether a member reads the topic; a group of consumers whose topics are unknown reads everything."""
        return self.uses_consumer_protocol and (self.subscribed is None or topic in self.subscribed)

    # JoinGroup

    def join(self, call: JoinGroup) -> None:
        if self.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group is being removed")
        if not self._has_room_for(call.member_id):
            self._drop(call.member_id, ErrorCode.GROUP_MAX_SIZE_REACHED)
            self._env.fx.reply(call, JoinGroupResponse(ErrorCode.GROUP_MAX_SIZE_REACHED))
            self._complete_join_if_all()
        elif not self._supports(call):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "no protocol that all members know")
        elif call.member_id == UNKNOWN_MEMBER_ID:
            self._join_new(call)
        elif call.member_id in self.roster.pending and call.group_instance_id is None:
            self._add_member(call, call.member_id)
        else:
            self._join_known(call, self.roster.check(call.member_id, call.group_instance_id))

    def _has_room_for(self, member_id: str) -> bool:
        most = self._env.config.group_max_size
        member = self.roster.members.get(member_id)
        if self.state is GroupState.PREPARING_REBALANCE:
            # Those waiting are counted, not the members: the group may be over a limit that was lowered since, and
            # then the last to join again are the ones that go.
            return (member is not None and member.join is not None) or self.roster.awaiting_join < most
        if self.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return member is not None or len(self.roster.members) < most
        return True

    def _supports(self, call: JoinGroup) -> bool:
        if self.state is GroupState.EMPTY:
            return bool(call.protocol_type) and bool(call.protocols)
        return call.protocol_type == self.protocol_type and self.roster.has_common(call.protocols)

    def _join_new(self, call: JoinGroup) -> None:
        prefix = call.client_id if call.group_instance_id is None else call.group_instance_id
        member_id = f"{prefix}-{self._env.new_id()}"
        if call.group_instance_id is not None and call.group_instance_id in self.roster.static:
            self._replace_static(call, self.roster.static[call.group_instance_id], member_id)
        elif call.group_instance_id is None and call.version >= _MEMBER_ID_REQUIRED_VERSION:
            self.roster.pending.add(member_id)
            self._env.fx.schedule(session_key(self.group_id, member_id), self._env.now + call.session_timeout_ms)
            self._env.fx.reply(call, JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
        else:
            self._add_member(call, member_id)

    def _join_known(self, call: JoinGroup, member: ClassicMember) -> None:
        unchanged = member.protocols == call.protocols
        if self.state is GroupState.COMPLETING_REBALANCE and unchanged:
            # It asks again with nothing new: the first answer was lost.
            self._env.fx.reply(call, self._joined(member))
        elif self.state is GroupState.STABLE and unchanged and self.roster.leader != member.member_id:
            self._env.fx.reply(call, self._joined(member))
        elif self.state is GroupState.EMPTY:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "the group has no members: join with an empty member id")
        else:
            # In Stable this is also how a leader asks for a new assignment, because partitions were added.
            self.roster.update(member, call)
            self._await_join(member, call)
            self._rebalance_or_complete()

    def _add_member(self, call: JoinGroup, member_id: str) -> None:
        member = ClassicMember(
            self.group_id,
            member_id,
            call.group_instance_id,
            call.client_id,
            call.client_host,
            rebalance_timeout(call),
            call.session_timeout_ms,
            call.protocols,
        )
        member.is_new = True
        if self.state is GroupState.PREPARING_REBALANCE and self._previous is GroupState.EMPTY:
            self._new_member_added = True
        self.roster.add(member, call.protocol_type)
        self._await_join(member, call)
        # A new member cannot send heartbeats before it has its answer. If its client gave up meanwhile, it would
        # stay and hold up every rebalance, so its wait has an end of its own.
        self._env.fx.schedule(member.session_key, self._env.now + self._env.config.new_member_join_timeout_ms)
        self._rebalance_or_complete()

    def _await_join(self, member: ClassicMember, call: JoinGroup) -> None:
        if member.join is None:
            self.roster.awaiting_join += 1
        else:
            self._env.fx.reply(member.join, member.join.refuse(ErrorCode.REBALANCE_IN_PROGRESS))
        member.join = call

    def _replace_static(self, call: JoinGroup, old_id: str, member_id: str) -> None:
        """A static member came back without its member id: it takes its old place, and the old id is fenced."""
        fx = self._env.fx
        old = self.roster.members[old_id]
        leader_before = self.roster.leader
        self._answer_waiting(old, ErrorCode.FENCED_INSTANCE_ID)
        fx.cancel(old.session_key)
        self._pending_sync.discard(old_id)
        member = self.roster.rename_static(old, member_id)
        self.roster.update(member, call)
        self._expect_heartbeat(member)
        if self.state is GroupState.STABLE and self.roster.select_protocol() == self.protocol_name:
            # Nothing changes for the others: no rebalance, only the new id is stored.
            if call.version >= _SKIP_ASSIGNMENT_VERSION:
                response = self._joined(member)
                response.skip_assignment = self.roster.leader == member_id
            else:
                # Clients that cannot skip the assignment would assign on their own if they saw themselves lead.
                response = self._joined(member, leader=leader_before)
                response.members = []
            append_id = self._store({m.member_id: m.assignment for m in self.roster})
            fx.reply_after(append_id, call, response)
            return
        self._await_join(member, call)
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._prepare_rebalance()
        else:
            self._complete_join_if_all()

    def _joined(self, member: ClassicMember, leader: str | None = None) -> JoinGroupResponse:
        leads = self.roster.leader == member.member_id
        return JoinGroupResponse(
            ErrorCode.NONE,
            self.generation,
            self.protocol_type,
            self.protocol_name,
            (leader or self.roster.leader) or "",
            False,
            member.member_id,
            self.roster.as_leader_sees(self.protocol_name) if leads else [],
        )

    # The rebalance

    def _transition(self, state: GroupState) -> None:
        self._previous = self.state
        self.state = state
        self.state_since = self._env.now

    def _rebalance_or_complete(self) -> None:
        if self.state in (GroupState.EMPTY, GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._prepare_rebalance()
        else:
            self._complete_join_if_all()

    def _prepare_rebalance(self) -> None:
        fx, now = self._env.fx, self._env.now
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._propagate({}, ErrorCode.REBALANCE_IN_PROGRESS)
        self._end_sync_wait()
        is_initial = self.state is GroupState.EMPTY
        self._transition(GroupState.PREPARING_REBALANCE)
        self._rebalance_began = now
        self._env.metrics.classic_rebalances_begun += 1
        if is_initial:
            # More members are likely to come within moments of the first: wait for them, once.
            delay = self._env.config.group_initial_rebalance_delay_ms
            self._initial_wait = (delay, max(self.roster.longest_rebalance_timeout() - delay, 0))
            self._new_member_added = False
            fx.schedule(self._join_key, now + delay)
        elif self.roster.all_joined():
            self._complete_join()
        else:
            fx.schedule(self._join_key, now + self.roster.longest_rebalance_timeout())

    def _complete_join_if_all(self) -> None:
        waits_on_delay = self._previous is GroupState.EMPTY
        if self.state is GroupState.PREPARING_REBALANCE and not waits_on_delay and self.roster.all_joined():
            self._complete_join()

    def on_join_timer(self) -> None:
        """The initial delay, or the time the others had to join again, is over."""
        if self.state is not GroupState.PREPARING_REBALANCE:
            return
        delay, remaining = self._initial_wait
        if self._previous is GroupState.EMPTY and self._new_member_added and remaining:
            self._new_member_added = False
            next_delay = min(self._env.config.group_initial_rebalance_delay_ms, remaining)
            self._initial_wait = (next_delay, max(remaining - delay, 0))
            self._env.fx.schedule(self._join_key, self._env.now + next_delay)
        else:
            self._complete_join()

    def _complete_join(self) -> None:
        """Everyone who comes is here: begin the next generation with them."""
        fx, now = self._env.fx, self._env.now
        fx.cancel(self._join_key)
        for member in [m for m in self.roster if m.join is None and m.group_instance_id is None]:
            self._env.metrics.members_expired += 1
            self._drop(member.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if self.roster.members and not self.roster.elect_joined_leader():
            # Only static members are left and none came: wait until one does or their sessions end. A member may
            # have asked for a rebalance timeout of nothing, so the wait has a least length.
            wait = max(self.roster.longest_rebalance_timeout(), self._env.config.group_min_session_timeout_ms)
            fx.schedule(self._join_key, now + wait)
            return
        self.generation += 1
        self._pending_sync.clear()
        if not self.roster.members:
            self.protocol_name = None
            self.roster.leader = None
            self.subscribed = self.roster.subscribed_topics(None)
            self._transition(GroupState.EMPTY)
            self._store({})
            return
        self.protocol_name = self.roster.select_protocol()
        self.subscribed = self.roster.subscribed_topics(self.protocol_name)
        self._transition(GroupState.COMPLETING_REBALANCE)
        for member in self.roster:
            if member.join is not None:
                fx.reply(member.join, self._joined(member))
                member.join = None
            member.is_new = False
            self._expect_heartbeat(member)
            self._pending_sync.add(member.member_id)
        self.roster.awaiting_join = 0
        fx.schedule(self._sync_key, now + self.roster.longest_rebalance_timeout())

    # SyncGroup

    def sync(self, call: SyncGroup) -> None:
        if self.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group is being removed")
        if self.state is GroupState.EMPTY:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "the group has no members")
        member = self.roster.check(call.member_id, call.group_instance_id)
        self._check_generation(call.generation_id)
        if (call.protocol_type is not None and call.protocol_type != self.protocol_type) or (
            call.protocol_name is not None and call.protocol_name != self.protocol_name
        ):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the group uses {self.protocol_name}")
        if self.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "join again")
        self._pending_sync.discard(member.member_id)
        if not self._pending_sync:
            self._env.fx.cancel(self._sync_key)
        if self.state is GroupState.STABLE:
            self._env.fx.reply(call, self._synced(member))
            return
        if member.sync is not None:
            self._env.fx.reply(member.sync, member.sync.refuse(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync = call
        if self.roster.leader == member.member_id:
            self._store_assignment(call.assignments)

    def _synced(self, member: ClassicMember) -> SyncGroupResponse:
        return SyncGroupResponse(ErrorCode.NONE, self.protocol_type, self.protocol_name, member.assignment)

    def _store_assignment(self, brought: dict[str, bytes]) -> None:
        """Store what the leader brought; members it left out get nothing."""
        assignments = {member_id: brought.get(member_id, b"") for member_id in self.roster.members}
        generation = self.generation

        def current() -> bool:
            # A member may have come or gone while the append was under way: then it means nothing any more.
            return self.state is GroupState.COMPLETING_REBALANCE and self.generation == generation

        def stored() -> None:
            if current():
                self._propagate(assignments, ErrorCode.NONE)
                self._transition(GroupState.STABLE)
                self._env.metrics.classic_rebalances += 1
                self._env.metrics.classic_rebalance_ms += self._env.now - self._rebalance_began

        def failed(code: ErrorCode) -> None:
            if current():
                self._propagate({}, code)
                self._prepare_rebalance()

        self._store(assignments, stored, failed)

    def _propagate(self, assignments: dict[str, bytes], error: ErrorCode) -> None:
        for member in self.roster:
            member.assignment = assignments.get(member.member_id, b"")
            if member.sync is not None:
                call, member.sync = member.sync, None
                response = self._synced(member) if error is ErrorCode.NONE else call.refuse(error)
                self._env.fx.reply(call, response)
                # Sessions are not watched while a member waits for us.
                self._expect_heartbeat(member)

    def _end_sync_wait(self) -> None:
        self._pending_sync.clear()
        self._env.fx.cancel(self._sync_key)

    def on_sync_timer(self) -> None:
        """Members that joined but did not ask for their share in time are out."""
        if self.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not self._pending_sync:
            return
        for member_id in sorted(self._pending_sync):
            self._env.metrics.members_expired += 1
            self._drop(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        self._prepare_rebalance()

    # Heartbeat and sessions

    def heartbeat(self, call: Heartbeat) -> None:
        if self.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group is being removed")
        member = self.roster.members.get(call.member_id)
        if member is None or call.group_instance_id != member.group_instance_id:
            member = self.roster.check(call.member_id, call.group_instance_id)
        self._check_generation(call.generation_id)
        env = self._env
        env.fx.schedule(member.session_key, env.now + member.session_timeout_ms)
        rebalancing = self.state is GroupState.PREPARING_REBALANCE
        env.fx.reply(call, HeartbeatResponse(ErrorCode.REBALANCE_IN_PROGRESS if rebalancing else ErrorCode.NONE))

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"the group is at generation {self.generation}: join again")

    def _expect_heartbeat(self, member: ClassicMember) -> None:
        self._env.fx.schedule(member.session_key, self._env.now + member.session_timeout_ms)

    def on_session_timer(self, member_id: str) -> None:
        """A member was silent for its whole session, or an id that was given out never came back."""
        if member_id in self.roster.pending:
            self.roster.remove(member_id)
            self._complete_join_if_all()
            return
        member = self.roster.members.get(member_id)
        # Who waits for our answer cannot be blamed for silence, unless it is new: its wait has an end.
        if member is None or (not member.is_new and (member.join is not None or member.sync is not None)):
            return
        self._env.metrics.members_expired += 1
        self._drop(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._prepare_rebalance()
        elif self.state is GroupState.PREPARING_REBALANCE and self.roster.all_joined():
            self._complete_join()

    # LeaveGroup

    def leave(self, call: LeaveGroup) -> None:
        if self.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group is being removed")
        results = [self._leave_one(leaving) for leaving in call.members]
        if any(result.error is ErrorCode.NONE for result in results):
            if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
                self._prepare_rebalance()
            else:
                self._complete_join_if_all()
        self._env.fx.reply(call, LeaveGroupResponse(ErrorCode.NONE, results))

    def _leave_one(self, leaving: LeavingMember) -> LeavingMember:
        member_id, instance_id = leaving.member_id, leaving.group_instance_id
        try:
            if member_id == UNKNOWN_MEMBER_ID and instance_id in self.roster.static:
                # An administrator removes a static member by its instance id alone.
                self._drop(self.roster.static[instance_id], ErrorCode.UNKNOWN_MEMBER_ID)
            elif member_id in self.roster.pending:
                self._drop(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
            else:
                self.roster.check(member_id, instance_id)
                self._drop(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        except KafkaError as error:
            return LeavingMember(member_id, instance_id, error.code)
        return LeavingMember(member_id, instance_id)

    def _answer_waiting(self, member: ClassicMember, code: ErrorCode) -> None:
        if member.join is not None:
            fenced = code is ErrorCode.FENCED_INSTANCE_ID
            response = JoinGroupResponse(code, member_id=member.member_id if fenced else UNKNOWN_MEMBER_ID)
            self._env.fx.reply(member.join, response)
            member.join = None
            self.roster.awaiting_join -= 1
        if member.sync is not None:
            self._env.fx.reply(member.sync, member.sync.refuse(code))
            member.sync = None

    def _drop(self, member_id: str, code: ErrorCode) -> None:
        """Remove a member or a pending id, and send away what it waits for with `code`."""
        member = self.roster.members.get(member_id)
        if member is not None:
            self._answer_waiting(member, code)
        self.roster.remove(member_id)
        self._pending_sync.discard(member_id)
        self._env.fx.cancel(session_key(self.group_id, member_id))

    # Offsets

    def check_commit(self, call: OffsetCommit) -> None:
        """Whether this commit may be stored; a member's commit also keeps its session."""
        if self.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group is being removed")
        if call.generation_id < 0 and self.state is GroupState.EMPTY:
            return
        if call.generation_id < 0 and not call.member_id and call.group_instance_id is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "the group has members: only they may commit")
        member = self.roster.check(call.member_id, call.group_instance_id)
        self._check_generation(call.generation_id)
        if self.state is GroupState.COMPLETING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "sync, then commit again")
        self._expect_heartbeat(member)

    def check_offset_delete(self) -> None:
        if self.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, "the group is being removed")
        if self.state is not GroupState.EMPTY and not self.uses_consumer_protocol:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "the group has members, and they are not consumers")

    def expiry_base(self, committed: int) -> int | None:
        """The moment from which an offset's retention counts; None: it does not expire now."""
        if self.protocol_type is None:
            return committed
        if self.state is GroupState.EMPTY:
            return max(self.state_since, committed)
        if self.uses_consumer_protocol and self.subscribed is not None and self.state is GroupState.STABLE:
            return committed
        return None

    # Storing, describing, ending

    def _value(self, assignments: dict[str, bytes]) -> ClassicValue:
        return ClassicValue(
            self.protocol_type or "",
            self.generation,
            self.protocol_name,
            self.roster.leader,
            self.state_since,
            self.roster.values(self.protocol_name, assignments),
        )

    def _store(
        self,
        assignments: dict[str, bytes],
        then: Callable[[], None] | None = None,
        otherwise: Callable[[ErrorCode], None] | None = None,
    ) -> int:
        """Append the group as it is. If that fails memory stands: the next store brings the log up to it."""
        value = self._value(assignments)
        self.stored = value

        def done() -> None:
            self._in_log = value
            if then is not None:
                then()

        def failed(code: ErrorCode) -> None:
            if self.stored is value:
                self.stored = self._in_log
            if otherwise is not None:
                otherwise(code)

        return self._env.fx.append([classic_record(self.group_id, value)], done, failed)

    def begin_rebalance(self) -> None:
        """Ask everyone to join again, after a conversion."""
        self._prepare_rebalance()

    def describe(self) -> DescribedGroup:
        stable = self.state is GroupState.STABLE
        protocol_name = self.protocol_name if stable else None
        return DescribedGroup(
            self.group_id,
            ErrorCode.NONE,
            self.state.value,
            self.protocol_type or "",
            protocol_name or "",
            self.generation,
            [member.describe(protocol_name) for member in self.roster],
        )

    def end(self, code: ErrorCode) -> None:
        """The group is gone from here: send away everyone who waits, stop its timers."""
        for member in self.roster:
            self._answer_waiting(member, code)
            self._env.fx.cancel(member.session_key)
        for member_id in self.roster.pending:
            self._env.fx.cancel(session_key(self.group_id, member_id))
        self._end_sync_wait()
        self._env.fx.cancel(self._join_key)
        self._transition(GroupState.DEAD)
