"""Converting a group between the classic and the consumer protocol, as its members are upgraded one by one.

A classic group becomes a consumer group when the first member of the new protocol joins; a consumer group becomes
classic again when the last one leaves. Classic members stay in it throughout: they keep their ids and what they had,
and are asked to join again.
"""

from __future__ import annotations

from headrace.coordinator.classic import ClassicGroup, GroupState
from headrace.coordinator.consumer import ConsumerGroup
from headrace.coordinator.effects import Record
from headrace.coordinator.env import Env
from headrace.coordinator.records import (
    ConsumerGroupValue,
    classic_record,
    current_record,
    epochs_record,
    member_record,
    target_record,
)
from headrace.coordinator.roster import ClassicMember, Roster
from headrace.coordinator.subscription import (
    PROTOCOL_TYPE,
    MalformedProtocol,
    read_assignment,
    read_subscription,
    subscription_version,
    write_assignment,
)
from headrace.coordinator.values import (
    NO_PARTITIONS,
    ClassicProtocol,
    ClassicValue,
    ConsumerGroupEpochs,
    MemberAssignment,
    MemberMetadata,
)
from headrace.errors import ErrorCode, KafkaError


def can_upgrade(env: Env, group: ClassicGroup) -> bool:
    """Whether a member of the consumer protocol may join this classic group."""
    return (
        env.config.upgrades
        and group.uses_consumer_protocol
        and len(group.roster.members) < env.config.group_consumer_max_size
    )


def upgrade(env: Env, group: ClassicGroup) -> ConsumerGroup:
    """The same members in a consumer group. Its epoch is the generation, and everyone has what was last assigned."""
    try:
        value = _consumer_value(env, group)
    except MalformedProtocol as error:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"a member's metadata cannot be read: {error}") from None
    group.end(ErrorCode.REBALANCE_IN_PROGRESS)
    records: list[Record] = [classic_record(group.group_id, None)]
    for member_id, metadata in value.members.items():
        records += [
            member_record(group.group_id, member_id, metadata),
            target_record(group.group_id, member_id, value.target[member_id]),
            current_record(group.group_id, member_id, value.current[member_id]),
        ]
    records.append(epochs_record(group.group_id, value.epochs))
    env.fx.append(records, speculative=True)
    upgraded = ConsumerGroup.restore(group.group_id, value, env)
    upgraded.start()
    return upgraded


def _consumer_value(env: Env, group: ClassicGroup) -> ConsumerGroupValue:
    value = ConsumerGroupValue(ConsumerGroupEpochs(group.generation, group.generation))
    taken = NO_PARTITIONS
    for member in group.roster:
        protocol_name = group.protocol_name or member.protocols[0][0]
        subscription = read_subscription(member.metadata(protocol_name))
        # A client's assignor may have given one partition to two members; here it can be only one's.
        assigned = env.topics.to_ids(read_assignment(member.assignment)) - taken
        taken |= assigned
        value.members[member.member_id] = MemberMetadata(
            member.group_instance_id,
            subscription.rack_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            tuple(sorted(set(subscription.topics))),
            None,
            None,
            ClassicProtocol(member.session_timeout_ms, member.protocols),
        )
        value.target[member.member_id] = assigned
        value.current[member.member_id] = MemberAssignment(group.generation, group.generation, assigned=assigned)
    return value


def should_downgrade(env: Env, group: ConsumerGroup, leaving: str | None = None) -> bool:
    """Whether without `leaving` only classic members are left."""
    rest = [metadata for member_id, metadata in group.members.items() if member_id != leaving]
    return (
        env.config.downgrades
        and 0 < len(rest) <= env.config.group_max_size
        and all(metadata.classic is not None for metadata in rest)
    )


def downgrade(env: Env, group: ConsumerGroup, leaving: str | None = None) -> ClassicGroup:
    """The classic members in a classic group, with their targets as assignment; they are asked to join again."""
    records = group.take_records() + group.tombstones()
    group.end(ErrorCode.REBALANCE_IN_PROGRESS)
    value = _classic_value(env, group, leaving)
    records.append(classic_record(group.group_id, value))
    env.fx.append(records, speculative=True)
    downgraded = ClassicGroup.restore(group.group_id, value, env)
    # The record keeps only the chosen protocol, but the members are right here with all of theirs.
    for member in list(downgraded.roster):
        classic = group.members[member.member_id].classic
        if classic is not None:
            downgraded.roster.set_protocols(member, classic.protocols)
    downgraded.start()
    if downgraded.state is GroupState.STABLE:
        downgraded.begin_rebalance()
    return downgraded


def _classic_value(env: Env, group: ConsumerGroup, leaving: str | None) -> ClassicValue:
    roster = Roster(group.group_id)
    for member_id, metadata in group.members.items():
        if member_id == leaving or metadata.classic is None:
            continue
        roster.add(
            ClassicMember(
                group.group_id,
                member_id,
                metadata.instance_id,
                metadata.client_id,
                metadata.client_host,
                metadata.rebalance_timeout_ms,
                metadata.classic.session_timeout_ms,
                metadata.classic.protocols,
            ),
            PROTOCOL_TYPE,
        )
    protocol_name = roster.select_protocol()
    assignments = {}
    for member in roster:
        version = subscription_version(member.metadata(protocol_name))
        target = env.topics.to_names(group.target.get(member.member_id, NO_PARTITIONS))
        assignments[member.member_id] = write_assignment(version, target)
    return ClassicValue(
        PROTOCOL_TYPE,
        group.epochs.epoch,
        protocol_name,
        roster.leader,
        env.now,
        roster.values(protocol_name, assignments),
    )
