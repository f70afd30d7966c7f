"""Questions about a cluster's picture that several decisions ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from headrace.client import TopicPartition
from headrace.cluster.image import NO_LEADER, Image, Partition


@dataclass(frozen=True, slots=True)
class Disk:
    """Space of a broker's log directories in bytes, and the size of each replica there."""

    total: int
    used: int
    sizes: Mapping[TopicPartition, int]


MIN_ISR = "min.insync.replicas"


def partitions(image: Image) -> Iterator[tuple[TopicPartition, Partition]]:
    """Every partition with its name."""
    for topic in image.topics.values():
        for index, state in enumerate(topic.partitions):
            yield TopicPartition(topic.name, index), state


def min_isr(image: Image, topic: str) -> int:
    """min.insync.replicas of a topic: its own, else that of all brokers."""
    text = image.topic_config(topic).get(MIN_ISR) or image.broker_configs.get("", {}).get(MIN_ISR) or "1"
    return int(text)


def target(state: Partition) -> tuple[int, ...]:
    """Where a partition lives, or will once it has moved."""
    return tuple(r for r in state.replicas if r not in state.removing)


def moving(state: Partition) -> bool:
    return bool(state.adding or state.removing)


def under_replicated(image: Image) -> list[TopicPartition]:
    """Partitions with a replica out of sync; one that is only being added is not missed yet."""
    return [name for name, state in partitions(image) if any(r not in state.adding for r in state.out_of_sync)]


def offline(image: Image) -> list[TopicPartition]:
    """Partitions that nobody leads."""
    return [n for n, state in partitions(image) if state.leader == NO_LEADER or state.leader not in image.brokers]


def under_min_isr(image: Image) -> list[TopicPartition]:
    """Partitions that refuse acks=all: brokers ask for no more in sync than there are replicas."""
    return [
        name
        for name, state in partitions(image)
        if len(state.isr) < min(min_isr(image, name.topic), len(state.replicas))
    ]


def held(image: Image) -> Counter[int]:
    """Replicas that each broker has or is getting."""
    return Counter(r for _, state in partitions(image) for r in target(state))


def led(image: Image) -> Counter[int]:
    """Partitions that each broker leads."""
    return Counter(state.leader for _, state in partitions(image))


def some(names: Iterable[object], limit: int = 3) -> str:
    """The first few names, and how many more there are.

    >>> some(["a-0", "a-1", "b-0", "c-7"])
    'a-0, a-1, b-0 and 1 more'
    """
    listed = [str(name) for name in names]
    more = len(listed) - limit
    return ", ".join(listed[:limit]) + (f" and {more} more" if more > 0 else "")
