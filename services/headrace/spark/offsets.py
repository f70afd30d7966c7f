"""Places in topics: what `startingOffsets` and its kin ask for, and how far a stream has come.

A stream's offset carries each topic's id. A topic that was deleted and made anew under the same name has another id,
so its offsets are never mistaken for those of the old one.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.client.types import TopicPartition
from headrace.config import InvalidConfig

EARLIEST_OFFSET = -2
LATEST_OFFSET = -1
_MAX_OFFSET = 2**63 - 1


class MalformedOffsets(InvalidConfig):
    """Offsets that are not written as they should be; the text says how."""


@dataclass(frozen=True, slots=True)
class End:
    """One end of every partition: -2 the start, -1 the end, as ListOffsets counts."""

    which: int


@dataclass(frozen=True, slots=True)
class Offsets:
    """An offset for each partition; -2 and -1 stand for its ends."""

    option: str
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class OffsetsByTime:
    """The first record not older than a time, for each partition or (`everywhere`) the same for all.

    `otherwise` says what a partition without such a record gets: `latest`, or an `error`.
    """

    times: Mapping[TopicPartition, int]
    everywhere: int | None
    otherwise: str


OffsetSpec = End | Offsets | OffsetsByTime
EARLIEST = End(EARLIEST_OFFSET)
LATEST = End(LATEST_OFFSET)


def at_time(timestamp: int, otherwise: str) -> OffsetsByTime:
    """The same time for every partition."""
    return OffsetsByTime({}, timestamp, otherwise)


def parse_offsets(option: str, text: str) -> OffsetSpec:
    """`earliest`, `latest` or json.

    >>> parse_offsets("startingOffsets", '{"orders":{"0":23}}').offsets
    {TopicPartition(topic='orders', partition=0): 23}
    """
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return EARLIEST if word == "earliest" else LATEST
    example = f'write {option} as earliest, latest or {{"orders":{{"0":23,"1":-2}}}} (-2: earliest, -1: latest)'
    offsets = _by_partition(option, text, example)
    for partition, offset in offsets.items():
        if not EARLIEST_OFFSET <= offset <= _MAX_OFFSET:
            raise MalformedOffsets(f"{option}: offset {offset} of {partition} is not one: {example}")
        if offset == EARLIEST_OFFSET and option == "endingOffsets":
            raise MalformedOffsets(f"endingOffsets: -2 (earliest) of {partition} leaves nothing to read: give -1")
    return Offsets(option, offsets)


def parse_times(option: str, text: str) -> dict[TopicPartition, int]:
    """Milliseconds for each partition, as json."""
    example = f'write {option} as {{"orders":{{"0":1700000000000}}}}, in milliseconds since 1970'
    times = _by_partition(option, text, example)
    for partition, time in times.items():
        if not 0 <= time <= _MAX_OFFSET:
            raise MalformedOffsets(f"{option}: {time} of {partition} is no time: {example}")
    return times


def parse_assignment(text: str) -> dict[str, tuple[int, ...]]:
    """Partitions by topic, as json.

    >>> parse_assignment('{"orders":[1,0]}')
    {'orders': (0, 1)}
    """
    example = 'write assign as {"orders":[0,1],"bills":[2]}'
    found: dict[str, tuple[int, ...]] = {}
    for topic, numbers in _json_object("assign", text, example).items():
        if not isinstance(numbers, list) or not all(_is_index(number) for number in numbers) or not numbers:
            raise MalformedOffsets(f"assign: the partitions of {topic} are not numbers from 0 on: {example}")
        found[topic] = tuple(sorted(set(numbers)))
    return found


def _by_partition(option: str, text: str, example: str) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for topic, partitions in _json_object(option, text, example).items():
        if not isinstance(partitions, dict):
            raise MalformedOffsets(f"{option}: {topic} has no numbers by partition: {example}")
        for index, number in partitions.items():
            if not index.isdecimal() or not isinstance(number, int) or isinstance(number, bool):
                raise MalformedOffsets(f"{option}: {json.dumps({index: number})} of {topic}: {example}")
            found[TopicPartition(topic, int(index))] = number
    return found


def _json_object(option: str, text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise MalformedOffsets(f"{option}={text!r} is no json ({error}): {example}") from None
    if not isinstance(found, dict) or not found:
        raise MalformedOffsets(f"{option}={text!r} names no topic: {example}")
    return found


def _is_index(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """How far a stream has come in one topic: the next offset of each partition."""

    id: uuid.UUID
    offsets: Mapping[int, int]


class StreamOffset(Mapping[TopicPartition, int]):
    """How far a stream has come: the next offset of each partition, with the ids of their topics.

    >>> at = StreamOffset({"orders": TopicOffsets(uuid.UUID(int=7), {0: 23})})
    >>> StreamOffset.decode(at.encode()) == at, at[TopicPartition("orders", 0)]
    (True, 23)
    """

    def __init__(self, topics: Mapping[str, TopicOffsets]) -> None:
        self.topics = topics

    @classmethod
    def of(cls, ids: Mapping[str, uuid.UUID], offsets: Mapping[TopicPartition, int]) -> StreamOffset:
        by_topic: dict[str, dict[int, int]] = {}
        for (topic, partition), offset in offsets.items():
            by_topic.setdefault(topic, {})[partition] = offset
        return cls({topic: TopicOffsets(ids[topic], found) for topic, found in by_topic.items()})

    @classmethod
    def decode(cls, stored: Mapping[str, Any]) -> StreamOffset:
        """What `encode` made, from a checkpoint; one that is not raises `MalformedOffsets`."""
        try:
            return cls(
                {
                    topic: TopicOffsets(
                        uuid.UUID(found["id"]), {int(index): int(at) for index, at in found["offsets"].items()}
                    )
                    for topic, found in stored.items()
                }
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            text = json.dumps(stored)
            raise MalformedOffsets(
                f"the checkpoint holds {text[:200]}, which is no offset of this source: give the query another "
                "checkpointLocation"
            ) from None

    def encode(self) -> dict[str, Any]:
        """As json, always in the same order: Spark compares the text to see whether there is anything new."""
        return {
            topic: {
                "id": str(self.topics[topic].id),
                "offsets": {str(index): at for index, at in sorted(self.topics[topic].offsets.items())},
            }
            for topic in sorted(self.topics)
        }

    def __getitem__(self, partition: TopicPartition) -> int:
        return self.topics[partition.topic].offsets[partition.partition]

    def __iter__(self) -> Iterator[TopicPartition]:
        for topic, found in self.topics.items():
            for index in found.offsets:
                yield TopicPartition(topic, index)

    def __len__(self) -> int:
        return sum(len(found.offsets) for found in self.topics.values())
