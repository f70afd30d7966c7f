"""Members that still speak the classic protocol inside a consumer group (the middle of a migration).

To them the group looks classic: JoinGroup answers at once with the member's epoch as generation, SyncGroup with what
is assigned to it now, and a heartbeat says REBALANCE_IN_PROGRESS when it should join again to be brought one step on.
Their subscription and what they own come from the first protocol of their JoinGroup.
"""

from __future__ import annotations

from headrace.coordinator.calls import (
    UNKNOWN_MEMBER_ID,
    Heartbeat,
    HeartbeatResponse,
    JoinGroup,
    JoinGroupResponse,
    LeaveGroup,
    LeaveGroupResponse,
    LeavingMember,
    SyncGroup,
    SyncGroupResponse,
)
from headrace.coordinator.consumer import ConsumerGroup
from headrace.coordinator.effects import TimerKey
from headrace.coordinator.env import Env
from headrace.coordinator.roster import rebalance_timeout
from headrace.coordinator.subscription import (
    PROTOCOL_TYPE,
    MalformedProtocol,
    Subscription,
    read_subscription,
    subscription_version,
    write_assignment,
)
from headrace.coordinator.values import ClassicProtocol, MemberMetadata, MemberState
from headrace.errors import ErrorCode, KafkaError

_MEMBER_ID_REQUIRED_VERSION = 4


def join(env: Env, group: ConsumerGroup, call: JoinGroup) -> None:
    """Let a classic member in, or bring it one step on."""
    is_unknown = call.member_id == UNKNOWN_MEMBER_ID
    member_id = call.member_id or f"{call.group_instance_id or call.client_id}-{env.new_id()}"
    group.check_room(member_id)
    subscription = _subscription(group, call)
    if is_unknown and call.group_instance_id is None and call.version >= _MEMBER_ID_REQUIRED_VERSION:
        env.fx.reply(call, JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
        return
    _enter(group, call, member_id)
    old = group.members[member_id]
    metadata = MemberMetadata(
        call.group_instance_id,
        subscription.rack_id,
        call.client_id,
        call.client_host,
        rebalance_timeout(call),
        tuple(sorted(set(subscription.topics))),
        None,
        old.assignor,
        ClassicProtocol(call.session_timeout_ms, call.protocols),
    )
    group.advance(member_id, metadata, env.topics.to_ids(subscription.owned))
    env.fx.cancel(_join_key(group, member_id))
    group.expect_heartbeat(member_id)
    env.fx.schedule(_sync_key(group, member_id), env.now + metadata.rebalance_timeout_ms)
    response = JoinGroupResponse(
        ErrorCode.NONE,
        group.current[member_id].epoch,
        PROTOCOL_TYPE,
        call.protocols[0][0],
        member_id=member_id,
    )
    group.answer(call, response)


def _subscription(group: ConsumerGroup, call: JoinGroup) -> Subscription:
    others = [m.classic for member_id, m in group.members.items() if m.classic and member_id != call.member_id]
    names = {name for name, _ in call.protocols}
    for other in others:
        names &= {name for name, _ in other.protocols}
    if call.protocol_type != PROTOCOL_TYPE or not names:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "no protocol that all classic members know")
    try:
        return read_subscription(call.protocols[0][1])
    except MalformedProtocol as error:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the subscription cannot be read: {error}") from None


def _enter(group: ConsumerGroup, call: JoinGroup, member_id: str) -> None:
    if call.group_instance_id is None:
        if member_id not in group.members:
            group.add(member_id)
        return
    owner = group.static.get(call.group_instance_id)
    if call.member_id != UNKNOWN_MEMBER_ID:
        group.check_instance(member_id, call.group_instance_id)
    elif owner is None:
        group.add(member_id)
    else:
        group.replace_static(owner, member_id)


def _join_key(group: ConsumerGroup, member_id: str) -> TimerKey:
    return TimerKey("member-join", group.group_id, member_id)


def _sync_key(group: ConsumerGroup, member_id: str) -> TimerKey:
    return TimerKey("member-sync", group.group_id, member_id)


def _check(group: ConsumerGroup, call: SyncGroup | Heartbeat) -> ClassicProtocol:
    if call.group_instance_id is not None:
        group.check_instance(call.member_id, call.group_instance_id)
    current = group.known(call.member_id)
    classic = group.members[call.member_id].classic
    if classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{call.member_id} does not use the classic protocol")
    if call.generation_id != current.epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"the member is at generation {current.epoch}: join again")
    return classic


def _ask_to_join(env: Env, group: ConsumerGroup, member_id: str) -> None:
    """The member has its rebalance timeout to join again."""
    key = _join_key(group, member_id)
    if not env.fx.scheduled(key):
        env.fx.schedule(key, env.now + group.members[member_id].rebalance_timeout_ms)


def sync(env: Env, group: ConsumerGroup, call: SyncGroup) -> None:
    """What the member has now."""
    classic = _check(group, call)
    name, metadata = classic.protocols[0]
    if call.protocol_type not in (None, PROTOCOL_TYPE) or call.protocol_name not in (None, name):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the member joined with {name}")
    current = group.current[call.member_id]
    if group.epochs.epoch > current.epoch and current.state is not MemberState.UNREVOKED_PARTITIONS:
        _ask_to_join(env, group, call.member_id)
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the group has changed: join again")
    env.fx.cancel(_sync_key(group, call.member_id))
    group.expect_heartbeat(call.member_id)
    assignment = write_assignment(subscription_version(metadata), env.topics.to_names(current.assigned))
    group.answer(call, SyncGroupResponse(ErrorCode.NONE, PROTOCOL_TYPE, name, assignment))


def heartbeat(env: Env, group: ConsumerGroup, call: Heartbeat) -> None:
    """The member is alive; tell it to join again if that would bring it on."""
    _check(group, call)
    group.expect_heartbeat(call.member_id)
    current = group.current[call.member_id]
    behind = (
        current.epoch < group.epochs.epoch
        or current.state is MemberState.UNREVOKED_PARTITIONS
        or (current.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(call.member_id))
    )
    if behind:
        _ask_to_join(env, group, call.member_id)
    env.fx.reply(call, HeartbeatResponse(ErrorCode.REBALANCE_IN_PROGRESS if behind else ErrorCode.NONE))


def leave(group: ConsumerGroup, call: LeaveGroup) -> None:
    """Classic members go; members of the consumer protocol leave with a heartbeat instead."""
    results: list[LeavingMember] = []
    gone: list[str] = []
    for leaving in call.members:
        member_id, instance_id = leaving.member_id, leaving.group_instance_id
        try:
            if instance_id is not None:
                member_id = member_id or group.static.get(instance_id, "")
                group.check_instance(member_id, instance_id)
            group.known(member_id)
            if group.members[member_id].classic is None or member_id in gone:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} does not use the classic protocol")
        except KafkaError as error:
            results.append(LeavingMember(leaving.member_id, instance_id, error.code))
        else:
            gone.append(member_id)
            results.append(LeavingMember(member_id, instance_id))
    group.remove(gone)
    group.answer(call, LeaveGroupResponse(ErrorCode.NONE, results))
