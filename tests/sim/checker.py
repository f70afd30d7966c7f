"""What must hold, looked at while the cluster runs and once more when it has come to rest.

The history holds what clients were told: which value stands at which offset. It is compared with what any later reader
sees and, at the end, with every replica's log. Numbers behind the rules are those of design.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.sim.world import Machine, World

from headrace.cluster.codec import BadValue, decode_configs, decode_partition, decode_topic
from headrace.cluster.image import NO_LEADER, Partition
from headrace.cluster.topics import is_internal
from headrace.records.batch import batches
from headrace.records.record import iter_records
from headrace.registry.api import CreateRevision, Delete, Put
from headrace.registry.keys import ConfigKey, ControllerEpochKey, PartitionKey, ProducerIdsKey, TopicKey

Key = tuple[uuid.UUID, int]
MAX_WAITING = 2_000
"""More requests than this never wait on one broker: the workload sends far fewer."""

COMPARE_EVERY = 20
"""Looks from one comparison of the replicas to the next."""


@dataclass
class PartitionHistory:
    """What clients were told of one partition."""

    shown: dict[int, bytes] = field(default_factory=dict)
    """Offset to value: acknowledged with acks=all, or read by a consumer."""
    stored: set[bytes] = field(default_factory=set)
    """Values that are acknowledged without an offset: a repetition that the log no longer remembers in detail."""
    excused: str | None = None
    """Why records of it may be lost: the fault that took the last replica holding them."""


@dataclass
class Sent:
    producer: str
    number: int
    idempotent: bool


class Checker:
    """Collects what clients saw, and says what is wrong with it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.partitions: dict[Key, PartitionHistory] = {}
        self.sent: dict[bytes, Sent] = {}
        self.checked = 0
        """Operations that were held against a rule."""
        self.on_acknowledged: Callable[[Key], None] | None = None
        """Told of every acknowledgement the moment a producer has it."""
        self.on_partition: Callable[[Key, Partition], None] | None = None
        """Told of every new state of a partition the moment the registry has it."""
        self.fragile: set[int] = set()
        """The brokers that lost what they had not synced, until they have caught up."""
        self.internal: set[Key] = set()
        """Partitions that are not written by producers."""
        self._leaders: dict[tuple[uuid.UUID, int, int], int] = {}
        self._marks: dict[tuple[int, int, uuid.UUID, int, int], int] = {}
        self._controller_epochs: dict[tuple[str, int], int] = {}
        self._states: dict[tuple[uuid.UUID, int, int], Partition] = {}
        self._looks = 0
        self._compared: dict[Key, int] = {}
        self._read_at = -1
        self._registered: dict[Key, Partition] = {}
        world.store.on_txn = self._txn

    def of(self, key: Key) -> PartitionHistory:
        history = self.partitions.get(key)
        if history is None:
            history = self.partitions[key] = PartitionHistory()
        return history

    # --- what clients report

    def acknowledged(self, key: Key, base_offset: int, values: list[bytes]) -> None:
        """Acknowledged with acks=all."""
        if self.on_acknowledged is not None:
            self.on_acknowledged(key)
        if base_offset < 0:
            self.of(key).stored.update(values)
            return
        for number, value in enumerate(values):
            self._show(key, base_offset + number, value, "acknowledged")

    def read(self, key: Key, offset: int, value: bytes) -> None:
        self._show(key, offset, value, "read")

    def _show(self, key: Key, offset: int, value: bytes, how: str) -> None:
        self.checked += 1
        history = self.of(key)
        before = history.shown.setdefault(offset, value)
        if before != value and not history.excused:
            self.world.violated(
                f"one value per offset: {_name(key)} offset {offset} was {before!r} and is now {how} as {value!r}"
            )

    def out_of_range(self, key: Key, position: int, where: str) -> None:
        if not self.of(key).excused:
            self.world.violated(
                f"a reader's place is gone: {_name(key)} at {position}, which it was led to, is out of range on {where}"
            )

    def gap(self, key: Key, expected: int, got: int) -> None:
        if not self.of(key).excused:
            self.world.violated(f"offsets without gaps: {_name(key)} goes from {expected} to {got}")

    def high_watermark(self, reader: int, broker: int, key: Key, leader_epoch: int, mark: int) -> None:
        """A reader saw this high watermark of one leader in one epoch."""
        self.checked += 1
        at = (reader, broker, *key, leader_epoch)
        before = self._marks.get(at, -1)
        if mark < before and not self.of(key).excused:
            self.world.violated(f"high watermark of {_name(key)} went back from {before} to {mark} on broker {broker}")
        self._marks[at] = max(mark, before)

    # --- the registry's transactions

    def _txn(self, conditions: Any, changes: Any) -> None:
        store, keys = self.world.store, self.world.keys
        controller = store._items.get(keys.controller)
        for change in changes:
            what = keys.parse(change.key)
            if isinstance(what, PartitionKey) and isinstance(change, Put):
                self._partition_changed(what, change)
            if not isinstance(what, PartitionKey | TopicKey | ConfigKey | ProducerIdsKey):
                if isinstance(what, ControllerEpochKey) and isinstance(change, Delete):
                    self.world.violated("the controller epoch was deleted")
                continue
            self.checked += 1
            guards = [c for c in conditions if isinstance(c, CreateRevision) and c.key == keys.controller]
            if controller is None or not any(c.revision == controller.create_revision for c in guards):
                self.world.violated(f"{change.key} was written by somebody who is not the active controller")

    def _partition_changed(self, what: PartitionKey, change: Put) -> None:
        topic_id = uuid.UUID(what.topic_id)
        state = decode_partition(change.value)
        held = self.world.store._items.get(change.key)
        if held is not None:
            old = decode_partition(held.value)
            self._check_transition((topic_id, what.partition), old, state)
        self._states[topic_id, what.partition, state.partition_epoch] = state
        if (
            self.fragile
            and {*state.isr, *state.elr} <= self.fragile
            and (len(self.fragile) > 1 or self._lenient(topic_id))
        ):
            # With one replica enough for an acknowledgement, the others were no longer waited for. And of several that
            # lost their power, the leader's last wish (the others are in sync, nobody else need be eligible) may have
            # been on its way.
            self.of(
                (topic_id, what.partition)
            ).excused = f"only {sorted(self.fragile)}, which lost records, are in sync"
        if self.on_partition is not None:
            self.on_partition((topic_id, what.partition), state)

    def _lenient(self, topic_id: uuid.UUID) -> bool:
        """Whether a topic asks for no more than one replica in sync."""
        name = next((name for name, (found, _) in self.topics().items() if found == topic_id), "")
        return self.min_insync_replicas(name) == "1"

    def min_insync_replicas(self, topic: str) -> str | None:
        """What the registry says the topic asks for, if it says so."""
        held = self.world.store._items.get(self.world.keys.config("topics", topic))
        return decode_configs(held.value).get("min.insync.replicas") if held is not None else None

    def _check_transition(self, key: Key, old: Partition, new: Partition) -> None:
        name = _name(key)
        if new.partition_epoch <= old.partition_epoch or new.leader_epoch < old.leader_epoch:
            self.world.violated(f"epochs of {name} go back: {old} to {new}")
        if new.leader != old.leader and new.leader_epoch == old.leader_epoch:
            self.world.violated(f"one leader per epoch: {name} {old} to {new}")
        if new.leader != NO_LEADER and new.leader not in new.isr:
            self.world.violated(f"the leader of {name} is not in its ISR: {new}")
        # Two steps in one: a leader that wants to stop vouches for somebody, and hands over to it at once.
        vouched = old.leader != NO_LEADER and new.partition_epoch == old.partition_epoch + 2
        complete = {NO_LEADER, old.leader, *old.isr, *old.elr}
        if self.of(key).excused:
            if not old.isr and not old.elr:
                return  # somebody decided to lose records (`Admin.rescue`)
            complete.add(old.last_known_leader)  # everyone has lost records: it may have lost the fewest
        if new.leader not in complete and complete - {NO_LEADER} and not vouched:
            self.world.violated(f"election from outside the ISR of {name}: {old} to {new}")

    # --- the brokers' state, looked at again and again

    def look(self) -> None:
        """Looks into every live broker."""
        for number, machine in enumerate(self.world.brokers):
            if machine.process is not None and machine.service is not None:
                self._look_into(number, machine)
        for machine in self.world.metadata:
            if machine.service is not None:
                self._look_into_fanout(machine)
        self._looks += 1
        if self._looks % COMPARE_EVERY == 0:
            for key, state in self.states().items():
                if not self.of(key).excused:
                    self._compare_running(key, state)

    def _look_into(self, number: int, machine: Machine) -> None:
        service = machine.service
        epoch = service.control._controller_epoch
        at = (machine.name, machine.starts)
        if epoch < self._controller_epochs.get(at, -1):
            self.world.violated(f"{machine.name} obeyed controller epoch {epoch} after a newer one")
        self._controller_epochs[at] = epoch
        self._look_at_memory(machine)
        for partition in service.replicas.partitions():
            self.checked += 1
            key = (partition.topic_id, partition.index)
            if partition.high_watermark > partition.log.log_end_offset:
                self.world.violated(f"{_name(key)} on {machine.name}: high watermark above the log's end")
            progress = partition.progress
            if progress is None:
                continue
            leader = self._leaders.setdefault((*key, partition.leader_epoch), number)
            if leader != number:
                self.world.violated(
                    f"one leader per epoch: brokers {leader} and {number} lead {_name(key)} in {partition.leader_epoch}"
                )
            state = self._states.get((*key, partition.partition_epoch))
            if state is not None and set(progress.isr) != set(state.isr):
                self.world.violated(
                    f"{machine.name} takes {progress.isr} for the ISR of {_name(key)}; the controller said {state.isr}"
                )

    def _look_at_memory(self, machine: Machine) -> None:
        """Nothing holds more than its declared limit, and the purgatories no more than so few clients can ask."""
        service = machine.service
        for purgatory in (service.replicas.produces, service.replicas.fetches):
            if purgatory.size > MAX_WAITING or purgatory.watched > 20 * MAX_WAITING:
                self.world.violated(f"memory: {purgatory.size} requests wait in {purgatory.name} of {machine.name}")
        sessions = service.broker.sessions
        if len(sessions) > sessions._slots:
            self.world.violated(f"memory: {len(sessions)} fetch sessions on {machine.name}")
        for listener in service._listeners:
            if (overfull := listener.overfull()) is not None:
                self.world.violated(f"memory: {overfull} wait on {machine.name}")

    def _look_into_fanout(self, machine: Machine) -> None:
        """One step may be heavier than the limit; a second one does not come on top of it."""
        fanout = machine.service.cache.fanout
        for reader in fanout._readers:
            if reader.pending > fanout.pending_limit and len(reader._pending) > 1:
                self.world.violated(f"memory: {reader.pending} changes wait for one reader of {machine.name}")
        if fanout.history_weight > fanout._history_limit:
            self.world.violated(f"memory: {fanout.history_weight} changes in the history of {machine.name}")

    def _compare_running(self, key: Key, state: Partition) -> None:
        """Those in sync hold the same below their high watermarks; what was compared before cannot change any more."""
        found = [self.replica(broker, key) for broker in state.isr if broker not in self.fragile]
        replicas = [replica for replica in found if replica is not None and replica.log.failure is None]
        begin = self._compared.get(key, 0)
        end = min((replica.high_watermark for replica in replicas), default=0)
        if len(replicas) < 2 or end <= begin:
            return
        self.checked += 1
        if len({replica.log.read(begin, 1 << 30, upto=end).read() for replica in replicas}) > 1:
            self.world.violated(f"replicas of {_name(key)} differ between {begin} and {end}, below the high watermark")
        self._compared[key] = end

    # --- the end

    def topics(self) -> dict[str, tuple[uuid.UUID, int]]:
        """The topics that the registry holds: name to id and number of partitions."""
        found = {}
        for key, item in self.world.store._items.items():
            what = self.world.keys.parse(key)
            if isinstance(what, TopicKey):
                entry = decode_topic(item.value)
                found[what.name] = (entry.id, entry.partitions)
        return found

    def states(self) -> dict[Key, Partition]:
        """What the registry says of every partition of every visible topic; not to be changed."""
        if self._read_at == self.world.store.revision:
            return self._registered
        found = {}
        for topic_id, count in self.topics().values():
            for index in range(count):
                held = self.world.store._items.get(self.world.keys.partition(str(topic_id), index))
                if held is not None:
                    try:
                        found[topic_id, index] = decode_partition(held.value)
                    except BadValue:
                        continue
        self._read_at, self._registered = self.world.store.revision, found
        return found

    def settled(self) -> str | None:
        """None when every partition has its leader, all its replicas in sync, and equal logs; else what is missing."""
        for key, state in self.states().items():
            if state.leader == NO_LEADER:
                return f"{_name(key)} has no leader"
            if state.adding or state.removing:
                return f"{_name(key)} is still moving: {state}"
            if set(state.isr) != set(state.replicas):
                return f"{_name(key)} has ISR {state.isr} of replicas {state.replicas}"
            ends = set()
            for broker in state.replicas:
                replica = self.replica(broker, key)
                if replica is None:
                    return f"{_name(key)} is not on broker {broker}"
                ends.add((replica.log.log_end_offset, replica.high_watermark))
            if len(ends) > 1 or any(end != mark for end, mark in ends):
                return f"the replicas of {_name(key)} end at (log end, high watermark) {sorted(ends)}"
            led = self.replica(state.leader, key)
            if led is None or led.progress is None or led.leader_epoch != state.leader_epoch:
                return f"broker {state.leader} does not lead {_name(key)}"
        return None

    def replica(self, broker: int, key: Key) -> Any:
        if broker >= len(self.world.brokers):
            return None
        service = self.world.brokers[broker].service
        return service.replicas.find(*key) if service is not None else None

    def finish(self) -> None:
        """Compares every replica with every other and with the history; the cluster is at rest."""
        self.internal = {
            (topic_id, index)
            for name, (topic_id, n) in self.topics().items()
            if is_internal(name)
            for index in range(n)
        }
        for key, state in self.states().items():
            logs = {}
            for broker in state.replicas:
                replica = self.replica(broker, key)
                if replica is not None:
                    logs[broker] = contents(replica)
            self._compare_replicas(key, state, logs)
            if state.leader in logs:
                self._compare_history(key, logs[state.leader])

    def _compare_replicas(self, key: Key, state: Partition, logs: dict[int, list[tuple[int, int, bytes]]]) -> None:
        leader = logs.get(state.leader)
        for broker, log in logs.items():
            self.checked += 1
            if log != leader:
                differs = next((a, b) for a, b in zip([*log, None], [*(leader or []), None], strict=False) if a != b)
                self.world.violated(
                    f"replicas of {_name(key)} differ: broker {broker} has {_batch(differs[0])}, the leader"
                    f" {state.leader} has {_batch(differs[1])}"
                )

    def _compare_history(self, key: Key, log: list[tuple[int, int, bytes]]) -> None:
        history = self.of(key)
        held: dict[int, bytes] = {}
        expected = None
        for base, _, data in log:
            for batch in batches(data):
                for record in iter_records(data, batch):
                    held[record.offset] = record.value or b""
            if expected is not None and base != expected:
                self.gap(key, expected, base)
            expected = max(held) + 1
        if history.excused or key in self.internal:
            return
        for offset, value in history.shown.items():
            self.checked += 1
            if held.get(offset) != value:
                self.world.violated(
                    f"a record is lost: {_name(key)} offset {offset} was {value!r}, the log has {held.get(offset)!r}"
                )
        for value in history.stored - set(held.values()):
            self.world.violated(f"a record is lost: {_name(key)} has no {value!r}, which was acknowledged")
        self._check_producers(key, held)

    def _check_producers(self, key: Key, held: dict[int, bytes]) -> None:
        seen: dict[bytes, int] = {}
        last: dict[str, int] = {}
        for offset in sorted(held):
            value = held[offset]
            sent = self.sent.get(value)
            if sent is None:
                self.world.violated(f"{_name(key)} offset {offset} holds {value!r}, which nobody sent")
                continue
            if not sent.idempotent:
                continue
            self.checked += 1
            if value in seen:
                self.world.violated(
                    f"no duplicates with idempotence: {_name(key)} has {value!r} at {seen[value]} and {offset}"
                )
            seen[value] = offset
            if sent.number < last.get(sent.producer, -1):
                self.world.violated(f"producer order: {_name(key)} has {value!r} after {last[sent.producer]}")
            last[sent.producer] = sent.number


def contents(replica: Any) -> list[tuple[int, int, bytes]]:
    """Every batch of a replica: base offset, leader epoch, bytes."""
    log = replica.log
    if log.log_end_offset == log.log_start_offset:
        return []
    data = log.read(log.log_start_offset, 1 << 40, upto=log.log_end_offset).read()
    return [(b.base_offset, b.leader_epoch, data[b.position : b.position + b.size]) for b in batches(data)]


def _batch(found: tuple[int, int, bytes] | None) -> str:
    return "nothing" if found is None else f"offset {found[0]} of epoch {found[1]}"


def _name(key: Key) -> str:
    return f"{str(key[0])[:8]}-{key[1]}"
