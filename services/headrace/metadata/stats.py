"""What a metadata replica tells Prometheus: whom it serves, and how far it has come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headrace.metadata.fanout import Fanout


class Stats:
    """What the calls count."""

    def __init__(self) -> None:
        self.snapshots = 0
        self.deltas = 0
        self.registry_failures = 0


class Collector:
    """Called in the scraper's thread; it copies first what the loop changes."""

    def __init__(self, stats: Stats, fanout: Fanout[Any]) -> None:
        self._stats = stats
        self._fanout = fanout

    def collect(self) -> Iterator[Metric]:
        pending = self._fanout.pending()
        for name, gauge, text in (
            ("watchers", len(pending), "Streams that follow this replica"),
            ("revision", self._fanout.revision, "The registry's revision that it has come to"),
            ("pending_changes", max(pending, default=0), "Changes that wait for the slowest of its watchers"),
            ("history_changes", self._fanout.history_weight, "Changes it can still tell to who was away"),
        ):
            yield GaugeMetricFamily(f"headrace_metadata_{name}", text, value=gauge)
        for name, count, text in (
            ("snapshots_sent", self._stats.snapshots, "Whole pictures that watchers were sent"),
            ("deltas_sent", self._stats.deltas, "Changes that watchers were sent"),
            ("registry_failures", self._stats.registry_failures, "Times its watch of the registry ended"),
        ):
            yield CounterMetricFamily(f"headrace_metadata_{name}", text, value=count)
