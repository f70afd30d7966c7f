"""From what is asked for to what each task reads: offset ranges, their shares of a micro-batch, and their pieces.

Nothing here asks a server: the ends of partitions and the offsets of times are arguments.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from headrace.client.types import TopicPartition
from headrace.config import InvalidConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.spark.offsets import End, Offsets, OffsetsByTime, OffsetSpec, StreamOffset


class DataLost(KafkaError):
    """What should be read is not there any more; `failOnDataLoss` false goes on with what is."""

    def __init__(self, message: str) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"{message}; to go on with what is there, set failOnDataLoss to false"
        )


@dataclass(frozen=True, slots=True)
class Bounds:
    """The first offset that is kept, and the one after the last that can be read."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """What a task reads of one partition: `start` up to, but not including, `end`. Empty ones are not planned."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class Losses:
    """Collects what is gone: an error at once, or sentences to warn with."""

    fail: bool
    warnings: list[str]

    def add(self, sentence: str) -> None:
        if self.fail:
            raise DataLost(sentence)
        self.warnings.append(sentence)


def times_to_ask(spec: OffsetSpec, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The times that must be looked up before `resolve`."""
    if not isinstance(spec, OffsetsByTime):
        return {}
    if spec.everywhere is not None:
        return dict.fromkeys(partitions, spec.everywhere)
    return {partition: spec.times[partition] for partition in _all_named(spec.times, partitions, "a timestamp")}


def resolve(
    spec: OffsetSpec,
    bounds: Mapping[TopicPartition, Bounds],
    found: Mapping[TopicPartition, int],
    losses: Losses,
) -> dict[TopicPartition, int]:
    """An offset for each partition of `bounds`; `found` holds what the times of `times_to_ask` gave (-1: nothing)."""
    match spec:
        case End(which):
            return {partition: _end(at, which) for partition, at in bounds.items()}
        case OffsetsByTime():
            return {partition: _by_time(spec, partition, found[partition], at) for partition, at in bounds.items()}
        case Offsets(option, offsets):
            named = _all_named(offsets, bounds, option)
            return {
                partition: _given(option, partition, offsets[partition], bounds[partition], losses)
                for partition in named
            }


def _all_named(
    given: Mapping[TopicPartition, int], partitions: Iterable[TopicPartition], what: str
) -> list[TopicPartition]:
    wanted = sorted(partitions)
    missing = [str(partition) for partition in wanted if partition not in given]
    if missing:
        raise InvalidConfig(f"{what} is missing for {', '.join(missing)}: name every partition that is read")
    strange = [str(partition) for partition in sorted(given) if partition not in set(wanted)]
    if strange:
        raise InvalidConfig(f"{what} names {', '.join(strange)}, which is not read: leave it out, or subscribe to it")
    return wanted


def _end(bounds: Bounds, which: int) -> int:
    return bounds.first if which == -2 else bounds.end


def _by_time(spec: OffsetsByTime, partition: TopicPartition, found: int, bounds: Bounds) -> int:
    if found >= 0:
        return found
    if spec.otherwise == "latest":
        return bounds.end
    time = spec.everywhere if spec.everywhere is not None else spec.times[partition]
    raise InvalidConfig(
        f"{partition} has no record at {time} or later: give an earlier time, or set "
        "startingOffsetsByTimestampStrategy to latest"
    )


def _given(option: str, partition: TopicPartition, offset: int, bounds: Bounds, losses: Losses) -> int:
    if offset < 0:
        return _end(bounds, offset)
    if bounds.first <= offset <= bounds.end:
        return offset
    losses.add(f"{option} asks for offset {offset} of {partition}, which holds {bounds.first} to {bounds.end}")
    return min(max(offset, bounds.first), bounds.end)


def batch_ranges(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], ids: Mapping[str, uuid.UUID]
) -> list[OffsetRange]:
    """What a batch read reads; nothing where the end is not after the start."""
    return [
        OffsetRange(at.topic, ids[at.topic], at.partition, starts[at], ends[at])
        for at in sorted(starts)
        if starts[at] < ends[at]
    ]


def stream_ranges(
    start: StreamOffset, end: StreamOffset, first: Mapping[TopicPartition, int], losses: Losses
) -> list[OffsetRange]:
    """What a micro-batch reads. Partitions that are new in `end` are read from offset 0.

    What the log no longer has is a loss: offsets below `first`, partitions that are gone, and topics that are there
    under their name but with another id. Lost offsets are planned all the same, and read as nothing: a micro-batch that
    is repeated must have the tasks that it had, because the sink knows its rows by the number of their task.
    """
    check_topics(start, {name: topic.id for name, topic in end.topics.items()}, losses)
    ranges = []
    for partition in sorted(end):
        topic = end.topics[partition.topic]
        known = start.topics.get(partition.topic)
        begin = known.offsets.get(partition.partition, 0) if known is not None and known.id == topic.id else 0
        if begin >= end[partition]:
            continue
        if begin < first.get(partition, 0):
            losses.add(f"{partition} begins at offset {first[partition]} now, the query had come to {begin}")
        ranges.append(OffsetRange(partition.topic, topic.id, partition.partition, begin, end[partition]))
    return ranges


def check_topics(start: StreamOffset, ids: Mapping[str, uuid.UUID], losses: Losses) -> None:
    """Names topics that are gone, or that were deleted and made anew, since `start`."""
    for name, topic in sorted(start.topics.items()):
        if name not in ids:
            losses.add(f"topic {name}, which the query has read up to here, is gone")
        elif ids[name] != topic.id:
            losses.add(
                f"topic {name} was deleted and created again (its id was {topic.id} and is {ids[name]} now): its old "
                "records are gone, and the new topic's are to be read from its beginning"
            )


def admit(
    start: Mapping[TopicPartition, int], available: Mapping[TopicPartition, int], limit: int | None
) -> dict[TopicPartition, int]:
    """How far a micro-batch of at most `limit` offsets goes: each partition gets its share of what is waiting.

    Shares are whole numbers that add up to the limit exactly; what rounding leaves goes where most was cut off.
    """
    waiting = {partition: max(0, end - start.get(partition, 0)) for partition, end in available.items()}
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return dict(available)
    shares = {partition: limit * size // total for partition, size in waiting.items()}
    left = limit - sum(shares.values())
    by_rest = sorted(waiting, key=lambda partition: (-(limit * waiting[partition] % total), partition))
    for partition in by_rest[:left]:
        shares[partition] += 1
    return {
        partition: (end - waiting[partition] + shares[partition]) if waiting[partition] else end
        for partition, end in available.items()
    }


def split(ranges: Sequence[OffsetRange], min_partitions: int | None) -> list[OffsetRange]:
    """The ranges cut into at least `min_partitions` pieces of about equal size, where there are as many offsets."""
    if min_partitions is None or len(ranges) >= min_partitions:
        return list(ranges)
    total = sum(each.size for each in ranges)
    pieces: list[OffsetRange] = []
    for each in ranges:
        # Rounded up: together they are never fewer than asked for.
        count = min(each.size, max(1, -(-each.size * min_partitions // total)))
        cuts = [each.start + each.size * number // count for number in range(count + 1)]
        pieces += [replace(each, start=low, end=high) for low, high in pairwise(cuts)]
    return pieces
