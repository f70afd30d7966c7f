"""The Helm chart: what it renders, compared as a whole, and what it refuses. `make chart` writes what is expected."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY

import headrace_operator.metrics  # noqa: F401

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "helm" / "headrace"
GOLDEN = Path(__file__).parent / "golden"
CACHED = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "headrace-kube" / "bin" / "helm"
HELM = str(CACHED) if os.access(CACHED, os.X_OK) else shutil.which("helm")

needs_helm = pytest.mark.skipif(
    HELM is None, reason="helm is not installed: put it on PATH, or run tests/e2e/kube/build"
)

CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "operator-only": {"cluster": {"enabled": False}, "operator": {"watchNamespaces": ["one", "two"], "replicas": 2}},
    "everything": {
        "imagePullSecrets": ["pull"],
        "operator": {
            "image": {"repository": "example.org/operator", "tag": "1"},
            "podAnnotations": {"a": "b"},
            "podLabels": {"team": "x"},
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "priorityClassName": "high",
            "extraEnv": [{"name": "A", "value": "1"}],
        },
        "services": {"image": {"repository": "example.org/services", "tag": "2"}},
        "serviceAccount": {"annotations": {"role": "r"}},
        "cluster": {"name": "main", "annotations": {"k": "v"}},
        "metrics": {
            "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "serviceMonitor": {"enabled": True},
            "prometheusRule": {"enabled": True},
            "dashboards": {"enabled": True, "annotations": {"folder": "Headrace"}},
        },
    },
}


def helm(*words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    return subprocess.run([HELM, *words], input=text, capture_output=True, text=True, timeout=60)


def rendered(values: dict[str, Any]) -> str:
    done = helm("template", "headrace", str(CHART), "-n", "kafka", "-f", "-", text=yaml.safe_dump(values))
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(text: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {(o["kind"], o["metadata"]["name"]): o for o in yaml.safe_load_all(text) if o}


@needs_helm
@pytest.mark.parametrize("case", CASES)
def test_the_manifests_are_as_expected(case: str) -> None:
    text = rendered(CASES[case])
    golden = GOLDEN / f"{case}.yaml"
    if os.environ.get("HEADRACE_GOLDEN") == "write":
        golden.write_text(text)
    assert objects(text) == objects(golden.read_text()), "the manifests changed: look at them, then run make chart"


@needs_helm
@pytest.mark.parametrize("case", CASES)
def test_lint_finds_nothing(case: str) -> None:
    done = helm("lint", "--strict", str(CHART), "-f", "-", text=yaml.safe_dump(CASES[case]))
    assert done.returncode == 0, done.stdout + done.stderr


@needs_helm
@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"operator": {"replicas": "three"}}, "replicas"),
        ({"operatr": {}}, "operatr"),
        ({"metrics": {"podMonitor": {"interval": "often"}}}, "interval"),
        ({"cluster": {"name": "Not A Name"}}, "name"),
        ({"operator": {"watchNamespaces": ["shop-*"]}}, "watchNamespaces"),
        ({"operator": {"image": {"pullPolicy": "Sometimes"}}}, "pullPolicy"),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], named: str) -> None:
    done = helm("template", "headrace", str(CHART), "-f", "-", text=yaml.safe_dump(values))
    assert done.returncode != 0
    assert named in done.stderr


@needs_helm
def test_a_cluster_that_no_operator_would_look_after_is_refused() -> None:
    values = {"operator": {"watchNamespaces": ["one", "two"]}}
    done = helm("template", "headrace", str(CHART), "-n", "kafka", "-f", "-", text=yaml.safe_dump(values))
    assert done.returncode != 0
    assert "the Cluster would be in kafka, where the operator does not look" in done.stderr
    assert "add it to operator.watchNamespaces, or set cluster.enabled=false" in done.stderr
    assert rendered({"operator": {"watchNamespaces": ["one", "kafka"]}})


@needs_helm
def test_the_notes_tell_the_next_three_commands_and_what_stays() -> None:
    done = helm("install", "headrace", str(CHART), "-n", "kafka", "--dry-run=client")
    notes = done.stdout.partition("NOTES:")[2]
    assert len(re.findall(r"^  (kubectl|helm) -n kafka ", notes.partition("keeps the data")[0], re.MULTILINE)) == 3, (
        done.stderr
    )
    topic = json.loads(notes.partition("<<< '")[2].partition("'")[0])
    assert "replicas" not in topic["spec"], "the cluster's own number of copies fits its min.insync.replicas"
    assert "headrace-bootstrap.kafka.svc:9092" in notes
    assert "keeps the data" in notes


@needs_helm
def test_dashboards_are_json_that_grafana_reads_and_panels_do_not_overlap() -> None:
    found = objects(rendered(CASES["everything"]))
    boards = [o for (kind, name), o in found.items() if kind == "ConfigMap" and "dashboard" in name]
    assert len(boards) == 3
    for board in boards:
        assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
        for text in board["data"].values():
            dashboard = json.loads(text)
            cells = set()
            for panel in dashboard["panels"]:
                place = panel["gridPos"]
                for x in range(place["x"], place["x"] + place["w"]):
                    for y in range(place["y"], place["y"] + place["h"]):
                        assert (x, y) not in cells, panel["title"]
                        cells.add((x, y))
                assert panel["targets"]
                for target in panel["targets"]:
                    assert 'cluster="$cluster"' in target["expr"]
                    assert "$by" not in target["expr"]


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    alerts = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    names = [alert["alert"] for alert in alerts]
    sections = re.findall(r"^## (Headrace\w+)$", (ROOT / "docs" / "runbooks.md").read_text(), re.MULTILINE)
    assert sections == names
    for alert in alerts:
        assert alert["severity"] in ("critical", "warning")


def test_what_alerts_ask_of_the_operator_it_tells() -> None:
    told = {f"{family.name}{end}" for family in REGISTRY.collect() for end in ("", "_total")}
    asked = set(re.findall(r"headrace_operator_\w+", (CHART / "files" / "alerts.yaml").read_text()))
    assert len(asked) >= 4
    assert asked <= told


@pytest.mark.parametrize(("module", "file"), [("crds", "crds/headrace.dev.yaml"), ("rbac", "files/rbac-rules.yaml")])
def test_generated_files_are_what_the_operator_prints(module: str, file: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"headrace_operator.{module}"], capture_output=True, text=True, check=True
    )
    assert (CHART / file).read_text() == done.stdout, "run make chart"


def test_the_chart_has_the_version_of_the_package() -> None:
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert version is not None
    assert chart["appVersion"] == version[1] == chart["version"]
