"""Specs and everything they give, as files. `HEADRACE_WRITE_GOLDENS=1` writes them anew: read the diff."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from headrace_operator.manifests import Cluster, manifests
from headrace_operator.manifests.settings import live_config, wrong_config
from headrace_operator.printing import yaml_text
from headrace_operator.resources import ClusterSpec
from headrace_operator.schema import parse

GOLDENS = Path(__file__).parent / "goldens"
CASES = sorted(path.name.removesuffix(".spec.yaml") for path in GOLDENS.glob("*.spec.yaml"))


def cluster(spec: dict[str, object], **known: object) -> Cluster:
    return Cluster("demo", "shop", "uid-1", parse(ClusterSpec, spec), "headrace/services:1", **known)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES)
def test_whole_manifests(case: str) -> None:
    spec = yaml.safe_load((GOLDENS / f"{case}.spec.yaml").read_text()) or {}
    found = yaml_text(*manifests(cluster(spec)))
    golden = GOLDENS / f"{case}.yaml"
    if os.environ.get("HEADRACE_WRITE_GOLDENS"):
        golden.write_text(found)
    assert found == golden.read_text(), f"other manifests than {golden.name}: HEADRACE_WRITE_GOLDENS=1 shows the diff"


def _broker(made: Cluster) -> dict[str, object]:
    return next(m for m in manifests(made) if m["metadata"]["name"] == "demo-broker" and m["kind"] == "StatefulSet")


def test_a_setting_brokers_take_live_changes_no_pod() -> None:
    plain = _broker(cluster({}))
    assert _broker(cluster({"config": {"min.insync.replicas": 2}})) == plain
    assert _broker(cluster({"config": {"num.partitions": 2}})) != plain


def test_every_object_is_owned_and_labelled() -> None:
    for manifest in manifests(cluster({"listeners": {"external": {"type": "LoadBalancer"}}})):
        about = manifest["metadata"]
        assert about["ownerReferences"][0]["uid"] == "uid-1"
        assert about["labels"]["app.kubernetes.io/instance"] == "demo"
        assert about["labels"]["app.kubernetes.io/managed-by"] == "headrace-operator"


def test_no_object_takes_the_name_of_the_cluster_alone() -> None:
    """A Cluster named `default` would take over the service account of that name."""
    names = {m["metadata"]["name"] for m in manifests(cluster({"listeners": {"external": {"type": "LoadBalancer"}}}))}
    assert all(name.startswith("demo-") for name in names), names


def test_brokers_that_wait_for_a_drain_go_on_running() -> None:
    spec = _broker(cluster({"brokers": {"replicas": 3}}, broker_replicas=5))["spec"]
    assert isinstance(spec, dict)
    assert spec["replicas"] == 5


def test_an_upgrade_reaches_one_component_at_a_time() -> None:
    made = cluster({}, images={"broker": "headrace/services:0"})
    images = {
        m["metadata"]["labels"]["app.kubernetes.io/component"]: m["spec"]["template"]["spec"]["containers"][0]["image"]
        for m in manifests(made)
        if m["kind"] in ("StatefulSet", "Deployment")
    }
    assert images.pop("broker") == "headrace/services:0"
    assert set(images.values()) == {"headrace/services:1"}


def test_wrong_settings_are_named() -> None:
    assert wrong_config({"num.partitions": 3, "log.retention.ms": "1"}) is None
    wrong = wrong_config({"num.partition": 3, "min.insync.replicas": "many"})
    assert wrong is not None
    assert "did you mean num.partitions?" in wrong
    assert "min.insync.replicas='many' is not allowed" in wrong


def test_live_settings_are_spelled_as_the_cluster_keeps_them() -> None:
    assert live_config({"log.preallocate": "TRUE", "num.partitions": 3}) == {"log.preallocate": "true"}
