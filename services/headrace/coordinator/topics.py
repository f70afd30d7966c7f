"""The topics as the group logic needs them: names, ids and how many partitions, at one moment."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.cluster.image import Image
from headrace.coordinator.calls import Partitions


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    id: uuid.UUID
    partitions: int


class Topics:
    """An immutable table of topics; a change of the cluster brings a new one."""

    __slots__ = ("by_id", "by_name")

    def __init__(self, topics: Iterable[TopicInfo] = ()) -> None:
        self.by_name = {topic.name: topic for topic in topics}
        self.by_id = {topic.id: topic for topic in self.by_name.values()}

    @classmethod
    def of(cls, image: Image) -> Topics:
        return cls(TopicInfo(t.name, t.id, len(t.partitions)) for t in image.topics.values())

    def find(self, name: str, topic_id: uuid.UUID | None) -> TopicInfo | None:
        """By id where one is given, else by name."""
        return self.by_name.get(name) if topic_id is None else self.by_id.get(topic_id)

    def fingerprint(self, names: Iterable[str]) -> int:
        """A number that changes when one of these topics appears, goes, is recreated or gets partitions."""
        digest = hashlib.blake2b(digest_size=8)
        for name in sorted(names):
            if (topic := self.by_name.get(name)) is not None:
                digest.update(topic.id.bytes + topic.partitions.to_bytes(4, "big"))
        return int.from_bytes(digest.digest(), "big", signed=True)

    def to_ids(self, by_name: Iterable[tuple[str, int]]) -> Partitions:
        """Partitions by topic id; those of topics that are gone are left out."""
        found = ((self.by_name.get(name), index) for name, index in by_name)
        return frozenset((topic.id, index) for topic, index in found if topic is not None)

    def to_names(self, partitions: Partitions) -> list[tuple[str, int]]:
        """Partitions by topic name, sorted; those of topics that are gone are left out."""
        found = ((self.by_id.get(topic_id), index) for topic_id, index in partitions)
        return sorted((topic.name, index) for topic, index in found if topic is not None)
