"""The cluster as everyone sees it: an immutable picture of what the registry holds at one revision.

Controllers build it from etcd, metadata replicas pass it on, brokers and coordinators keep the newest one. A new
picture shares everything that did not change with the one before it, so keeping an old one is free and reading one
needs no lock.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Generic, TypeVar

from headrace.cluster.topics import is_internal

NO_LEADER = -1
_EMPTY: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a process can be reached."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Reads `host:port`; ValueError when it is not one.

        >>> Endpoint.parse("[::1]:9092")
        Endpoint(host='::1', port=9092)
        """
        host, colon, port = text.strip().rpartition(":")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not colon or not port.isdecimal() or int(port) > 65535 or (":" in bare and bare == host):
            raise ValueError(f"{text!r} is not host:port")
        return cls(bare, int(port))


@dataclass(frozen=True, slots=True)
class Node:
    """A process as it registered itself; `epoch` is the revision that created the registration."""

    id: int
    epoch: int
    grpc: Endpoint
    kafka: Endpoint | None = None
    rack: str = ""
    directory_id: uuid.UUID | None = None
    incarnation_id: str = ""
    """New at every start of the process; empty where it is not known (it is not part of what clients are told)."""
    lineage_id: str = ""
    """New when records may have been lost between two starts (`storage.lineage`); empty where it is not known."""
    listeners: tuple[tuple[str, Endpoint], ...] = ()
    """Where clients reach it by each of its named listeners, by name; `kafka` is the one that brokers use."""

    def kafka_by(self, listener: str) -> Endpoint | None:
        """Where a client that came by a listener of this name reaches it; None when it has no such one."""
        return dict(self.listeners).get(listener) if self.listeners else self.kafka


@lru_cache(maxsize=4096)
def shared(ids: tuple[int, ...]) -> tuple[int, ...]:
    """The same tuple for the same brokers: thousands of partitions lie on few different sets of them."""
    return ids


@dataclass(frozen=True, slots=True)
class Partition:
    """Who leads a partition and who follows. Every change grows `partition_epoch`, a new leader `leader_epoch`."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    """Eligible leader replicas (KIP-966): outside the ISR, but nothing was acknowledged since they left it."""
    last_known_leader: int = NO_LEADER
    """Who led last, while nobody does."""

    @property
    def out_of_sync(self) -> tuple[int, ...]:
        return tuple(r for r in self.replicas if r not in self.isr)

    @property
    def preferred_leader(self) -> int:
        return self.replicas[0] if self.replicas else NO_LEADER


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic with its partitions, ordered by index."""

    name: str
    id: uuid.UUID
    partitions: tuple[Partition, ...]

    @property
    def internal(self) -> bool:
        return is_internal(self.name)


@dataclass(frozen=True, slots=True)
class OffsetsOwner:
    """The coordinator that owns one partition of the offsets topic, and the epoch its appends carry."""

    coordinator: int
    epoch: int


@dataclass(frozen=True, slots=True)
class BrokerChanged:
    """A broker registered, or changed its registration."""

    node: Node


@dataclass(frozen=True, slots=True)
class BrokerGone:
    id: int


@dataclass(frozen=True, slots=True)
class CoordinatorChanged:
    """A coordinator registered, or changed its registration."""

    node: Node


@dataclass(frozen=True, slots=True)
class CoordinatorGone:
    id: int


@dataclass(frozen=True, slots=True)
class ControllerChanged:
    """Another controller is active; None while there is none."""

    node: Node | None


@dataclass(frozen=True, slots=True)
class ControllerEpochChanged:
    epoch: int


@dataclass(frozen=True, slots=True)
class TopicChanged:
    """A topic is new, was recreated, or has more partitions: all of it."""

    topic: Topic


@dataclass(frozen=True, slots=True)
class TopicGone:
    id: uuid.UUID


@dataclass(frozen=True, slots=True)
class PartitionsChanged:
    """Some partitions of a topic have another state, by index."""

    topic_id: uuid.UUID
    partitions: Mapping[int, Partition]


@dataclass(frozen=True, slots=True)
class TopicConfigChanged:
    """The overrides of a topic; empty: it has none any more."""

    topic: str
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BrokerConfigChanged:
    """The dynamic settings of a broker, or with the empty name of all brokers; empty: none any more."""

    broker: str
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class OffsetsOwnerChanged:
    """Who owns a partition of the offsets topic; None: nobody."""

    partition: int
    owner: OffsetsOwner | None


Change = (
    BrokerChanged
    | BrokerGone
    | CoordinatorChanged
    | CoordinatorGone
    | ControllerChanged
    | ControllerEpochChanged
    | TopicChanged
    | TopicGone
    | PartitionsChanged
    | TopicConfigChanged
    | BrokerConfigChanged
    | OffsetsOwnerChanged
)


@dataclass(frozen=True, slots=True)
class Delta:
    """Everything that changed at one revision; the changes hold together."""

    revision: int
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Image:
    """Everything shared, at one revision. Do not change the mappings: they are shared with other pictures."""

    cluster_id: str = ""
    revision: int = 0
    brokers: Mapping[int, Node] = field(default_factory=dict)
    coordinators: Mapping[int, Node] = field(default_factory=dict)
    controller: Node | None = None
    controller_epoch: int = 0
    topics: Mapping[str, Topic] = field(default_factory=dict)
    topic_names: Mapping[uuid.UUID, str] = field(default_factory=dict)
    topic_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Dynamic settings of brokers by id; the empty name holds the default of all brokers."""
    offsets_owners: Mapping[int, OffsetsOwner] = field(default_factory=dict)

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics.get(name)

    def partition(self, topic: str, index: int) -> Partition | None:
        found = self.topics.get(topic)
        return found.partitions[index] if found and 0 <= index < len(found.partitions) else None

    def topic_config(self, topic: str) -> Mapping[str, str]:
        return self.topic_configs.get(topic, _EMPTY)

    def apply(self, delta: Delta) -> Image:
        """The picture after `delta`; what it does not touch is shared with this one."""
        draft = _Draft(self)
        for change in delta.changes:
            draft.make(change)
        return draft.image(delta.revision)


K = TypeVar("K")
V = TypeVar("V")


class _Copied(Generic[K, V]):
    """A mapping that is copied once, when the first change touches it; untouched it stays the one that is shared."""

    __slots__ = ("_copy", "now")

    def __init__(self, shared: Mapping[K, V]) -> None:
        self.now = shared
        self._copy: dict[K, V] | None = None

    def changing(self) -> dict[K, V]:
        if self._copy is None:
            self.now = self._copy = dict(self.now)
        return self._copy

    def put_or_drop(self, key: K, value: V | None) -> None:
        if value is None:
            self.changing().pop(key, None)
        else:
            self.changing()[key] = value


class _Draft:
    """An image in the making."""

    def __init__(self, image: Image) -> None:
        self._base = image
        self._brokers = _Copied(image.brokers)
        self._coordinators = _Copied(image.coordinators)
        self._controller = image.controller
        self._controller_epoch = image.controller_epoch
        self._topics = _Copied(image.topics)
        self._topic_names = _Copied(image.topic_names)
        self._topic_configs = _Copied(image.topic_configs)
        self._broker_configs = _Copied(image.broker_configs)
        self._offsets_owners = _Copied(image.offsets_owners)

    def image(self, revision: int) -> Image:
        return Image(
            self._base.cluster_id,
            revision,
            self._brokers.now,
            self._coordinators.now,
            self._controller,
            self._controller_epoch,
            self._topics.now,
            self._topic_names.now,
            self._topic_configs.now,
            self._broker_configs.now,
            self._offsets_owners.now,
        )

    def make(self, change: Change) -> None:
        match change:
            case PartitionsChanged():
                self._partitions(change)
            case TopicChanged(topic):
                self._topic(topic)
            case TopicGone(topic_id):
                self._topic_gone(topic_id)
            case BrokerChanged(node):
                self._brokers.put_or_drop(node.id, node)
            case BrokerGone(broker):
                self._brokers.put_or_drop(broker, None)
            case CoordinatorChanged(node):
                self._coordinators.put_or_drop(node.id, node)
            case CoordinatorGone(coordinator):
                self._coordinators.put_or_drop(coordinator, None)
            case ControllerChanged(controller):
                self._controller = controller
            case ControllerEpochChanged(epoch):
                self._controller_epoch = epoch
            case TopicConfigChanged(name, values):
                self._topic_configs.put_or_drop(name, values or None)
            case BrokerConfigChanged(name, values):
                self._broker_configs.put_or_drop(name, values or None)
            case OffsetsOwnerChanged(partition, owner):
                self._offsets_owners.put_or_drop(partition, owner)

    def _topic(self, topic: Topic) -> None:
        topics = self._topics.changing()
        before = topics.get(topic.name)
        topics[topic.name] = topic
        if before is None or before.id != topic.id:
            names = self._topic_names.changing()
            if before is not None:
                del names[before.id]
            names[topic.id] = topic.name

    def _topic_gone(self, topic_id: uuid.UUID) -> None:
        name = self._topic_names.changing().pop(topic_id, None)
        if name is not None:
            del self._topics.changing()[name]

    def _partitions(self, change: PartitionsChanged) -> None:
        name = self._topic_names.now.get(change.topic_id)
        if name is None:
            return
        topics = self._topics.changing()
        topic = topics[name]
        partitions = list(topic.partitions)
        for index, partition in change.partitions.items():
            if index < len(partitions):
                partitions[index] = partition
        topics[name] = Topic(name, topic.id, tuple(partitions))


def changes_between(old: Image, new: Image) -> Iterator[Change]:
    """What leads from `old` to `new`: `old.apply(Delta(new.revision, tuple(changes_between(old, new)))) == new`.

    Parts that the two share are skipped without being looked at, so neighbours cost what differs between them.
    """
    for node in _changed(old.brokers, new.brokers):
        yield BrokerChanged(new.brokers[node])
    for node in _gone(old.brokers, new.brokers):
        yield BrokerGone(node)
    for node in _changed(old.coordinators, new.coordinators):
        yield CoordinatorChanged(new.coordinators[node])
    for node in _gone(old.coordinators, new.coordinators):
        yield CoordinatorGone(node)
    if old.controller != new.controller:
        yield ControllerChanged(new.controller)
    if old.controller_epoch != new.controller_epoch:
        yield ControllerEpochChanged(new.controller_epoch)
    yield from _topic_changes(old, new)
    for name in (*_changed(old.topic_configs, new.topic_configs), *_gone(old.topic_configs, new.topic_configs)):
        yield TopicConfigChanged(name, new.topic_configs.get(name, _EMPTY))
    for name in (*_changed(old.broker_configs, new.broker_configs), *_gone(old.broker_configs, new.broker_configs)):
        yield BrokerConfigChanged(name, new.broker_configs.get(name, _EMPTY))
    for index in (*_changed(old.offsets_owners, new.offsets_owners), *_gone(old.offsets_owners, new.offsets_owners)):
        yield OffsetsOwnerChanged(index, new.offsets_owners.get(index))


def _topic_changes(old: Image, new: Image) -> Iterator[Change]:
    # Gone first: a recreated topic keeps its name, and must not be taken away again by its predecessor's end.
    for topic_id in _gone(old.topic_names, new.topic_names):
        yield TopicGone(topic_id)
    for name in _changed(old.topics, new.topics):
        before, after = old.topics.get(name), new.topics[name]
        if before is None or before.id != after.id or len(before.partitions) != len(after.partitions):
            yield TopicChanged(after)
        else:
            pairs = enumerate(zip(before.partitions, after.partitions, strict=True))
            yield PartitionsChanged(after.id, {i: b for i, (a, b) in pairs if a is not b and a != b})


def _changed(old: Mapping[K, V], new: Mapping[K, V]) -> Iterable[K]:
    if old is new:
        return ()
    return [key for key, value in new.items() if (before := old.get(key)) is not value and before != value]


def _gone(old: Mapping[K, V], new: Mapping[K, V]) -> Iterable[K]:
    return () if old is new else [key for key in old if key not in new]
