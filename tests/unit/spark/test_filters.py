"""Filters as bounds on what is read."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, IsNotNull, LessThan, LessThanOrEqual

from headrace.spark.filters import push
from headrace.spark.planning import OffsetRange

RANGES = [OffsetRange("t", uuid.UUID(int=1), index, 10, 20) for index in range(3)]


def left(*filters: object) -> list[tuple[int, int, int]]:
    pushed, _ = push(filters)  # type: ignore[arg-type]
    return [(r.partition, r.start, r.end) for r in pushed.apply(RANGES)]


def test_partitions_and_offsets_are_exact_and_spark_need_not_look_again() -> None:
    filters = [In(("partition",), (0, 2)), EqualTo(("partition",), 2), GreaterThan(("offset",), 12)]
    pushed, rest = push([*filters, LessThanOrEqual(("offset",), 15)])
    assert rest == []
    assert [(r.partition, r.start, r.end) for r in pushed.apply(RANGES)] == [(2, 13, 16)]


def test_every_comparison_of_an_offset() -> None:
    assert left(EqualTo(("partition",), 0), EqualTo(("offset",), 12)) == [(0, 12, 13)]
    assert left(EqualTo(("partition",), 0), GreaterThanOrEqual(("offset",), 12)) == [(0, 12, 20)]
    assert left(EqualTo(("partition",), 0), LessThan(("offset",), 12)) == [(0, 10, 12)]
    assert left(LessThan(("offset",), 3)) == []


def test_times_narrow_the_reading_and_are_looked_at_again() -> None:
    low = GreaterThan(("timestamp",), datetime(1970, 1, 1, 0, 0, 1, 500, tzinfo=UTC))
    high = LessThan(("timestamp",), datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC))
    pushed, rest = push([low, high])
    assert rest == [low, high]
    # The millisecond of either end may hold rows that Spark wants.
    assert (pushed.from_time, pushed.to_time) == (1000, 2001)


def test_what_is_not_understood_is_left_to_spark() -> None:
    others = [
        IsNotNull(("offset",)),
        EqualTo(("key",), b"k"),
        EqualTo(("headers", "key"), "h"),
        In(("offset",), (1, 2)),
    ]
    pushed, rest = push(others)
    assert rest == others
    assert pushed.apply(RANGES) == RANGES
