"""`headrace consume`: from where to where, in which format."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from headrace.cli import session
from headrace.cli.formats import as_json, compile_format
from headrace.cli.places import Place, parse_place
from headrace.client import Consumer, ConsumerRecord, TopicPartition
from headrace.config import InvalidConfig


@dataclass(slots=True)
class Wanted:
    """What the command line asked for."""

    topics: list[str]
    partitions: list[int] = field(default_factory=list)
    begin: str = "end"
    to: str | None = None
    count: int | None = None
    exit: bool = False
    format: str = r"%v\n"
    json: bool = False
    group: str | None = None
    bootstrap: str | None = None


def run(wanted: Wanted) -> None:
    """Prints records until there are enough, the end is reached (if asked), or Ctrl-C."""
    now = time.time_ns() // 1_000_000
    begin = parse_place(wanted.begin, now)
    to = parse_place(wanted.to, now) if wanted.to else None
    show = as_json if wanted.json else compile_format(wanted.format)
    if wanted.group is not None:
        if wanted.partitions or to is not None or begin.time not in (-1, -2):
            raise InvalidConfig(
                "a group shares partitions out by itself: with --group give --from beginning or end only"
            )
        session.run(_consume_as_member(wanted, "earliest" if begin.time == -2 else "latest", show))
    else:
        session.run(_consume(wanted, begin, to, show))


async def _consume(wanted: Wanted, begin: Place, to: Place | None, show: Callable[[ConsumerRecord], bytes]) -> None:
    async with Consumer(
        **session.client_settings(wanted.bootstrap), auto_offset_reset="earliest", max_poll_records=5_000
    ) as consumer:
        partitions = await _partitions(consumer, wanted)
        await consumer.assign(partitions)
        starts = await _offsets(consumer, partitions, begin)
        for partition, offset in starts.items():
            consumer.seek(partition, offset)
        stops = await _stops(consumer, partitions, to, wanted.exit)
        await _print(consumer, wanted, starts, stops, show)


async def _consume_as_member(wanted: Wanted, reset: str, show: Callable[[ConsumerRecord], bytes]) -> None:
    """Goes on where the group is; with --exit until this member's share is read to the end."""
    left = wanted.count if wanted.count is not None else sys.maxsize
    out = sys.stdout.buffer
    async with Consumer(
        **session.client_settings(wanted.bootstrap), group_id=wanted.group, auto_offset_reset=reset
    ) as consumer:
        await consumer.subscribe(wanted.topics)
        while left > 0:
            records = await consumer.poll(1.0, min(left, 500))
            out.write(b"".join(map(show, records)))
            out.flush()
            left -= len(records)
            if wanted.exit and not records and consumer.assignment():
                share = consumer.assignment()
                ends = await consumer.end_offsets(*share)
                if all([await consumer.position(p) >= ends[p] for p in share]):
                    return


async def _print(
    consumer: Consumer,
    wanted: Wanted,
    starts: dict[TopicPartition, int],
    stops: dict[TopicPartition, int],
    show: Callable[[ConsumerRecord], bytes],
) -> None:
    left = wanted.count if wanted.count is not None else sys.maxsize
    open_ones = {p for p in starts if p not in stops or starts[p] < stops[p]}
    consumer.pause(*(set(starts) - open_ones))
    out = sys.stdout.buffer
    while open_ones and left > 0:
        records = await consumer.poll(1.0, min(left, 5_000))
        lines = []
        for record in records:
            stop = stops.get(TopicPartition(record.topic, record.partition))
            if stop is None or record.offset < stop:
                lines.append(show(record))
        left -= len(lines)
        out.write(b"".join(lines))
        out.flush()
        for partition in [p for p in open_ones if p in stops]:
            if await consumer.position(partition) >= stops[partition]:
                open_ones.discard(partition)
                consumer.pause(partition)
    with suppress(ValueError):
        out.flush()


async def _partitions(consumer: Consumer, wanted: Wanted) -> list[TopicPartition]:
    found = []
    for topic in wanted.topics:
        there = await consumer.partitions_for(topic)
        found += [TopicPartition(topic, i) for i in wanted.partitions] if wanted.partitions else there
    return found


async def _offsets(consumer: Consumer, partitions: Iterable[TopicPartition], place: Place) -> dict[TopicPartition, int]:
    """The place as an offset in each partition."""
    listed = list(partitions)
    if place.offset is not None:
        return dict.fromkeys(listed, place.offset)
    ends = await consumer.end_offsets(*listed)
    if place.time == -1:
        return ends
    if place.time == -2:
        return await consumer.beginning_offsets(*listed)
    if place.last is not None:
        firsts = await consumer.beginning_offsets(*listed)
        return {p: max(firsts[p], ends[p] - place.last) for p in listed}
    found = await consumer.offsets_for_times(dict.fromkeys(listed, place.time or 0))
    return {p: at.offset if at is not None else ends[p] for p, at in found.items()}


async def _stops(
    consumer: Consumer, partitions: list[TopicPartition], to: Place | None, exit_at_end: bool
) -> dict[TopicPartition, int]:
    """The offset to stop before, where there is one."""
    stops: dict[TopicPartition, int] = {}
    if to is not None:
        stops = await _offsets(consumer, partitions, to)
    if exit_at_end:
        ends = await consumer.end_offsets(*partitions)
        stops = {p: min(ends[p], stops.get(p, ends[p])) for p in partitions}
    return stops
