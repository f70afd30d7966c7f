"""From a plan to registry transactions.

The registry takes only so many changes at once, and a plan may touch every partition of the cluster. The order in
which the pieces become visible is what keeps them safe: partitions of a new topic are written before the key that makes
the topic visible, and a broker's new incarnation is noted only after everything it means for partitions is written.
Steps follow one another; the transactions of one step may run side by side. Each one holds only while this controller
is the elected one and while every key it changes is as it was read.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.cluster import codec
from headrace.cluster.codec import TopicEntry
from headrace.cluster.image import Image, Topic
from headrace.cluster.view import DEFAULT_BROKER
from headrace.controller.plan import Incarnation, Plan
from headrace.registry.api import Change, Condition, CreateRevision, Delete, ModRevision, Put
from headrace.registry.keys import Keys


@dataclass(frozen=True, slots=True)
class Write:
    """Changes that must be made together, and the keys that must be unchanged for it."""

    changes: tuple[Change, ...]
    unchanged: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Transaction:
    """What goes to the registry in one call."""

    conditions: tuple[Condition, ...]
    changes: tuple[Change, ...]


@dataclass(slots=True)
class Steps:
    """Writes in the order in which they must become visible."""

    partitions: list[Write] = field(default_factory=list)
    visible: list[Write] = field(default_factory=list)
    noted: list[Write] = field(default_factory=list)

    def __iter__(self) -> Iterator[list[Write]]:
        return iter([self.partitions, self.visible, self.noted])


def incarnations_prefix(keys: Keys) -> str:
    """Where the controller keeps which registration of each broker it has dealt with."""
    return f"{keys.root}incarnations/"


def incarnation_key(keys: Keys, broker: int) -> str:
    return f"{incarnations_prefix(keys)}{broker}"


def encode_incarnation(seen: Incarnation) -> bytes:
    fields = {
        "epoch": seen.epoch,
        "directory_id": str(seen.directory_id) if seen.directory_id else None,
        "incarnation_id": seen.incarnation_id,
        "lineage_id": seen.lineage_id,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_incarnation(value: bytes) -> Incarnation:
    fields = json.loads(value)
    directory = fields["directory_id"]
    return Incarnation(
        int(fields["epoch"]),
        uuid.UUID(directory) if directory else None,
        fields.get("incarnation_id") or "",
        fields.get("lineage_id") or "",
    )


def writes_of(plan: Plan, image: Image, keys: Keys) -> Steps:
    """The plan's writes; `image` is the picture it was made from."""
    steps = Steps()
    for (name, index), state in plan.partitions.items():
        key = keys.partition(str(image.topics[name].id), index)
        steps.partitions.append(Write((Put(key, codec.encode_partition(state)),), (key,)))
    for topic, index, state in plan.new_partitions(image):
        key = keys.partition(str(topic.id), index)
        steps.partitions.append(Write((Put(key, codec.encode_partition(state)),), (key,)))
    for topic in plan.topics.values():
        steps.visible.append(_topic_write(topic, plan.topic_configs, keys))
    for topic in plan.deleted.values():
        steps.visible.append(_deletion(topic, keys))
    configs = {("topics", name): values for name, values in plan.topic_configs.items() if name not in plan.topics}
    configs |= {("brokers", name or DEFAULT_BROKER): values for name, values in plan.broker_configs.items()}
    for (kind, name), values in configs.items():
        key = keys.config(kind, name)
        change = Put(key, codec.encode_configs(values)) if values else Delete(key)
        steps.visible.append(Write((change,), (key,)))
    for broker, seen in plan.incarnations.items():
        key = incarnation_key(keys, broker)
        steps.noted.append(Write((Put(key, encode_incarnation(seen)),), (key,)))
    return steps


def _topic_write(topic: Topic, configs: Mapping[str, Mapping[str, str]], keys: Keys) -> Write:
    key = keys.topic(topic.name)
    put = Put(key, codec.encode_topic(TopicEntry(topic.id, len(topic.partitions))))
    if topic.name not in configs:
        return Write((put,), (key,))
    config = keys.config("topics", topic.name)
    return Write((Put(config, codec.encode_configs(configs[topic.name])), put), (key, config))


def _deletion(topic: Topic, keys: Keys) -> Write:
    key, config = keys.topic(topic.name), keys.config("topics", topic.name)
    gone = (Delete(key), Delete(config), Delete(keys.partitions_of(str(topic.id)), prefix=True))
    return Write(gone, (key, config))


def transactions(
    steps: Steps, guard: CreateRevision, revisions: Mapping[str, int], limit: int
) -> list[list[Transaction]]:
    """The writes cut into transactions of at most `limit` changes (and conditions, of which the guard is one).

    What fits into one transaction goes into one, whatever the step: then it is visible all at once.
    """
    everything = [write for step in steps for write in step]
    whole = _cut(everything, guard, revisions, limit)
    if len(whole) <= 1:
        return [whole] if whole else []
    return [cut for step in steps if (cut := _cut(step, guard, revisions, limit))]


def _cut(writes: Sequence[Write], guard: CreateRevision, revisions: Mapping[str, int], limit: int) -> list[Transaction]:
    cut: list[Transaction] = []
    conditions: list[Condition] = [guard]
    changes: list[Change] = []
    for write in writes:
        too_many = len(conditions) + len(write.unchanged) > limit or len(changes) + len(write.changes) > limit
        if changes and too_many:
            cut.append(Transaction(tuple(conditions), tuple(changes)))
            conditions, changes = [guard], []
        conditions += (ModRevision(key, revisions.get(key, 0)) for key in write.unchanged)
        changes += write.changes
    if changes:
        cut.append(Transaction(tuple(conditions), tuple(changes)))
    return cut


def orphan_writes(orphans: Mapping[uuid.UUID, Sequence[int]], image: Image, keys: Keys) -> Steps:
    """Removes partition keys that a creation or deletion left behind when its controller died in the middle."""
    steps = Steps()
    for topic_id, indexes in orphans.items():
        if topic_id in image.topic_names:
            for index in indexes:
                key = keys.partition(str(topic_id), index)
                steps.partitions.append(Write((Delete(key),), (key,)))
        else:
            steps.partitions.append(Write((Delete(keys.partitions_of(str(topic_id)), prefix=True),), ()))
    return steps
