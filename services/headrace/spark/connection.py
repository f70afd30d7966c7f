"""One connection to a cluster for everything a Python worker of Spark does, kept from task to task.

A worker process is used for many tasks, one at a time, and for a stream's planning all its life: connecting anew for
each micro-batch would cost more than a small one does.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.client.admin import EARLIEST, LATEST, list_offsets
from headrace.client.cluster import Cluster
from headrace.client.config import CONSUMER_KEYS, PRODUCER_KEYS, Config
from headrace.client.group_admin import GroupAdmin
from headrace.client.sync import LoopThread
from headrace.client.types import OffsetAndMetadata, TopicPartition
from headrace.cluster.image import Topic
from headrace.config import InvalidConfig, Keys
from headrace.errors import KafkaError
from headrace.spark.options import Topics
from headrace.spark.planning import Bounds

_open: dict[tuple[str, tuple[tuple[str, str], ...], bool], Connection] = {}
_opening = threading.Lock()


class TopicMissing(InvalidConfig):
    """A topic that was asked for and does not exist."""


class _Groups(GroupAdmin):
    def __init__(self, cluster: Cluster, timeout: float) -> None:
        self._cluster = cluster
        self._timeout = timeout


class Connection:
    """A cluster, asked from a thread that waits."""

    def __init__(self, servers: str, client: Mapping[str, str], keys: Keys) -> None:
        self.config = Config(keys, {**client, "bootstrap.servers": servers})
        self.thread = LoopThread("headrace for spark")
        self.cluster = self.thread.call(Cluster, self.config)
        try:
            self.thread.run(self.cluster.start())
        except BaseException:
            self.thread.stop()
            raise

    @property
    def timeout(self) -> float:
        """How long a question may take, repetitions included."""
        return 60.0 if "default.api.timeout.ms" not in self.config else self.config.seconds("default.api.timeout.ms")

    # --- which topics

    def topics(self, wanted: Topics) -> dict[str, tuple[Topic, tuple[int, ...]]]:
        """The wanted topics with the partitions to read; one that is named and does not exist is an error."""
        if wanted.pattern:
            expression = re.compile(wanted.pattern)
            image = self.cluster.image.topics
            names = [name for name in sorted(image) if expression.fullmatch(name) and not image[name].internal]
            return {name: (image[name], tuple(range(len(image[name].partitions)))) for name in names}
        if wanted.partitions is not None:
            return {name: (self._topic(name), indexes) for name, indexes in self._existing(wanted.partitions).items()}
        found = {name: self._topic(name) for name in wanted.names}
        return {name: (topic, tuple(range(len(topic.partitions)))) for name, topic in found.items()}

    def _existing(self, assigned: Mapping[str, tuple[int, ...]]) -> Mapping[str, tuple[int, ...]]:
        for name, indexes in assigned.items():
            count = len(self._topic(name).partitions)
            if indexes[-1] >= count:
                raise TopicMissing(f"assign: {name} has the partitions 0 to {count - 1}, there is no {indexes[-1]}")
        return assigned

    def _topic(self, name: str) -> Topic:
        try:
            return self.thread.run(self.cluster.topic(name))
        except KafkaError:
            known = [topic.name for topic in self.cluster.image.topics.values() if not topic.internal]
            there = f"there are {', '.join(sorted(known)[:20])}" if known else "the cluster has none"
            raise TopicMissing(f"topic {name} does not exist ({there}): create it, or name another") from None

    # --- where they begin and end

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        wanted = list(partitions)
        first, end = self._ask(dict.fromkeys(wanted, EARLIEST)), self._ask(dict.fromkeys(wanted, LATEST))
        return {partition: Bounds(first[partition], end[partition]) for partition in wanted}

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._ask(dict.fromkeys(partitions, LATEST))

    def firsts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._ask(dict.fromkeys(partitions, EARLIEST))

    def by_time(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The first offset not older than a time; -1 where there is none."""
        return self._ask(times)

    def _ask(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        found = self.thread.run(list_offsets(self.cluster, times, self.timeout)) if times else {}
        return {partition: at.offset for partition, at in found.items()}

    # --- groups

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Stores how far the group has come; NON_EMPTY_GROUP when it has members of its own."""
        groups = _Groups(self.cluster, self.timeout)
        at = {partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()}
        self.thread.run(groups.alter_group_offsets(group_id, at))


def connected(servers: str, client: Mapping[str, str], *, producing: bool = False) -> Connection:
    """The connection of this process to a cluster, opened at its first use."""
    key = (servers, tuple(sorted(client.items())), producing)
    with _opening:
        if key not in _open:
            keys: Any = PRODUCER_KEYS if producing else CONSUMER_KEYS
            _open[key] = Connection(servers, client, keys)
        return _open[key]
