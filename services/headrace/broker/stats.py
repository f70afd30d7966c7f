"""What a broker counts, and how Prometheus sees it.

The hot path adds to plain integers; nothing of prometheus-client is touched there. At a scrape one collector turns them
into metric families under the names that Kafka's dashboards and alerts already know (as its JMX exporter writes them).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headrace.rpc.metrics import escaped
from headrace.storage.log import Log
from headrace.wire.metrics import WireMetrics
from headrace.wire.prometheus import request_families

if TYPE_CHECKING:
    from headrace.broker.partition import Partition


class TopicStats:
    """Traffic of one topic."""

    __slots__ = ("bytes_in", "bytes_out", "failed_fetch", "failed_produce", "messages_in")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.messages_in = 0
        self.failed_produce = 0
        self.failed_fetch = 0


class Stats:
    """Everything one broker counts."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicStats] = {}
        self.isr_shrinks = 0
        self.isr_expands = 0
        self.started = time.time()

    def topic(self, name: str) -> TopicStats:
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = TopicStats()
        return found


class Collector:
    """Turns `Stats` and the partitions' state into metric families, in the scraper's thread: it copies first."""

    def __init__(
        self,
        stats: Stats,
        wire: WireMetrics,
        partitions: Callable[[], Iterable[Partition]],
        gauges: Callable[[], dict[str, float]],
        purgatories: Callable[[], dict[str, int]],
    ) -> None:
        self._stats = stats
        self._wire = wire
        self._partitions = partitions
        self._gauges = gauges
        self._purgatories = purgatories

    def collect(self) -> Iterator[Metric]:
        yield from self._topics()
        yield from request_families(self._wire)
        yield from self._replicas()
        counters = {
            "kafka_server_replicamanager_isrshrinks": (self._stats.isr_shrinks, "In-sync replicas that fell behind"),
            "kafka_server_replicamanager_isrexpands": (self._stats.isr_expands, "In-sync replicas that caught up"),
        }
        for name, (value, text) in counters.items():
            yield CounterMetricFamily(name, text, value=value)
        for name, gauge in self._gauges().items():
            yield GaugeMetricFamily(name, _GAUGES.get(name, name), value=gauge)
        size = GaugeMetricFamily(
            "kafka_server_delayedoperationpurgatory_purgatorysize", "Requests that wait", labels=["delayedOperation"]
        )
        for operation, count in self._purgatories().items():
            size.add_metric([operation], count)
        yield size

    def _topics(self) -> Iterator[Metric]:
        topics = list(self._stats.topics.items())
        for field, name, text in _TOPIC_COUNTERS:
            family = CounterMetricFamily(f"kafka_server_brokertopicmetrics_{name}", text, labels=["topic"])
            for topic, stats in topics:
                family.add_metric([topic], getattr(stats, field))
            yield family

    def _replicas(self) -> Iterator[Metric]:
        under = under_min = leaders = count = 0
        for partition in list(self._partitions()):
            count += 1
            leaders += partition.is_leader
            under += partition.under_replicated
            under_min += partition.under_min_isr
        for name, value, text in (
            ("partitioncount", count, "Replicas on this broker"),
            ("leadercount", leaders, "Partitions that this broker leads"),
            ("underreplicatedpartitions", under, "Partitions led here with replicas out of sync"),
            ("underminisrpartitioncount", under_min, "Partitions led here with too few replicas in sync"),
        ):
            yield GaugeMetricFamily(f"kafka_server_replicamanager_{name}", text, value=value)

    def partition_lines(self) -> str:
        """Size and offsets of every partition in Prometheus' text format."""
        held = [(f'{{topic="{escaped(p.topic)}",partition="{p.index}"}}', p.log) for p in list(self._partitions())]
        lines = []
        for name, text, read in _PARTITION_GAUGES:
            lines.append(f"# HELP {name} {text}\n# TYPE {name} gauge\n")
            lines += [f"{name}{labels} {read(log)}\n" for labels, log in held]
        return "".join(lines)


_TOPIC_COUNTERS = (
    ("bytes_in", "bytesin", "Bytes that producers sent"),
    ("bytes_out", "bytesout", "Bytes that consumers got"),
    ("messages_in", "messagesin", "Records that producers sent"),
    ("failed_produce", "failedproducerequests", "Batches that were refused"),
    ("failed_fetch", "failedfetchrequests", "Reads that were refused"),
)

_PARTITION_GAUGES: tuple[tuple[str, str, Callable[[Log], int]], ...] = (
    ("kafka_log_log_size", "Bytes of a partition's segments", lambda log: log.size),
    ("kafka_log_log_logendoffset", "Next offset of a partition", lambda log: log.log_end_offset),
    ("kafka_log_log_logstartoffset", "First offset of a partition", lambda log: log.log_start_offset),
)

_GAUGES = {
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent": "Share of the time it had nothing to do",
    "kafka_network_requestchannel_requestqueuesize": "Requests being handled",
    "kafka_server_socketservermetrics_connection_count": "Open client connections",
    "kafka_server_replicamanager_offlinereplicacount": "Replicas in a failed log directory",
}
