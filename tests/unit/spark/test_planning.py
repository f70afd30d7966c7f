"""Planning: ranges, shares of a micro-batch, pieces, and what counts as lost."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.types import TopicPartition
from headrace.config import InvalidConfig
from headrace.spark.offsets import EARLIEST, LATEST, MalformedOffsets, Offsets, StreamOffset, at_time
from headrace.spark.planning import (
    Bounds,
    DataLost,
    Losses,
    OffsetRange,
    admit,
    batch_ranges,
    resolve,
    split,
    stream_ranges,
    times_to_ask,
)

ONE, TWO = uuid.UUID(int=1), uuid.UUID(int=2)
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
BOUNDS = {P0: Bounds(10, 20), P1: Bounds(0, 5)}


def strict() -> Losses:
    return Losses(True, [])


def lenient() -> Losses:
    return Losses(False, [])


def at(offsets: dict[TopicPartition, int], topic_id: uuid.UUID = ONE) -> StreamOffset:
    return StreamOffset.of({partition.topic: topic_id for partition in offsets}, offsets)


# --- from options to offsets


def test_both_ends() -> None:
    assert resolve(EARLIEST, BOUNDS, {}, strict()) == {P0: 10, P1: 0}
    assert resolve(LATEST, BOUNDS, {}, strict()) == {P0: 20, P1: 5}


def test_given_offsets_and_their_ends() -> None:
    spec = Offsets("startingOffsets", {P0: 15, P1: -1})
    assert resolve(spec, BOUNDS, {}, strict()) == {P0: 15, P1: 5}


def test_an_offset_out_of_range_fails_or_is_moved_with_a_warning() -> None:
    spec = Offsets("startingOffsets", {P0: 3, P1: 99})
    with pytest.raises(DataLost, match=r"offset 3 of orders-0, which holds 10 to 20.*failOnDataLoss"):
        resolve(spec, BOUNDS, {}, strict())
    losses = lenient()
    assert resolve(spec, BOUNDS, {}, losses) == {P0: 10, P1: 5}
    assert len(losses.warnings) == 2


def test_every_partition_must_be_named_and_no_other() -> None:
    with pytest.raises(InvalidConfig, match="startingOffsets is missing for orders-1"):
        resolve(Offsets("startingOffsets", {P0: 15}), BOUNDS, {}, strict())
    other = TopicPartition("bills", 0)
    with pytest.raises(InvalidConfig, match="names bills-0, which is not read"):
        resolve(Offsets("startingOffsets", {P0: 15, P1: 0, other: 0}), BOUNDS, {}, strict())


def test_times_that_nothing_is_younger_than() -> None:
    assert times_to_ask(at_time(7, "error"), BOUNDS) == {P0: 7, P1: 7}
    found = {P0: 12, P1: -1}
    assert resolve(at_time(7, "latest"), BOUNDS, found, strict()) == {P0: 12, P1: 5}
    with pytest.raises(InvalidConfig, match="orders-1 has no record at 7 or later"):
        resolve(at_time(7, "error"), BOUNDS, found, strict())


def test_empty_ranges_are_not_planned() -> None:
    assert batch_ranges({P0: 10, P1: 5}, {P0: 20, P1: 5}, {"orders": ONE}) == [OffsetRange("orders", ONE, 0, 10, 20)]


# --- micro-batches


def test_a_micro_batch_reads_from_where_the_last_one_ended() -> None:
    ranges = stream_ranges(at({P0: 12}), at({P0: 20, P1: 5}), {P0: 10, P1: 0}, strict())
    assert [(r.partition, r.start, r.end) for r in ranges] == [(0, 12, 20), (1, 0, 5)]


def test_records_that_retention_took_are_a_loss() -> None:
    with pytest.raises(DataLost, match="orders-0 begins at offset 15 now, the query had come to 12"):
        stream_ranges(at({P0: 12}), at({P0: 20}), {P0: 15}, strict())
    with pytest.raises(DataLost, match="orders-0 begins at offset 30 now"):
        stream_ranges(at({P0: 12}), at({P0: 20}), {P0: 30}, strict())
    with pytest.raises(DataLost, match="orders-1 begins at offset 2 now, the query had come to 0"):
        stream_ranges(at({P0: 12}), at({P0: 20, P1: 5}), {P0: 12, P1: 2}, strict())
    assert stream_ranges(at({P0: 12}), at({P0: 12}), {P0: 30}, strict()) == [], "nothing was to be read"


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 9))
def test_a_repeated_micro_batch_has_the_same_tasks_whatever_was_lost_since(first: int, other: int, pieces: int) -> None:
    start, end = at({P0: 12, P1: 3}), at({P0: 20, P1: 30})
    before = split(stream_ranges(start, end, {P0: 0, P1: 0}, strict()), pieces)
    assert split(stream_ranges(start, end, {P0: first, P1: other}, lenient()), pieces) == before


def test_a_recreated_topic_is_named_and_never_read_as_if_it_were_the_old_one() -> None:
    with pytest.raises(DataLost, match="topic orders was deleted and created again"):
        stream_ranges(at({P0: 12}, ONE), at({P0: 20}, TWO), {P0: 0}, strict())
    losses = lenient()
    (found,) = stream_ranges(at({P0: 12}, ONE), at({P0: 20}, TWO), {P0: 0}, losses)
    assert (found.topic_id, found.start) == (TWO, 0)
    assert "deleted and created again" in losses.warnings[0]


def test_a_topic_that_is_gone_is_named() -> None:
    with pytest.raises(DataLost, match="topic orders, which the query has read up to here, is gone"):
        stream_ranges(at({P0: 12}), StreamOffset({}), {}, strict())


# --- admission


def test_a_limit_is_shared_by_what_is_waiting() -> None:
    assert admit({P0: 0, P1: 0}, {P0: 900, P1: 100}, 100) == {P0: 90, P1: 10}
    assert admit({P0: 0, P1: 0}, {P0: 900, P1: 100}, None) == {P0: 900, P1: 100}
    assert admit({P0: 5}, {P0: 5, P1: 3}, 2) == {P0: 5, P1: 2}


@given(
    st.dictionaries(st.integers(0, 40), st.tuples(st.integers(0, 1000), st.integers(0, 10_000))), st.integers(1, 5000)
)
def test_a_limit_is_used_up_exactly_and_never_exceeded(waiting: dict[int, tuple[int, int]], limit: int) -> None:
    start = {TopicPartition("t", index): low for index, (low, _) in waiting.items()}
    available = {TopicPartition("t", index): low + size for index, (low, size) in waiting.items()}
    ends = admit(start, available, limit)
    total = sum(available[p] - start[p] for p in start)
    assert sum(ends[p] - start[p] for p in start) == min(limit, total)
    assert all(start[p] <= ends[p] <= available[p] for p in start)


# --- pieces


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8), st.integers(1, 50))
def test_pieces_cover_the_ranges_once_and_are_enough(sizes: list[int], wanted: int) -> None:
    ranges = [OffsetRange("t", ONE, index, 7, 7 + size) for index, size in enumerate(sizes)]
    pieces = split(ranges, wanted)
    covered = [(piece.partition, offset) for piece in pieces for offset in range(piece.start, piece.end)]
    assert covered == [(r.partition, offset) for r in ranges for offset in range(r.start, r.end)]
    assert all(piece.size > 0 for piece in pieces)
    assert len(pieces) >= min(wanted, sum(sizes))


def test_without_a_wish_there_is_a_task_a_partition() -> None:
    ranges = [OffsetRange("t", ONE, 0, 0, 100)]
    assert split(ranges, None) == ranges


# --- the stream's offset


def test_an_offset_reads_back_as_it_was_written_and_in_the_same_order() -> None:
    offset = at({TopicPartition("b", 10): 1, TopicPartition("b", 2): 3, TopicPartition("a", 0): 0})
    encoded = offset.encode()
    assert list(encoded) == ["a", "b"]
    assert list(encoded["b"]["offsets"]) == ["2", "10"]
    assert dict(StreamOffset.decode(encoded)) == dict(offset)


def test_another_sources_checkpoint_is_refused() -> None:
    with pytest.raises(MalformedOffsets, match="give the query another checkpointLocation"):
        StreamOffset.decode({"orders": {"0": 5}})
