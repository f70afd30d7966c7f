"""The cluster as everyone sees it: an immutable picture of what the registry holds at one revision.

Controllers build it from etcd, metadata replicas pass it on, brokers and coordinators keep the newest one. A new
picture shares everything that did not change with the one before it, so keeping an old one is free and reading one
needs no lock.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

NO_LEADER = -1
_EMPTY: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a process can be reached."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Node:
    """A process as it registered itself; `epoch` is the revision that created the registration."""

    id: int
    epoch: int
    grpc: Endpoint
    kafka: Endpoint | None = None
    rack: str = ""
    directory_id: uuid.UUID | None = None


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

    @property
    def out_of_sync(self) -> tuple[int, ...]:
        return tuple(r for r in self.replicas if r not in self.isr)

    @property
    def preferred_leader(self) -> int:
        return self.replicas[0]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic with its partitions, ordered by index."""

    name: str
    id: uuid.UUID
    partitions: tuple[Partition, ...]

    @property
    def internal(self) -> bool:
        return self.name.startswith("__")


@dataclass(frozen=True, slots=True)
class OffsetsOwner:
    """The coordinator that owns one partition of the offsets topic, and the epoch its appends carry."""

    coordinator: int
    epoch: int


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
