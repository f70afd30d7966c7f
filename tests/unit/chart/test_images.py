"""The Dockerfile and what names its images and their Services: skaffold.yaml."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace_operator.manifests import Cluster, manifests
from headrace_operator.resources import ClusterSpec

ROOT = Path(__file__).resolve().parents[3]
SKAFFOLD = yaml.safe_load((ROOT / "skaffold.yaml").read_text())
TARGETS = ("services", "operator", "spark")
LABELS = {"title", "description", "version", "revision", "licenses", "vendor"}


def stages() -> dict[str, tuple[str, str]]:
    """What each stage of the Dockerfile starts from, and its lines."""
    parts = re.split(r"^FROM (\S+) AS (\S+)\n", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    return {name: (base, text) for base, name, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)}


def labels(stage: str) -> dict[str, str]:
    """The OCI labels of a stage, those that it inherits included."""
    known = stages()
    if stage not in known:
        return {}
    base, text = known[stage]
    return labels(base) | dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]+)"', text))


@pytest.mark.parametrize("target", TARGETS)
def test_every_image_says_what_it_is(target: str) -> None:
    found = labels(target)
    assert found.keys() >= LABELS
    assert found["title"] == f"headrace/{target}"
    assert (found["version"], found["revision"]) == ("${VERSION}", "${REVISION}")
    # What a label names has to be an argument of the stage itself, or it is empty.
    assert {"VERSION", "REVISION"} <= set(re.findall(r"^ARG (\w+)=", stages()[target][1], re.MULTILINE))


def test_skaffold_builds_stages_that_are_there_and_gives_them_to_the_chart() -> None:
    artifacts = {each["image"]: each["docker"] for each in SKAFFOLD["build"]["artifacts"]}
    assert artifacts.keys() == {"headrace/services", "headrace/operator"}
    for image, docker in artifacts.items():
        assert (ROOT / docker["dockerfile"]).is_file()
        assert labels(docker["target"])["title"] == image
    (release,) = SKAFFOLD["deploy"]["helm"]["releases"]
    values = yaml.safe_load((ROOT / release["chartPath"] / "values.yaml").read_text())
    for name, template in release["setValueTemplates"].items():
        part, _, field = name.split(".")
        assert field in values[part]["image"], name
        assert template.endswith(f"_headrace_{part}}}}}"), name


def test_skaffold_forwards_ports_that_services_have() -> None:
    (release,) = SKAFFOLD["deploy"]["helm"]["releases"]
    rendered = (Path(__file__).parent / "golden" / "default.yaml").read_text()
    cluster = Cluster(release["name"], release["namespace"], "uid", ClusterSpec(), "headrace/services:1")
    objects: list[dict[str, Any]] = [*manifests(cluster), *filter(None, yaml.safe_load_all(rendered))]
    served = {
        (each["metadata"]["name"], port["port"])
        for each in objects
        if each["kind"] == "Service"
        for port in each["spec"]["ports"]
    }
    for forward in SKAFFOLD["portForward"]:
        assert forward["resourceType"] == "service"
        assert forward["namespace"] == release["namespace"]
        assert (forward["resourceName"], forward["port"]) in served
