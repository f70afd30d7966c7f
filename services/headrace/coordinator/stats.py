"""A coordinator's metrics, under the names of Kafka's group coordinator and, for lag, of the usual exporter."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headrace.coordinator.appending import Sender
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.lag import Lag, LagKeeper
from headrace.wire.metrics import WireMetrics
from headrace.wire.prometheus import request_families

log = logging.getLogger(__name__)

READ_SECONDS = 5.0
STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty")

_COUNTERS = (
    ("offset_commits", "offset_commit", "Offsets that were committed"),
    ("offset_expirations", "offset_expiration", "Offsets whose retention ended"),
    ("offset_deletions", "offset_deletion", "Offsets that were deleted"),
    ("classic_rebalances", "group_completed_rebalance", "Rebalances of classic groups that were completed"),
    ("classic_rebalance_ms", "group_completed_rebalance_milliseconds", "Time that completed rebalances took"),
    ("classic_rebalances_begun", "group_rebalance", "Rebalances of classic groups that began"),
    ("consumer_rebalances", "consumer_group_rebalance", "New epochs of consumer groups"),
    ("members_expired", "group_member_expiration", "Members removed because they were silent or slow"),
    ("heartbeats", "group_heartbeat", "Heartbeats of members"),
)


class Collector:
    """Turns what the shards count into metric families."""

    def __init__(self, coordinator: Coordinator, wire: WireMetrics, lag: LagKeeper, sender: Sender) -> None:
        self._coordinator = coordinator
        self._wire = wire
        self._lag = lag
        self._sender = sender
        self._loop = asyncio.get_running_loop()

    def collect(self) -> Iterator[Metric]:
        """Called in the scraper's thread: what the loop changes all the time is read in the loop."""
        yield from request_families(self._wire)
        read: Future[list[Metric]] = Future()
        self._loop.call_soon_threadsafe(self._read, read)
        yield from read.result(READ_SECONDS)
        yield from self._lags()

    def _read(self, read: Future[list[Metric]]) -> None:
        try:
            read.set_result(list(self._in_loop()))
        except Exception as error:
            read.set_exception(error)

    def _in_loop(self) -> Iterator[Metric]:
        yield from self._groups()
        total = replace(self._coordinator.past)
        for shard in self._coordinator.shards():
            total.add(shard.metrics)
        for field, name, text in _COUNTERS:
            yield CounterMetricFamily(
                f"kafka_server_group_coordinator_metrics_{name}", text, value=getattr(total, field)
            )
        yield CounterMetricFamily(
            "headrace_coordinator_append_requests", "Produce requests to the offsets topic", value=self._sender.requests
        )

    def _groups(self) -> Iterator[Metric]:
        hostings = list(self._coordinator.hostings.values())
        partitions = GaugeMetricFamily(
            "kafka_server_group_coordinator_metrics_num_partitions", "Partitions of the offsets topic", labels=["state"]
        )
        serving = sum(hosting.serving for hosting in hostings)
        partitions.add_metric(["active"], serving)
        partitions.add_metric(["loading"], len(hostings) - serving)
        yield partitions
        count: Counter[tuple[str, str]] = Counter()
        for shard in self._coordinator.shards():
            count.update(shard.gauges())
        by_state = GaugeMetricFamily(
            "kafka_server_group_coordinator_metrics_group_count",
            "Groups by type and state",
            labels=["protocol", "state"],
        )
        for (kind, state), number in sorted(count.items()):
            by_state.add_metric([kind, state], number)
        yield by_state
        prefix = "kafka_coordinator_group_groupmetadatamanager_numgroups"
        yield GaugeMetricFamily(prefix, "Groups of every type", value=sum(count.values()))
        for state in STATES:
            number = sum(n for (_, each), n in count.items() if each == state)
            yield GaugeMetricFamily(f"{prefix}{state.lower()}", f"Groups that are {state}", value=number)

    def _fresh_lags(self) -> list[Lag]:
        """What brokers say now; when they are slow to say it, what they said last."""
        asked = asyncio.run_coroutine_threadsafe(self._lag.fresh(), self._loop)
        try:
            return asked.result(READ_SECONDS)
        except TimeoutError:
            asked.cancel()
            log.warning("the ends of the logs are not known in time: consumer lag is that of an earlier reading")
            return self._lag.found

    def _lags(self) -> Iterator[Metric]:
        labels = ["consumergroup", "topic", "partition"]
        lag = GaugeMetricFamily("kafka_consumergroup_lag", "Records a group has not read yet", labels=labels)
        offset = GaugeMetricFamily("kafka_consumergroup_current_offset", "Offset a group has committed", labels=labels)
        for each in self._fresh_lags():
            at = [each.group, each.topic, str(each.partition)]
            lag.add_metric(at, each.lag)
            offset.add_metric(at, each.committed)
        yield from (lag, offset)
