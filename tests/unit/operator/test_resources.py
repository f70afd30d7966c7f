"""One source: the CRDs, the parser, the reference page and the rights."""

from __future__ import annotations

from pathlib import Path

from headrace_operator import quantities
from headrace_operator.conditions import Condition, updated
from headrace_operator.crds import crds
from headrace_operator.reference import reference
from headrace_operator.resources import ClusterSpec, ClusterStatus, TopicSpec
from headrace_operator.schema import parse, to_dict

ROOT = Path(__file__).resolve().parents[3]


def test_the_reference_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "resources.md").read_text() == reference(), "run: make chart"


def test_every_field_says_what_it_is() -> None:
    def undocumented(schema: dict[str, object], path: str) -> list[str]:
        found = []
        properties = schema.get("properties", {})
        assert isinstance(properties, dict)
        for name, each in properties.items():
            if "description" not in each:
                found.append(f"{path}.{name}")
            found += undocumented(each.get("items", each) if each.get("description") else {}, f"{path}.{name}")
        return found

    for crd in crds():
        properties = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        bare = [n for part in ("spec", "status") for n in undocumented(properties[part], part)]
        # Kubernetes' own words need no sentence of ours.
        assert [n for n in bare if ".conditions." not in n and ".resources." not in n] == []


def test_what_is_parsed_is_written_back() -> None:
    given = {"cluster": "demo", "partitions": 3, "config": {"retention.ms": 5}, "deletionPolicy": "Delete"}
    assert to_dict(parse(TopicSpec, given)) == given
    assert parse(ClusterSpec, {"brokers": {"storage": [{"size": "1Gi"}]}}).brokers.storage[0].name == "data"
    assert parse(ClusterStatus, None) == ClusterStatus()


def test_fields_of_a_newer_version_are_left_out() -> None:
    assert parse(TopicSpec, {"cluster": "demo", "colour": "blue"}) == TopicSpec(cluster="demo")


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    first = updated((), [Condition("Ready", False, "Starting", "one")], 1, "t1")
    second = updated(first, [Condition("Ready", False, "Waiting", "two")], 2, "t2")
    third = updated(second, [Condition("Ready", True, "Serving", "three")], 2, "t3")
    assert [c[0]["lastTransitionTime"] for c in (first, second, third)] == ["t1", "t1", "t3"]
    assert (second[0]["reason"], second[0]["observedGeneration"]) == ("Waiting", 2)


def test_quantities_compare_across_units() -> None:
    assert quantities.parse("1024Mi") == quantities.parse("1Gi") > quantities.parse("1G")
