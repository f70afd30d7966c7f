"""What the decisions read (`View`) and what they want changed (`Plan`).

A decision is a function from a view and a request to a plan and an answer; it does no I/O. The controller turns the
plan into registry transactions, and lays the same plan over its own picture once they succeeded.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from headrace.cluster.image import (
    BrokerConfigChanged,
    Change,
    Delta,
    Image,
    Partition,
    PartitionsChanged,
    Topic,
    TopicChanged,
    TopicConfigChanged,
    TopicGone,
)
from headrace.errors import ErrorCode, KafkaError
from headrace.v1 import common_pb2 as pb

PartitionId = tuple[str, int]
"""A topic's name and a partition's index."""

ReplicaId = tuple[uuid.UUID, int]
"""A topic's id and a partition's index: what a broker holds stays named after the topic is gone."""


Touched = Mapping[int, Collection[ReplicaId]]
"""For each broker the replicas it has to hear about."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """The registration of a broker whose partitions the controller has dealt with.

    It is kept in the registry, because a broker that restarted while no controller was active must still get a new
    leader epoch for what it leads, and one that came back with an empty disk must not lead for the sake of an ISR it
    was in with its old one.
    """

    epoch: int
    directory_id: uuid.UUID | None = None
    incarnation_id: str = ""
    """Which process it was: one that only registered again, after it had lost its lease, has lost no record."""
    lineage_id: str = ""
    """As long as it is the same, no record was lost between the processes either."""

    def lives_on_in(self, other: Incarnation) -> bool:
        """Whether it is the same process that registered again."""
        return self.incarnation_id != "" and self.incarnation_id == other.incarnation_id

    def kept_records_in(self, other: Incarnation) -> bool:
        """Whether everything it wrote is still there: it stopped in order, or its machine at least went on running."""
        return self.lineage_id != "" and self.lineage_id == other.lineage_id


@dataclass(frozen=True, slots=True)
class View:
    """What a decision may look at."""

    image: Image
    incarnations: Mapping[int, Incarnation] = field(default_factory=dict)
    stopping: frozenset[int] = frozenset()
    """Brokers that asked to stop: they keep what nobody else can lead, and get nothing new."""

    failed: Mapping[int, Collection[PartitionId]] = field(default_factory=dict)
    """Replicas that their broker said it cannot serve, because the disk under them failed."""

    min_isr: Callable[[str], int] = lambda topic: 1
    """A topic's `min.insync.replicas`."""

    def usable(self, broker: int, partition: PartitionId | None = None) -> bool:
        """Whether a broker is there to stay, so that it may lead, be in an ISR or get a new partition.

        With a partition: also whether its replica there is sound.
        """
        return (
            broker in self.image.brokers
            and broker not in self.stopping
            and (partition is None or not self.has_failed(broker, partition))
        )

    def has_failed(self, broker: int, partition: PartitionId) -> bool:
        return bool(self.failed) and partition in self.failed.get(broker, ())

    def partitions(self) -> Iterator[tuple[PartitionId, Partition]]:
        for name, topic in self.image.topics.items():
            for index, partition in enumerate(topic.partitions):
                # One whose value in the registry cannot be read has no replicas: it is left as it is.
                if partition.replicas:
                    yield (name, index), partition


@dataclass(slots=True)
class Plan:
    """Changes that belong to one event. Empty when nothing has to change."""

    partitions: dict[PartitionId, Partition] = field(default_factory=dict)
    """New states of partitions that exist already."""
    topics: dict[str, Topic] = field(default_factory=dict)
    """Topics that are new or have more partitions, complete."""
    deleted: dict[str, Topic] = field(default_factory=dict)
    topic_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    incarnations: dict[int, Incarnation] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(
            self.partitions
            or self.topics
            or self.deleted
            or self.topic_configs
            or self.broker_configs
            or self.incarnations
        )

    def over(self, image: Image) -> Image:
        """`image` with the plan carried out. What the plan does not touch is shared, not copied."""
        return image.apply(Delta(image.revision, tuple(self._changes(image))))

    def _changes(self, image: Image) -> Iterator[Change]:
        for name, topic in self.deleted.items():
            yield TopicGone(topic.id)
            yield TopicConfigChanged(name, {})
        for topic in self.topics.values():
            yield TopicChanged(topic)
        by_topic: dict[uuid.UUID, dict[int, Partition]] = {}
        for (name, index), state in self.partitions.items():
            by_topic.setdefault(image.topics[name].id, {})[index] = state
        for topic_id, states in by_topic.items():
            yield PartitionsChanged(topic_id, states)
        for name, values in self.topic_configs.items():
            yield TopicConfigChanged(name, values)
        for name, values in self.broker_configs.items():
            yield BrokerConfigChanged(name, values)

    def carried_out(self, view: View) -> bool:
        """Whether `view` shows all that the plan wants: how a write whose answer was lost is recognised."""
        image = view.image
        return (
            all(image.partition(*partition_id) == state for partition_id, state in self.partitions.items())
            and all(image.topics.get(name) == topic for name, topic in self.topics.items())
            and all(topic.id not in image.topic_names for topic in self.deleted.values())
            and all(image.topic_configs.get(name, {}) == values for name, values in self.topic_configs.items())
            and all(image.broker_configs.get(name, {}) == values for name, values in self.broker_configs.items())
            and all(view.incarnations.get(broker) == seen for broker, seen in self.incarnations.items())
        )

    def new_partitions(self, image: Image) -> Iterator[tuple[Topic, int, Partition]]:
        """Partitions that the plan makes, in topics that are new to `image` or grow."""
        for name, topic in self.topics.items():
            known = image.topics.get(name)
            for index in range(len(known.partitions) if known else 0, len(topic.partitions)):
                yield topic, index, topic.partitions[index]

    def touched(self, image: Image) -> Touched:
        """For each broker the replicas it has to hear about; `image` is the picture before the plan."""
        return touched_by(self._changes(image), image)


def touched_by(changes: Iterable[Change], before: Image) -> Touched:
    """For each broker the replicas that `changes` of the picture `before` mean something to."""
    told: dict[int, set[ReplicaId]] = {}

    def tell(topic_id: uuid.UUID, index: int, *states: Partition) -> None:
        for state in states:
            for broker in state.replicas:
                told.setdefault(broker, set()).add((topic_id, index))

    for change in changes:
        match change:
            case TopicChanged(topic):
                known = before.topic_by_id(topic.id)
                old = known.partitions if known else ()
                for index, state in enumerate(topic.partitions):
                    if index >= len(old):
                        tell(topic.id, index, state)
                    elif old[index] is not state:
                        tell(topic.id, index, state, old[index])
            case TopicGone(topic_id):
                gone = before.topic_by_id(topic_id)
                for index, state in enumerate(gone.partitions if gone else ()):
                    tell(topic_id, index, state)
            case PartitionsChanged(topic_id, states):
                topic_before = before.topic_by_id(topic_id)
                for index, state in states.items():
                    tell(topic_id, index, state, *(topic_before.partitions[index : index + 1] if topic_before else ()))
            case _:
                pass
    return told


def resolve(image: Image, named: pb.TopicPartition) -> Topic:
    """The topic that a request names by name or by id."""
    if named.topic_id:
        if len(named.topic_id) != 16:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"a topic id has 16 bytes, not {len(named.topic_id)}")
        topic_id = uuid.UUID(bytes=named.topic_id)
        found = image.topic_by_id(topic_id)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}; it may have been deleted")
        if named.topic and named.topic != found.name:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID, f"{topic_id} is the id of {found.name}, not {named.topic}"
            )
        return found
    if not named.topic:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "give a topic's name or its id")
    found = image.topics.get(named.topic)
    if found is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {named.topic}")
    return found


def resolve_partition(image: Image, named: pb.TopicPartition) -> tuple[Topic, Partition]:
    """The partition that a request names."""
    topic = resolve(image, named)
    if not 0 <= named.partition < len(topic.partitions):
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"{topic.name} has {len(topic.partitions)} partitions, there is no {named.partition}",
        )
    return topic, topic.partitions[named.partition]
