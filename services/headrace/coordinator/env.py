"""What every group of a shard shares: settings, topics, counters, the effects of the running step and its time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.coordinator.config import GroupConfig
from headrace.coordinator.effects import Effects
from headrace.coordinator.metrics import Metrics
from headrace.coordinator.topics import Topics


@dataclass(slots=True)
class Env:
    """`now` is milliseconds since 1970 on a clock that never goes back (wall time at start plus monotonic time), so
    that one number serves deadlines and the timestamps in records. `new_id` makes the random part of member ids."""

    config: GroupConfig
    new_id: Callable[[], str]
    topics: Topics = field(default_factory=Topics)
    fx: Effects = field(default_factory=Effects)
    metrics: Metrics = field(default_factory=Metrics)
    now: int = 0
