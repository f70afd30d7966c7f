"""All groups of one partition of the offsets topic: where calls, timers and stored appends come in.

A shard is loaded from the partition's records, answers calls until it is unloaded, and then is thrown away. It has no
I/O: every method returns the effects to carry out (see `effects`). Calls for groups of other partitions must not get
here: `partition_for` says where a group lives. And a shard must know the topics before it answers its first call: to
it, a topic that is missing is a topic that was deleted.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import lru_cache
from typing import Any, TypeVar

from headrace.coordinator import mixed
from headrace.coordinator.calls import (
    UNKNOWN_MEMBER_ID,
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatResponse,
    DeleteGroups,
    DeleteGroupsResponse,
    FetchedGroup,
    GroupToFetch,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetFetchResponse,
    SyncGroup,
)
from headrace.coordinator.classic import ClassicGroup
from headrace.coordinator.config import GroupConfig
from headrace.coordinator.consumer import ConsumerGroup, check_heartbeat
from headrace.coordinator.descriptions import DescribedConsumerGroup, DescribedGroup, ListedGroup
from headrace.coordinator.effects import Call, Effect, Record, TimerKey
from headrace.coordinator.env import Env
from headrace.coordinator.metrics import Metrics
from headrace.coordinator.migration import can_upgrade, downgrade, should_downgrade, upgrade
from headrace.coordinator.offsets import Offsets
from headrace.coordinator.records import State, classic_record
from headrace.coordinator.topics import Topics
from headrace.coordinator.values import LEAVE_GROUP_STATIC_EPOCH, CommittedOffset
from headrace.errors import ErrorCode, KafkaError

Group = ClassicGroup | ConsumerGroup
_G = TypeVar("_G", ClassicGroup, ConsumerGroup)
_COMMIT_GROUP_NOT_FOUND_VERSION = 9


@lru_cache(maxsize=65536)
def partition_for(group_id: str, partitions: int) -> int:
    """The partition of the offsets topic a group lives in, as Kafka's clients and tools compute it.

    >>> partition_for("console-consumer-1", 50), partition_for("polygenelubricants", 50)
    (24, 0)
    """
    units = group_id.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    signed = value - (1 << 32) if value & 0x80000000 else value
    # The smallest int has no positive twin; Kafka takes 0 for it.
    return 0 if signed == -(1 << 31) else abs(signed) % partitions


class Shard:
    """The groups and offsets of one partition of the offsets topic."""

    def __init__(self, config: GroupConfig, new_id: Callable[[], str], topics: Topics | None = None) -> None:
        self._env = Env(config, new_id, topics or Topics())
        self._groups: dict[str, Group] = {}
        self._offsets = Offsets(self._env)
        self._handlers: dict[type, Callable[[Any], None]] = {
            Heartbeat: self._heartbeat,
            ConsumerGroupHeartbeat: self._consumer_heartbeat,
            OffsetCommit: self._commit,
            OffsetFetch: self._fetch,
            JoinGroup: self._join,
            SyncGroup: self._sync,
            LeaveGroup: self._leave,
            OffsetDelete: self._delete_offsets,
            DeleteGroups: self._delete_groups,
        }

    @property
    def metrics(self) -> Metrics:
        return self._env.metrics

    # What comes in

    def load(self, state: State, now: int) -> list[Effect]:
        """Take over what the log says; everyone's session starts afresh."""
        env = self._env
        env.now = now
        self._offsets.by_group = state.offsets
        for group_id, classic in state.classic.items():
            self._groups[group_id] = ClassicGroup.restore(group_id, classic, env)
        for group_id, consumer in state.consumer.items():
            self._groups[group_id] = ConsumerGroup.restore(group_id, consumer, env)
        for group_id in state.offsets:
            if group_id not in self._groups:
                self._groups[group_id] = ClassicGroup(group_id, env)
        for group in self._groups.values():
            group.start()
        return env.fx.take()

    def handle(self, call: Call, now: int) -> list[Effect]:
        """A request; its answer is among the effects of this call or of a later one."""
        env = self._env
        env.now = now
        try:
            self._handlers[type(call)](call)
        except KafkaError as error:
            env.fx.reply(call, call.refuse(error.code, error.message))
        return env.fx.take()

    def timer(self, key: TimerKey, now: int) -> list[Effect]:
        """A timer fired."""
        self._env.now = now
        group = self._groups.get(key.group_id)
        if self._env.fx.due(key, now) and group is not None:
            if isinstance(group, ClassicGroup):
                self._classic_timer(group, key)
            else:
                self._consumer_timer(group, key)
        return self._env.fx.take()

    def appended(self, append_ids: Iterable[int], now: int) -> list[Effect]:
        """The appends are stored."""
        self._env.now = now
        self._env.fx.appended(append_ids)
        return self._env.fx.take()

    def append_failed(self, append_id: int, error: ErrorCode, now: int) -> list[Effect]:
        """The append is not stored and never will be. If that is not known for sure, unload the shard instead."""
        self._env.now = now
        self._env.fx.append_failed(append_id, error)
        return self._env.fx.take()

    def metadata_changed(self, topics: Topics, now: int) -> list[Effect]:
        """The topics changed. Offsets of deleted ones go; consumer groups notice at their next heartbeat."""
        env = self._env
        env.now = now
        deleted = env.topics.by_id.keys() - topics.by_id.keys()
        env.topics = topics
        if deleted:
            gone = self._offsets.of_topics(set(deleted))
            if gone:
                env.metrics.offset_deletions += sum(map(len, gone.values()))
                self._offsets.forget(gone)
        return env.fx.take()

    def expire_offsets(self, now: int) -> list[Effect]:
        """Remove offsets past their retention, and empty groups that have none left. Call it now and then."""
        env = self._env
        env.now = now
        for group_id, group in list(self._groups.items()):
            gone = self._offsets.expired(group_id, group)
            records: list[Record] = []
            if self._is_over(group) and len(gone) == len(self._offsets.everything(group_id)):
                records = self._remove(group_id)
            if gone or records:
                env.metrics.offset_expirations += len(gone)
                self._offsets.forget({group_id: gone}, records, speculative=bool(records))
        return env.fx.take()

    def unload(self, code: ErrorCode, now: int) -> list[Effect]:
        """The partition goes elsewhere: everyone who waits is told to look for the new coordinator."""
        self._env.now = now
        for group in self._groups.values():
            group.end(code)
        self._env.fx.abandon(code)
        self._groups.clear()
        return self._env.fx.take()

    # Classic calls

    def _join(self, call: JoinGroup) -> None:
        config = self._env.config
        _check_group_id(call.group_id)
        if not config.group_min_session_timeout_ms <= call.session_timeout_ms <= config.group_max_session_timeout_ms:
            raise KafkaError(
                ErrorCode.INVALID_SESSION_TIMEOUT,
                f"give between {config.group_min_session_timeout_ms} and {config.group_max_session_timeout_ms} ms",
            )
        group = self._groups.get(call.group_id)
        if isinstance(group, ConsumerGroup) and not group.is_empty():
            mixed.join(self._env, group, call)
            if should_downgrade(self._env, group):
                # A static member came back with the classic protocol, and it was the last of the other.
                self._groups[call.group_id] = downgrade(self._env, group)
            return
        if group is None and call.member_id != UNKNOWN_MEMBER_ID:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {call.group_id}: join with an empty id")
        if isinstance(group, ConsumerGroup):
            self._env.fx.append(self._remove(call.group_id), speculative=True)
            group = None
        if group is not None:
            group.join(call)
            return
        created = ClassicGroup(call.group_id, self._env)
        created.join(call)
        self._groups[call.group_id] = created

    def _known(self, group_id: str) -> Group:
        """The group of a member; who is in no group is no member."""
        _check_group_id(group_id)
        group = self._groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {group_id}: join again")
        return group

    def _sync(self, call: SyncGroup) -> None:
        group = self._known(call.group_id)
        if isinstance(group, ClassicGroup):
            group.sync(call)
        else:
            mixed.sync(self._env, group, call)

    def _heartbeat(self, call: Heartbeat) -> None:
        self._env.metrics.heartbeats += 1
        group = self._groups.get(call.group_id) or self._known(call.group_id)
        if isinstance(group, ClassicGroup):
            group.heartbeat(call)
        else:
            mixed.heartbeat(self._env, group, call)

    def _leave(self, call: LeaveGroup) -> None:
        group = self._known(call.group_id)
        if isinstance(group, ClassicGroup):
            group.leave(call)
        else:
            mixed.leave(group, call)

    def _classic_timer(self, group: ClassicGroup, key: TimerKey) -> None:
        if key.kind == "session":
            group.on_session_timer(key.member_id)
        elif key.kind == "join":
            group.on_join_timer()
        elif key.kind == "sync":
            group.on_sync_timer()

    # Consumer groups

    def _consumer_heartbeat(self, call: ConsumerGroupHeartbeat) -> None:
        self._env.metrics.heartbeats += 1
        group = self._groups.get(call.group_id)
        if isinstance(group, ConsumerGroup) and group.keep_alive(call):
            return
        check_heartbeat(call, self._env.config.group_consumer_assignors)
        if call.member_epoch == 0:
            group = self._consumer_group_to_join(call.group_id, group)
        if not isinstance(group, ConsumerGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no consumer group {call.group_id}")
        if call.member_epoch >= 0:
            group.heartbeat(call)
        elif call.member_epoch == LEAVE_GROUP_STATIC_EPOCH:
            group.leave_for_a_while(call)
        else:
            self._fence(group, group.check_leave(call))
            response = ConsumerGroupHeartbeatResponse(member_id=call.member_id, member_epoch=call.member_epoch)
            self._env.fx.reply_after(self._env.fx.last_append, call, response)

    def _consumer_group_to_join(self, group_id: str, group: Group | None) -> ConsumerGroup:
        if isinstance(group, ConsumerGroup):
            return group
        if isinstance(group, ClassicGroup) and not group.is_empty():
            if not can_upgrade(self._env, group):
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id} is not a consumer group")
            converted = upgrade(self._env, group)
        else:
            if group is not None and (records := self._remove(group_id)):
                self._env.fx.append(records, speculative=True)
            converted = ConsumerGroup(group_id, self._env)
        self._groups[group_id] = converted
        return converted

    def _fence(self, group: ConsumerGroup, member_id: str) -> None:
        """A member is out. If it was the last of the consumer protocol, the group becomes classic."""
        if should_downgrade(self._env, group, member_id):
            self._groups[group.group_id] = downgrade(self._env, group, member_id)
        else:
            group.remove([member_id])
            group.flush()

    def _consumer_timer(self, group: ConsumerGroup, key: TimerKey) -> None:
        if key.member_id not in group.members:
            return
        if key.kind == "rebalance" and not group.failed_to_revoke(key.member_id):
            return
        self._env.metrics.members_expired += 1
        self._fence(group, key.member_id)

    # Offsets

    def _commit(self, call: OffsetCommit) -> None:
        group = self._groups.get(call.group_id)
        if group is not None:
            group.check_commit(call)
        elif call.generation_id < 0:
            # Someone who manages its partitions itself uses the group's name to store offsets only.
            self._groups[call.group_id] = ClassicGroup(call.group_id, self._env)
        else:
            known = call.version >= _COMMIT_GROUP_NOT_FOUND_VERSION
            code = ErrorCode.GROUP_ID_NOT_FOUND if known else ErrorCode.ILLEGAL_GENERATION
            raise KafkaError(code, f"there is no group {call.group_id}")
        self._offsets.commit(call)

    def _fetch(self, call: OffsetFetch) -> None:
        response = OffsetFetchResponse([self._fetch_group(asked) for asked in call.groups])
        self._env.fx.reply(call, response)

    def _fetch_group(self, asked: GroupToFetch) -> FetchedGroup:
        group = self._groups.get(asked.group_id)
        if isinstance(group, ConsumerGroup) and (asked.member_id is not None or asked.member_epoch >= 0):
            try:
                group.check_member_epoch(asked.member_id or "", asked.member_epoch)
            except KafkaError as error:
                return FetchedGroup(asked.group_id, error.code)
        return self._offsets.fetch(asked)

    def _delete_offsets(self, call: OffsetDelete) -> None:
        group = self._groups.get(call.group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {call.group_id}")
        group.check_offset_delete()
        self._offsets.delete(call, group)

    # Groups as a whole

    def _delete_groups(self, call: DeleteGroups) -> None:
        results: list[tuple[str, ErrorCode]] = []
        records: list[Record] = []
        gone = {}
        for group_id in call.group_ids:
            group = self._groups.get(group_id)
            if group is None:
                results.append((group_id, ErrorCode.GROUP_ID_NOT_FOUND))
            elif not self._is_over(group):
                results.append((group_id, ErrorCode.NON_EMPTY_GROUP))
            else:
                results.append((group_id, ErrorCode.NONE))
                gone[group_id] = self._offsets.everything(group_id)
                records += self._remove(group_id)
        response = DeleteGroupsResponse(results)
        if gone:
            self._env.metrics.offset_deletions += sum(map(len, gone.values()))
            self._env.fx.reply_after(self._offsets.forget(gone, records, speculative=True), call, response)
        else:
            self._env.fx.reply(call, response)

    @staticmethod
    def _is_over(group: Group) -> bool:
        """Whether nobody is in the group or on the way into it."""
        return group.is_empty() and not (isinstance(group, ClassicGroup) and group.roster.pending)

    def _remove(self, group_id: str) -> list[Record]:
        """Take a group out of memory; the tombstones to append."""
        group = self._groups.pop(group_id)
        group.end(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if isinstance(group, ConsumerGroup):
            return group.take_records() + group.tombstones()
        return [classic_record(group_id, None)] if group.stored is not None else []

    def list_groups(self, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[ListedGroup]:
        """The groups in these states and of these types; none given: all. Words may be in any case."""
        wanted_states = {state.lower() for state in states}
        wanted_types = {kind.lower() for kind in types}
        listed = []
        for group_id, group in self._groups.items():
            state = str(group.state)
            if (not wanted_states or state.lower() in wanted_states) and (
                not wanted_types or group.type in wanted_types
            ):
                listed.append(ListedGroup(group_id, group.protocol_type or "", state, group.type))
        return listed

    def describe_groups(self, group_ids: Iterable[str]) -> list[DescribedGroup]:
        """Classic groups with their members."""
        return [
            group.describe() if group is not None else DescribedGroup(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
            for group_id, group in self._of_type(group_ids, ClassicGroup)
        ]

    def describe_consumer_groups(self, group_ids: Iterable[str]) -> list[DescribedConsumerGroup]:
        """Consumer groups with their members and epochs."""
        return [
            group.describe() if group is not None else DescribedConsumerGroup(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
            for group_id, group in self._of_type(group_ids, ConsumerGroup)
        ]

    def _of_type(self, group_ids: Iterable[str], kind: type[_G]) -> list[tuple[str, _G | None]]:
        found = [(group_id, self._groups.get(group_id)) for group_id in group_ids]
        return [(group_id, group if isinstance(group, kind) else None) for group_id, group in found]

    def gauges(self) -> dict[tuple[str, str], int]:
        """How many groups there are, by type and state."""
        return dict(Counter((group.type, str(group.state)) for group in self._groups.values()))

    def committed(self) -> Mapping[str, Mapping[uuid.UUID, Mapping[int, CommittedOffset]]]:
        """Every stored offset, by group, topic and partition. It is the shard's own: read it, and do not keep it."""
        return self._offsets.by_group

    def offsets_count(self) -> int:
        return sum(len(offsets) for topics in self._offsets.by_group.values() for offsets in topics.values())

    def state(self) -> State:
        """What the log says when every append under way is stored (offsets: those that are stored)."""
        return State(
            deepcopy(self._offsets.by_group),
            {g: group.stored for g, group in self._groups.items() if isinstance(group, ClassicGroup) and group.stored},
            {g: group.value() for g, group in self._groups.items() if isinstance(group, ConsumerGroup)},
        )


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "give a group id")
