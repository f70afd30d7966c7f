"""From the registry's keys to the picture: what is visible of a half-written topic, and what is only noise.

A large topic does not fit into one transaction, so its partition keys are written first, in pieces, and its
`topics/<name>` key last: that key makes it visible, all at once. Partitions are added the same way (the count in
`topics/<name>` grows last), and a deletion goes the other way (`topics/<name>` first). Partition keys that no visible
topic counts are kept aside, unseen.

Works on anything shaped like `registry.api`'s Snapshot and Changes: the picture does not depend on the store.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from sys import intern
from typing import Protocol

from headrace.cluster import codec
from headrace.cluster.codec import BadValue, TopicEntry
from headrace.cluster.image import (
    NO_LEADER,
    BrokerChanged,
    BrokerConfigChanged,
    BrokerGone,
    Change,
    ControllerChanged,
    ControllerEpochChanged,
    CoordinatorChanged,
    CoordinatorGone,
    Delta,
    Image,
    OffsetsOwnerChanged,
    Partition,
    PartitionsChanged,
    Topic,
    TopicChanged,
    TopicConfigChanged,
    TopicGone,
    changes_between,
)

logger = logging.getLogger(__name__)

DEFAULT_BROKER = "default"
"""What stands in `configs/brokers/<id>` for the settings of all brokers."""

_MISSING = Partition(NO_LEADER, 0, (), ())


class KeyState(Protocol):
    """A key of a snapshot, or a change of one (value None: removed)."""

    @property
    def key(self) -> str: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def create_revision(self) -> int: ...
    @property
    def mod_revision(self) -> int: ...


class Snapshot(Protocol):
    """Every key under the cluster's prefix at one revision."""

    @property
    def revision(self) -> int: ...
    @property
    def items(self) -> Sequence[KeyState]: ...


class Changes(Protocol):
    """All changes of one revision."""

    @property
    def revision(self) -> int: ...
    @property
    def events(self) -> Sequence[KeyState]: ...


class RegistryView:
    """The picture of one cluster, kept up to date from a registry's snapshot and the changes after it.

    `prefix` is where the cluster's keys begin (`/headrace/<cluster>/`). `revisions` holds every key's mod revision, for
    compare-and-swap.
    """

    def __init__(self, prefix: str, cluster_id: str) -> None:
        self.prefix = prefix
        self.image = Image(cluster_id=cluster_id)
        self.revisions: dict[str, int] = {}
        self._entries: dict[str, TopicEntry] = {}
        self._partitions: dict[uuid.UUID, dict[int, Partition]] = {}
        self._ids: dict[str, uuid.UUID] = {}
        # Made while one revision is read:
        self._changes: list[Change] = []
        self._touched_topics: dict[str, None] = {}
        self._touched_partitions: dict[uuid.UUID, dict[int, Partition | None]] = {}

    def load(self, snapshot: Snapshot) -> Delta:
        """Starts anew from `snapshot`; the delta leads there from the picture before."""
        before = self.image
        self.image = Image(cluster_id=before.cluster_id)
        for held in (self.revisions, self._entries, self._partitions, self._ids):
            held.clear()
        self._read(snapshot.revision, snapshot.items)
        return Delta(snapshot.revision, tuple(changes_between(before, self.image)))

    def apply(self, changes: Changes) -> Delta:
        """Moves the picture one revision on; the delta is empty when nothing visible changed."""
        return self._read(changes.revision, changes.events)

    def orphans(self) -> dict[uuid.UUID, tuple[int, ...]]:
        """Partition keys that no visible topic counts: what a creation or a deletion left half done."""
        counts = {entry.id: entry.partitions for entry in self._entries.values()}
        found = {
            topic_id: tuple(sorted(index for index in held if index >= counts.get(topic_id, 0)))
            for topic_id, held in self._partitions.items()
        }
        return {topic_id: indexes for topic_id, indexes in found.items() if indexes}

    def _read(self, revision: int, states: Sequence[KeyState]) -> Delta:
        self._changes = []
        self._touched_topics = {}
        self._touched_partitions = {}
        for state in states:
            key = state.key
            if state.value is None:
                self.revisions.pop(key, None)
            else:
                self.revisions[intern(key)] = state.mod_revision
            try:
                self._key(key.removeprefix(self.prefix), state)
            except BadValue as error:
                # One damaged value must not hide the rest of the cluster: what was known of it stays.
                logger.error("ignored the value of %s at revision %d: %s", key, revision, error)
        self._topic_changes()
        delta = Delta(revision, tuple(self._changes))
        self.image = self.image.apply(delta)
        return delta

    def _key(self, path: str, state: KeyState) -> None:
        kind, _, name = path.partition("/")
        value = state.value
        match kind:
            case "partitions":
                self._partition_key(name, value)
            case "topics":
                if value is None:
                    self._entries.pop(name, None)
                else:
                    self._entries[name] = codec.decode_topic(value)
                self._touched_topics[name] = None
            case "brokers":
                if value is None:
                    self._changes.append(BrokerGone(_number(name)))
                else:
                    self._changes.append(BrokerChanged(codec.decode_node(value, state.create_revision)))
            case "coordinators":
                if value is None:
                    self._changes.append(CoordinatorGone(_number(name)))
                else:
                    self._changes.append(CoordinatorChanged(codec.decode_node(value, state.create_revision)))
            case "controller":
                node = None if value is None else codec.decode_controller(value, state.create_revision)
                self._changes.append(ControllerChanged(node))
            case "controller_epoch":
                if value is not None:
                    self._changes.append(ControllerEpochChanged(codec.decode_number(value)))
            case "configs":
                self._config_key(name, value)
            case "offsets_owners":
                owner = None if value is None else codec.decode_offsets_owner(value, state.create_revision)
                self._changes.append(OffsetsOwnerChanged(_number(name), owner))
            case _:
                # producer_ids, metadata/ and what later versions add are nobody's picture.
                pass

    def _config_key(self, name: str, value: bytes | None) -> None:
        values = {} if value is None else codec.decode_configs(value)
        kind, _, resource = name.partition("/")
        if kind == "topics":
            self._changes.append(TopicConfigChanged(resource, values))
        elif kind == "brokers":
            self._changes.append(BrokerConfigChanged("" if resource == DEFAULT_BROKER else resource, values))

    def _partition_key(self, name: str, value: bytes | None) -> None:
        text, _, index_text = name.partition("/")
        topic_id = self._ids.get(text)
        if topic_id is None:
            try:
                topic_id = self._ids[text] = uuid.UUID(text)
            except ValueError:
                raise BadValue(f"{text!r} is not a topic id") from None
        index = _number(index_text)
        held = self._partitions.setdefault(topic_id, {})
        if value is None:
            held.pop(index, None)
            if not held:
                del self._partitions[topic_id]
                del self._ids[text]
            partition = None
        else:
            partition = held[index] = codec.decode_partition(value)
        self._touched_partitions.setdefault(topic_id, {})[index] = partition

    def _topic_changes(self) -> None:
        for name in self._touched_topics:
            entry, before = self._entries.get(name), self.image.topics.get(name)
            if before is not None and (entry is None or entry.id != before.id):
                self._changes.append(TopicGone(before.id))
            if entry is not None:
                self._changes.append(TopicChanged(self._topic(name, entry)))
                self._touched_partitions.pop(entry.id, None)
        for topic_id, touched in self._touched_partitions.items():
            topic = self.image.topic_by_id(topic_id)
            if topic is None or topic.name in self._touched_topics:
                continue
            visible = {i: state or _MISSING for i, state in touched.items() if i < len(topic.partitions)}
            if visible:
                self._changes.append(PartitionsChanged(topic_id, visible))

    def _topic(self, name: str, entry: TopicEntry) -> Topic:
        held = self._partitions.get(entry.id, {})
        return Topic(name, entry.id, tuple(held.get(index, _MISSING) for index in range(entry.partitions)))


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadValue(f"{text!r} in the key is not a number") from None
