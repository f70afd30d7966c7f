"""A user scrapes every pod and opens the dashboards."""

from __future__ import annotations

import re

import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.headrace import CHART, Release
from tests.e2e.kubectl import Namespace, Object

OURS = re.compile(r"\b(?:kafka|headrace)_[a-z0-9_]+\b")


def metrics_ports(pod: Object) -> list[int]:
    """The port that a PodMonitor or ServiceMonitor of the chart would scrape."""
    ports = [p for c in pod["spec"]["containers"] for p in c.get("ports", [])]
    return [int(p["containerPort"]) for p in ports if p["name"] == "metrics"]


def scraped(namespace: Namespace, pod: Object) -> set[str]:
    found = set()
    for port in metrics_ports(pod):
        text = namespace.proxied(pod["metadata"]["name"], port, "/metrics")
        for family in text_string_to_metric_families(text):
            found |= {sample.name for sample in family.samples} | {family.name}
            if family.type == "counter":
                # A family that has no sample yet is told by its help text alone.
                found.add(f"{family.name}_total")
            if family.type == "histogram":
                found.add(f"{family.name}_bucket")
    return found


def test_a_scrape_finds_every_metric_that_dashboards_and_alerts_use(
    client: Namespace, namespace: Namespace, release: Release
) -> None:
    pods = namespace.pods(f"app.kubernetes.io/name=headrace,app.kubernetes.io/instance={release.name}")
    pods += namespace.pods("app.kubernetes.io/name=headrace-operator")
    there = set().union(*(scraped(namespace, pod) for pod in pods))
    boards = yaml.safe_load((CHART / "files" / "dashboards.yaml").read_text())
    alerts = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    queries = [q for board in boards for panel in board["panels"] for q in panel["queries"].values()]
    wanted = {name for query in [*queries, *(a["expr"] for a in alerts)] for name in OURS.findall(query)}
    assert len(wanted) > 20
    assert wanted <= there, f"nobody serves {sorted(wanted - there)}"


def test_every_kind_of_pod_that_has_metrics_names_its_port(namespace: Namespace, release: Release) -> None:
    for component in ("broker", "coordinator", "controller", "metadata", "etcd"):
        for pod in release.pods(component):
            assert metrics_ports(pod), pod["metadata"]["name"]
