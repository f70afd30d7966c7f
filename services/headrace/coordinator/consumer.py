"""A consumer group of KIP-848: members say what they want in heartbeats, the coordinator assigns, each on its own pace.

Three epochs tell how far everyone is. The group epoch grows with every change of members, subscriptions or topics. The
assignment epoch is the group epoch the target assignment was made for. A member's epoch is the target it has reached;
it grows only when the member has given back everything that is not its own in that target (`reconcile`).

Every change is made in memory at once and its records are appended; the answer waits until they are stored. If they
cannot be, memory is ahead of the log and the shard has to be loaded again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from headrace.coordinator.assignors import ASSIGNORS, MemberSpec
from headrace.coordinator.calls import (
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatResponse,
    OffsetCommit,
    Partitions,
)
from headrace.coordinator.descriptions import DescribedConsumer, DescribedConsumerGroup
from headrace.coordinator.effects import Call, Record, TimerKey
from headrace.coordinator.env import Env
from headrace.coordinator.reconcile import reconcile, reconciled
from headrace.coordinator.records import (
    ConsumerGroupValue,
    current_record,
    epochs_record,
    member_record,
    target_record,
)
from headrace.coordinator.regex import topic_pattern
from headrace.coordinator.roster import session_key
from headrace.coordinator.topics import Topics
from headrace.coordinator.values import (
    LEAVE_GROUP_EPOCH,
    LEAVE_GROUP_STATIC_EPOCH,
    NO_PARTITIONS,
    ConsumerGroupEpochs,
    MemberAssignment,
    MemberMetadata,
    MemberState,
)
from headrace.errors import ErrorCode, KafkaError

_MEMBER_TIMERS = ("session", "rebalance", "member-join", "member-sync")
_COMMIT_VERSION = 9
_CLIENT_MEMBER_ID_VERSION = 1


class ConsumerGroup:
    """One consumer group. The shard decides when a group converts; everything else about it is here."""

    type = "consumer"
    protocol_type = "consumer"

    def __init__(self, group_id: str, env: Env) -> None:
        self.group_id = group_id
        self.epochs = ConsumerGroupEpochs()
        self.members: dict[str, MemberMetadata] = {}
        self.current: dict[str, MemberAssignment] = {}
        self.target: dict[str, Partitions] = {}
        self.static: dict[str, str] = {}
        self._env = env
        self._owners: dict[tuple[Any, int], str] = {}
        """Who has a partition or still has to give it up."""
        self._seen: Topics | None = None
        """The topics that the fingerprint in `epochs` was last checked against."""
        self._subscribed: tuple[Topics, frozenset[str]] | None = None
        """The names the members read, patterns resolved, for the topics they were resolved with."""
        self._rebalance_epochs: dict[str, int] = {}
        self._records: list[Record] = []
        self._last_append = 0

    @classmethod
    def restore(cls, group_id: str, value: ConsumerGroupValue, env: Env) -> ConsumerGroup:
        """The group as its records tell it."""
        group = cls(group_id, env)
        group.epochs = value.epochs
        for member_id, metadata in value.members.items():
            group._set_metadata(member_id, metadata)
            group._set_current(member_id, value.current.get(member_id, MemberAssignment()))
            group.target[member_id] = value.target.get(member_id, NO_PARTITIONS)
        group._records.clear()
        return group

    def start(self) -> None:
        """Begin to expect heartbeats, after loading or conversion."""
        for member_id, current in self.current.items():
            self.expect_heartbeat(member_id)
            if current.state is MemberState.UNREVOKED_PARTITIONS and self.members[member_id].classic is None:
                self._expect_revocation(member_id)

    @property
    def state(self) -> str:
        if not self.members:
            return "Empty"
        if self.epochs.epoch > self.epochs.assignment_epoch:
            return "Assigning"
        target_epoch = self.epochs.assignment_epoch
        return "Stable" if all(reconciled(c, target_epoch) for c in self.current.values()) else "Reconciling"

    def is_empty(self) -> bool:
        return not self.members

    def subscribed_to(self, topic: str) -> bool:
        return topic in self._subscribed_names()

    # The heartbeat

    def keep_alive(self, call: ConsumerGroupHeartbeat) -> bool:
        """Answer a heartbeat with nothing new on either side; False: it is another kind, and nothing was done."""
        if not self._is_keepalive(call):
            return False
        env = self._env
        deadline = env.now + env.config.group_consumer_session_timeout_ms
        env.fx.schedule(session_key(self.group_id, call.member_id), deadline)
        env.fx.reply_after(self._last_append, call, self._response(call.member_id))
        return True

    def heartbeat(self, call: ConsumerGroupHeartbeat) -> None:
        """Join or reconcile; leaving is the shard's."""
        member_id = call.member_id or self._env.new_id()
        self.check_room(member_id)
        self._enter(member_id, call)
        before = self.current[member_id].assigned if call.member_epoch else None
        self.advance(member_id, self._updated(member_id, call), call.topic_partitions)
        self.expect_heartbeat(member_id)
        response = self._response(member_id)
        is_full = call.member_epoch == 0 or (
            call.rebalance_timeout_ms != -1
            and call.topic_partitions is not None
            and (call.subscribed_topic_names is not None or call.subscribed_topic_regex is not None)
        )
        assigned = self.current[member_id].assigned
        if is_full or assigned != before:
            response.assignment = assigned
        self.answer(call, response)

    def _is_keepalive(self, call: ConsumerGroupHeartbeat) -> bool:
        """Whether nothing can have changed: almost every heartbeat, and the one that has to be cheap."""
        current = self.current.get(call.member_id)
        epochs = self.epochs
        if (
            current is None
            or call.member_epoch != current.epoch
            or current.epoch != epochs.assignment_epoch
            or current.epoch != epochs.epoch
            or current.state is not MemberState.STABLE
            or self._env.topics is not self._seen
            or call.subscribed_topic_names is not None
            or call.subscribed_topic_regex is not None
            or call.rebalance_timeout_ms != -1
            or call.server_assignor is not None
            or call.rack_id is not None
        ):
            return False
        member = self.members[call.member_id]
        return (
            call.instance_id == member.instance_id
            and member.classic is None
            and call.client_id == member.client_id
            and call.client_host == member.client_host
        )

    def _response(self, member_id: str) -> ConsumerGroupHeartbeatResponse:
        return ConsumerGroupHeartbeatResponse(
            ErrorCode.NONE,
            None,
            member_id,
            self.current[member_id].epoch,
            self._env.config.group_consumer_heartbeat_interval_ms,
        )

    def check_room(self, member_id: str) -> None:
        most = self._env.config.group_consumer_max_size
        if member_id not in self.members and len(self.members) >= most:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group already has {most} members")

    def _enter(self, member_id: str, call: ConsumerGroupHeartbeat) -> None:
        """Find the member that speaks, or let it in."""
        joining = call.member_epoch == 0
        if call.instance_id is None:
            if joining and member_id not in self.members:
                self.add(member_id)
            self.check_epoch(self.known(member_id), call.member_epoch, call.topic_partitions)
            return
        owner = self.static.get(call.instance_id)
        if joining and owner is None:
            self.add(member_id)
        elif joining and owner is not None:
            if self.members[owner].classic is None and self.current[owner].epoch != LEAVE_GROUP_STATIC_EPOCH:
                raise KafkaError(
                    ErrorCode.UNRELEASED_INSTANCE_ID, f"{owner} still has instance id {call.instance_id}: it must leave"
                )
            self.replace_static(owner, member_id)
        else:
            self.check_instance(member_id, call.instance_id)
            self.check_epoch(self.current[member_id], call.member_epoch, call.topic_partitions)

    def known(self, member_id: str) -> MemberAssignment:
        current = self.current.get(member_id)
        if current is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is not in group {self.group_id}: join again")
        return current

    def check_instance(self, member_id: str, instance_id: str) -> str:
        """The member that has the instance id, if it is the one that speaks."""
        owner = self.static.get(instance_id)
        if owner is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has instance id {instance_id}: join again")
        if owner != member_id:
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, f"{owner} took over instance id {instance_id}")
        return owner

    @staticmethod
    def check_epoch(current: MemberAssignment, epoch: int, owned: Partitions | None) -> None:
        """The member's epoch, or the one before it if the answer that brought the new one may have been lost."""
        if epoch == current.epoch:
            return
        answer_lost = epoch == current.previous_epoch and owned is not None and owned <= current.assigned
        if epoch > current.epoch or not answer_lost:
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"epoch {epoch} is not the member's {current.epoch}: abandon all partitions and join again",
            )

    def _updated(self, member_id: str, call: ConsumerGroupHeartbeat) -> MemberMetadata:
        """The member's metadata with what the heartbeat says is new."""
        old = self.members[member_id]
        names, regex = call.subscribed_topic_names, call.subscribed_topic_regex
        return MemberMetadata(
            call.instance_id if call.instance_id is not None else old.instance_id,
            call.rack_id if call.rack_id is not None else old.rack_id,
            call.client_id,
            call.client_host,
            call.rebalance_timeout_ms if call.rebalance_timeout_ms != -1 else old.rebalance_timeout_ms,
            tuple(sorted(set(names))) if names is not None else old.topic_names,
            regex if regex is not None else old.topic_regex,
            call.server_assignor if call.server_assignor is not None else old.assignor,
        )

    # Epochs and assignments

    def advance(self, member_id: str, metadata: MemberMetadata, owned: Partitions | None) -> None:
        """Take the member's new metadata, bump and assign if something changed, then bring the member one step on."""
        old = self.members[member_id]
        is_new = member_id not in self.target
        bump = is_new or (old.topic_names, old.topic_regex or None) != (
            metadata.topic_names,
            metadata.topic_regex or None,
        )
        if metadata != old:
            self._set_metadata(member_id, metadata)
        if bump or self._seen is not self._env.topics:
            self._seen = self._env.topics
            fingerprint = self._env.topics.fingerprint(self._subscribed_names())
            if bump or fingerprint != self.epochs.fingerprint:
                self._bump(fingerprint)
        if self.epochs.epoch > self.epochs.assignment_epoch:
            self._assign()
        self._reconcile(member_id, owned)

    def _bump(self, fingerprint: int | None = None) -> None:
        epochs = self.epochs
        self.epochs = ConsumerGroupEpochs(
            epochs.epoch + 1, epochs.assignment_epoch, epochs.fingerprint if fingerprint is None else fingerprint
        )
        self._env.metrics.consumer_rebalances += 1
        self._records.append(epochs_record(self.group_id, self.epochs))

    def assignor(self) -> str:
        """The one most members ask for; the configured default if none asks."""
        allowed = self._env.config.group_consumer_assignors
        votes = Counter(m.assignor for m in self.members.values())
        return max(allowed, key=lambda name: votes[name])

    def _assign(self) -> None:
        by_name = self._env.topics.by_name
        specs: dict[str, MemberSpec] = {}
        for member_id, metadata in self.members.items():
            ids = frozenset(by_name[name].id for name in self._names_of(metadata) if name in by_name)
            specs[member_id] = MemberSpec(ids, self.target.get(member_id, NO_PARTITIONS), metadata.instance_id)
        wanted = {topic_id for spec in specs.values() for topic_id in spec.topics}
        by_id = self._env.topics.by_id
        target = ASSIGNORS[self.assignor()](specs, {t: by_id[t].partitions for t in sorted(wanted)})
        for member_id, share in target.items():
            if self.target.get(member_id) != share:
                self.set_target(member_id, share)
        self.epochs = replace(self.epochs, assignment_epoch=self.epochs.epoch)
        self._records.append(epochs_record(self.group_id, self.epochs))

    def _reconcile(self, member_id: str, owned: Partitions | None) -> None:
        before = self.current[member_id]

        def is_free(partition: tuple[object, int]) -> bool:
            return self._owners.get(partition, member_id) == member_id

        target = self.target.get(member_id, NO_PARTITIONS)
        after = reconcile(before, self.epochs.assignment_epoch, target, owned, is_free)
        if after == before:
            return
        self._set_current(member_id, after)
        if self.members[member_id].classic is None:
            if after.state is MemberState.UNREVOKED_PARTITIONS:
                self._expect_revocation(member_id)
            else:
                self._rebalance_epochs.pop(member_id, None)
                self._env.fx.cancel(TimerKey("rebalance", self.group_id, member_id))

    def waits_for_others(self, member_id: str) -> bool:
        """Whether something of the member's target is still with someone else."""
        missing = self.target.get(member_id, NO_PARTITIONS) - self.current[member_id].assigned
        return any(self._owners.get(partition, member_id) != member_id for partition in missing)

    def _names_of(self, metadata: MemberMetadata) -> Iterable[str]:
        if not metadata.topic_regex:
            return metadata.topic_names
        pattern = topic_pattern(metadata.topic_regex)
        matching = {name for name in self._env.topics.by_name if pattern.matches(name)}
        return matching.union(metadata.topic_names)

    def _subscribed_names(self) -> frozenset[str]:
        if self._subscribed is None or self._subscribed[0] is not self._env.topics:
            names = frozenset(name for metadata in self.members.values() for name in self._names_of(metadata))
            self._subscribed = (self._env.topics, names)
        return self._subscribed[1]

    # Members

    def add(self, member_id: str) -> None:
        self._set_metadata(member_id, MemberMetadata())
        self._set_current(member_id, MemberAssignment())

    def replace_static(self, old_id: str, member_id: str) -> None:
        """The same instance under a new member id, with the old one's partitions."""
        metadata, current = self.members[old_id], self.current[old_id]
        target = self.target.get(old_id, NO_PARTITIONS)
        self._forget(old_id)
        self._set_metadata(member_id, metadata)
        self.set_target(member_id, target)
        self._set_current(member_id, replace(current, epoch=0, previous_epoch=0))

    def remove(self, member_ids: Iterable[str]) -> None:
        """Members are gone: their partitions are free, and the others get a new target with their next heartbeat."""
        removed = False
        for member_id in member_ids:
            self._forget(member_id)
            removed = True
        if removed:
            self._bump(self._env.topics.fingerprint(self._subscribed_names()))

    def _forget(self, member_id: str) -> None:
        self._subscribed = None
        instance_id = self.members.pop(member_id).instance_id
        if instance_id is not None and self.static.get(instance_id) == member_id:
            del self.static[instance_id]
        self._release(member_id)
        self.current.pop(member_id, None)
        self.target.pop(member_id, None)
        self._rebalance_epochs.pop(member_id, None)
        self._records += [
            current_record(self.group_id, member_id, None),
            target_record(self.group_id, member_id, None),
            member_record(self.group_id, member_id, None),
        ]
        for kind in _MEMBER_TIMERS:
            self._env.fx.cancel(TimerKey(kind, self.group_id, member_id))

    def _set_metadata(self, member_id: str, metadata: MemberMetadata) -> None:
        self._subscribed = None
        self.members[member_id] = metadata
        if metadata.instance_id is not None:
            self.static[metadata.instance_id] = member_id
        self._records.append(member_record(self.group_id, member_id, metadata))

    def _set_current(self, member_id: str, current: MemberAssignment) -> None:
        self._release(member_id)
        self.current[member_id] = current
        for partition in current.assigned | current.revoking:
            self._owners[partition] = member_id
        self._records.append(current_record(self.group_id, member_id, current))

    def set_target(self, member_id: str, target: Partitions) -> None:
        self.target[member_id] = target
        self._records.append(target_record(self.group_id, member_id, target))

    def _release(self, member_id: str) -> None:
        current = self.current.get(member_id)
        if current is not None:
            for partition in current.assigned | current.revoking:
                if self._owners.get(partition) == member_id:
                    del self._owners[partition]

    # Leaving

    def check_leave(self, call: ConsumerGroupHeartbeat) -> str:
        """Who leaves."""
        if call.instance_id is None:
            self.known(call.member_id)
            return call.member_id
        return self.check_instance(call.member_id, call.instance_id)

    def leave_for_a_while(self, call: ConsumerGroupHeartbeat) -> None:
        """A static member goes and is expected back within its session: it keeps its partitions."""
        member_id = self.check_leave(call)
        left = replace(self.current[member_id], epoch=LEAVE_GROUP_STATIC_EPOCH, revoking=NO_PARTITIONS)
        self._set_current(member_id, left)
        self.answer(call, ConsumerGroupHeartbeatResponse(member_id=member_id, member_epoch=LEAVE_GROUP_STATIC_EPOCH))

    # Timers

    def expect_heartbeat(self, member_id: str) -> None:
        classic = self.members[member_id].classic
        timeout = self._env.config.group_consumer_session_timeout_ms if classic is None else classic.session_timeout_ms
        self._env.fx.schedule(session_key(self.group_id, member_id), self._env.now + timeout)

    def _expect_revocation(self, member_id: str) -> None:
        """The member has its rebalance timeout to give its partitions back."""
        self._rebalance_epochs[member_id] = self.current[member_id].epoch
        deadline = self._env.now + self.members[member_id].rebalance_timeout_ms
        self._env.fx.schedule(TimerKey("rebalance", self.group_id, member_id), deadline)

    def failed_to_revoke(self, member_id: str) -> bool:
        """At the end of the rebalance timeout: whether the member is still where it was at its start."""
        epoch = self._rebalance_epochs.pop(member_id, None)
        current = self.current.get(member_id)
        return current is not None and current.epoch == epoch

    # Offsets

    def check_commit(self, call: OffsetCommit) -> None:
        """Whether this commit may be stored."""
        if call.generation_id < 0 and not self.members:
            return
        self.check_member_epoch(call.member_id, call.generation_id)
        if self.members[call.member_id].classic is None and call.version < _COMMIT_VERSION:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "members of consumer groups commit with version 9 or newer")

    def check_member_epoch(self, member_id: str, epoch: int) -> None:
        current = self.known(member_id)
        if epoch != current.epoch:
            is_classic = self.members[member_id].classic is not None
            code = ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
            raise KafkaError(code, f"the member is at epoch {current.epoch}, not {epoch}")

    def check_offset_delete(self) -> None:
        """Always allowed: what the members read is protected topic by topic."""

    def expiry_base(self, committed: int) -> int | None:
        """The moment from which an offset's retention counts."""
        return committed

    # Storing, describing, ending

    def answer(self, call: Call, response: Any) -> None:
        """Answer when everything the answer shows is stored."""
        self.flush()
        self._env.fx.reply_after(self._last_append, call, response)

    def flush(self) -> None:
        """Append what changed."""
        if self._records:
            self._last_append = self._env.fx.append(self.take_records(), speculative=True)

    def take_records(self) -> list[Record]:
        """What changed and is not appended yet: of each key only the last, the others would be gone at once."""
        last: dict[bytes, bytes | None] = {}
        for key, value in self._records:
            last.pop(key, None)
            last[key] = value
        self._records = []
        return list(last.items())

    def tombstones(self) -> list[Record]:
        records = []
        for member_id in self.members:
            records += [
                current_record(self.group_id, member_id, None),
                target_record(self.group_id, member_id, None),
                member_record(self.group_id, member_id, None),
            ]
        return [*records, epochs_record(self.group_id, None)]

    def value(self) -> ConsumerGroupValue:
        """The group as its records tell it."""
        return ConsumerGroupValue(self.epochs, dict(self.members), dict(self.target), dict(self.current))

    def describe(self) -> DescribedConsumerGroup:
        return DescribedConsumerGroup(
            self.group_id,
            ErrorCode.NONE,
            self.state,
            self.epochs.epoch,
            self.epochs.assignment_epoch,
            self.assignor(),
            [
                DescribedConsumer(
                    member_id,
                    metadata.instance_id,
                    metadata.rack_id,
                    self.current[member_id].epoch,
                    metadata.client_id,
                    metadata.client_host,
                    metadata.topic_names,
                    metadata.topic_regex,
                    self.current[member_id].assigned,
                    self.target.get(member_id, NO_PARTITIONS),
                    0 if metadata.classic is not None else 1,
                )
                for member_id, metadata in self.members.items()
            ],
        )

    def end(self, code: ErrorCode) -> None:
        """The group is gone from here: stop its timers. Nobody waits except for appends."""
        for member_id in self.members:
            for kind in _MEMBER_TIMERS:
                self._env.fx.cancel(TimerKey(kind, self.group_id, member_id))


def check_heartbeat(call: ConsumerGroupHeartbeat, assignors: tuple[str, ...]) -> None:
    """Refuse a heartbeat that no state of a group could make right."""

    def need(good: bool, text: str) -> None:
        if not good:
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)

    need(bool(call.group_id.strip()), "GroupId can't be empty.")
    need(call.instance_id is None or bool(call.instance_id.strip()), "InstanceId can't be empty.")
    need(call.rack_id is None or bool(call.rack_id.strip()), "RackId can't be empty.")
    if call.version >= _CLIENT_MEMBER_ID_VERSION or call.member_epoch != 0:
        need(bool(call.member_id.strip()), "MemberId can't be empty.")
    if call.member_epoch == 0:
        need(call.rebalance_timeout_ms != -1, "RebalanceTimeoutMs must be provided in first request.")
        need(call.topic_partitions == NO_PARTITIONS, "TopicPartitions must be empty when (re-)joining.")
        need(
            call.subscribed_topic_names is not None or call.subscribed_topic_regex is not None,
            "SubscribedTopicNames or SubscribedTopicRegex must be set in first request.",
        )
    elif call.member_epoch == LEAVE_GROUP_STATIC_EPOCH:
        need(call.instance_id is not None, "InstanceId can't be null.")
    else:
        need(call.member_epoch > 0 or call.member_epoch == LEAVE_GROUP_EPOCH, "MemberEpoch is invalid.")
    if call.server_assignor is not None and call.server_assignor not in assignors:
        raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, f"{call.server_assignor} is not one of {', '.join(assignors)}")
    if call.subscribed_topic_regex:
        topic_pattern(call.subscribed_topic_regex)
