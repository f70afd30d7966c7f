"""What the operator says of itself to Prometheus."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

LOOKS = Counter("headrace_operator_reconciliations_total", "Looks at resources, by outcome.", ["kind", "result"])
SECONDS = Histogram(
    "headrace_operator_reconciliation_seconds",
    "How long a look took.",
    ["kind"],
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60),
)
RESOURCES = Gauge("headrace_operator_resources", "Resources there are, by whether they are Ready.", ["kind", "ready"])
BROKERS = Gauge(
    "headrace_operator_brokers", "Brokers that a Cluster asks for, where it has metrics.", ["namespace", "cluster"]
)
LEADER = Gauge("headrace_operator_leader", "1 while this operator is the one that works.")
WATCH_STALE = Gauge("headrace_operator_watch_stale", "1 while a watch misses something that a list shows.")
