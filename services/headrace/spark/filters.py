"""Filters on partition, offset and timestamp as bounds on what is read.

Bounds on partition and offset are exact. Timestamps only narrow the reading, and Spark compares them again: it knows
the session's time zone and fractions of a millisecond.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from headrace.spark.planning import OffsetRange

_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Pushed:
    """What is left: partitions (None: all); offsets `low` up to `high`, times `from_time` up to `to_time` (ms)."""

    partitions: frozenset[int] | None = None
    low: int = 0
    high: int = _MAX
    from_time: int | None = None
    to_time: int | None = None

    def apply(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """The ranges without what no row can come from."""
        left = [
            replace(each, start=max(each.start, self.low), end=min(each.end, self.high))
            for each in ranges
            if self.partitions is None or each.partition in self.partitions
        ]
        return [each for each in left if each.start < each.end]


def push(filters: Iterable[Filter]) -> tuple[Pushed, list[Filter]]:
    """What the filters (all of which must hold) leave, and those that Spark has to look at still."""
    pushed, rest = Pushed(), []
    for each in filters:
        taken = _one(pushed, each)
        if taken is None:
            rest.append(each)
            continue
        pushed = taken
        if _column(each) == "timestamp":
            rest.append(each)
    return pushed, rest


def _column(each: Filter) -> str:
    attribute: tuple[str, ...] = getattr(each, "attribute", ())
    return attribute[0] if len(attribute) == 1 else ""


def _one(pushed: Pushed, each: Filter) -> Pushed | None:
    column = _column(each)
    if column in ("partition", "offset"):
        return _numbers(pushed, each, column)
    if column == "timestamp":
        return _times(pushed, each)
    return None


def _numbers(pushed: Pushed, each: Filter, column: str) -> Pushed | None:
    match each:
        case In(value=values) if all(_is_int(value) for value in values):
            if column == "partition":
                return _only(pushed, values)
            return None
        case EqualTo(value=value) if _is_int(value):
            return _only(pushed, (value,)) if column == "partition" else _between(pushed, value, value + 1)
    if column == "partition":
        return None
    match each:
        case GreaterThan(value=value) if _is_int(value):
            return _between(pushed, value + 1, _MAX)
        case GreaterThanOrEqual(value=value) if _is_int(value):
            return _between(pushed, value, _MAX)
        case LessThan(value=value) if _is_int(value):
            return _between(pushed, 0, value)
        case LessThanOrEqual(value=value) if _is_int(value):
            return _between(pushed, 0, value + 1)
    return None


def _only(pushed: Pushed, values: Iterable[int]) -> Pushed:
    wanted = frozenset(values)
    return replace(pushed, partitions=wanted if pushed.partitions is None else pushed.partitions & wanted)


def _between(pushed: Pushed, low: int, high: int) -> Pushed:
    return replace(pushed, low=max(pushed.low, low), high=min(pushed.high, high))


def _times(pushed: Pushed, each: Filter) -> Pushed | None:
    value: Any = getattr(each, "value", None)
    if not isinstance(value, datetime):
        return None
    at = (value if value.tzinfo else value.astimezone()).astimezone(UTC)
    milliseconds = (at - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000
    low, high = math.floor(milliseconds), math.floor(milliseconds) + 1
    match each:
        case GreaterThan() | GreaterThanOrEqual():
            high = _MAX
        case LessThan() | LessThanOrEqual():
            low = -_MAX
        case EqualTo():
            pass
        case _:
            return None
    if low > -_MAX:
        pushed = replace(pushed, from_time=low if pushed.from_time is None else max(low, pushed.from_time))
    if high < _MAX:
        pushed = replace(pushed, to_time=high if pushed.to_time is None else min(high, pushed.to_time))
    return pushed


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
