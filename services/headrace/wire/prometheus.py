"""A listener's counters as Prometheus sees them, under the names that Kafka's dashboards and alerts already know."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from headrace.wire.metrics import TIME_BUCKETS, WireMetrics
from headrace.wire.protocol import ApiKey


def request_families(wire: WireMetrics) -> Iterator[Metric]:
    """The requests of one process under Kafka's names, for Prometheus."""
    requests = CounterMetricFamily("kafka_network_requestmetrics_requests", "Requests answered", labels=["request"])
    errors = CounterMetricFamily("kafka_network_requestmetrics_errors", "Requests refused", labels=["request"])
    queued = CounterMetricFamily(
        "kafka_network_requestmetrics_requestqueuetime_seconds", "Time before handling began", labels=["request"]
    )
    times = HistogramMetricFamily(
        "kafka_network_requestmetrics_totaltime_seconds",
        "From the last byte of a request to the first of its answer",
        labels=["request"],
    )
    for key, api in list(wire.apis.items()):
        label = [_request_name(key)]
        requests.add_metric(label, api.requests)
        errors.add_metric(label, api.errors)
        queued.add_metric(label, api.queue_seconds)
        total, buckets = 0, []
        for bound, count in zip((*map(str, TIME_BUCKETS), "+Inf"), list(api.buckets), strict=True):
            total += count
            buckets.append((bound, float(total)))
        times.add_metric(label, buckets, api.total_seconds)
    yield from (requests, errors, queued, times)


def _request_name(api_key: int) -> str:
    """Kafka's name of an API: ListOffsets, not LIST_OFFSETS.

    >>> _request_name(2)
    'ListOffsets'
    """
    return "".join(word.capitalize() for word in ApiKey(api_key).name.split("_"))
