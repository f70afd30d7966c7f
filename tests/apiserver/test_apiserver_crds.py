"""What the API server takes, and the sentence it says when it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.apiserver.operator import namespace
from tests.apiserver.server import ApiServer, Refused

BASE = "/apis/headrace.dev/v1alpha1/namespaces/rules"
PLURALS = {"Cluster": "clusters", "Topic": "topics"}
EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "kubernetes").glob("*.yaml"))


@pytest.fixture(scope="module")
def rules(definitions: ApiServer) -> ApiServer:
    namespace(definitions, "rules")
    return definitions


def create(api: ApiServer, kind: str, spec: dict[str, Any], name: str = "a", dry: bool = True) -> None:
    body = {"apiVersion": "headrace.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    api.call("POST", f"{BASE}/{PLURALS[kind]}" + ("?dryRun=All" if dry else ""), body)


def test_definitions_are_accepted(definitions: ApiServer) -> None:
    for name in ("clusters", "topics"):
        crd = definitions.call("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}.headrace.dev")
        states = {c["type"]: c["status"] for c in crd["status"]["conditions"]}
        assert states["Established"] == "True"
        assert "NonStructuralSchema" not in states


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_taken(rules: ApiServer, example: Path) -> None:
    for body in yaml.safe_load_all(example.read_text()):
        rules.call("POST", f"{BASE}/{PLURALS[body['kind']]}?dryRun=All", body)


def test_defaults_are_filled_in(rules: ApiServer) -> None:
    create(rules, "Cluster", {}, "defaults", dry=False)
    spec = rules.call("GET", f"{BASE}/clusters/defaults")["spec"]
    assert spec["brokers"]["replicas"] == 3
    assert spec["brokers"]["storage"] == [{"name": "data", "size": "10Gi"}]
    assert spec["networkPolicies"] == {"enabled": True}


NO_SIZE = "a size is a number of bytes with Ki, Mi, Gi, Ti, Pi, Ei or k, M, G, T, P, E after it, as in 10Gi"
NO_ENDPOINT = "an etcd endpoint is host:port without a scheme, as in etcd-0.etcd:2379"
TAKEN_PORT = "brokers listen on 9092, 9094, 9404 already: give another port, as in 9095"
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("Topic", {}, "spec.cluster: Required value"),
    ("Topic", {"cluster": "c", "partitions": 0}, "should be greater than or equal to 1"),
    ("Topic", {"cluster": "c", "name": ".."}, "and is neither '.' nor '..'"),
    ("Topic", {"cluster": "c", "name": "a b"}, "a topic's name has 1 to 249 letters, digits, '.', '_' and '-'"),
    (
        "Topic",
        {"cluster": "c", "replicas": 1, "config": {"min.insync.replicas": 2}},
        "min.insync.replicas is more than replicas: give at most as many",
    ),
    (
        "Topic",
        {"cluster": "c", "replicas": 1, "config": {"min.insync.replicas": "2"}},
        "min.insync.replicas is more than replicas",
    ),
    ("Topic", {"cluster": "c", "deletionPolicy": "Drop"}, 'supported values: "Retain", "Delete"'),
    ("Topic", {"cluster": "c", "config": {"preallocate": True}}, "must be of type"),
    ("Cluster", {"brokers": {"replicas": 0}}, "should be greater than or equal to 1"),
    ("Cluster", {"brokers": {"storage": [{"size": "ten"}]}}, NO_SIZE),
    ("Cluster", {"brokers": {"storage": [{"size": "10K"}]}}, NO_SIZE),
    ("Cluster", {"brokers": {"storage": [{"size": "10ki"}]}}, NO_SIZE),
    ("Cluster", {"etcd": {"external": {"endpoints": ["http://e:2379"]}}}, NO_ENDPOINT),
    ("Cluster", {"etcd": {"external": {"endpoints": ["e:2379", "e"]}}}, NO_ENDPOINT),
    ("Cluster", {"etcd": {"external": {"endpoints": ["::1:2379"]}}}, NO_ENDPOINT),
    *(
        ("Cluster", {"listeners": {"external": {"type": "LoadBalancer", "port": port}}}, TAKEN_PORT)
        for port in (9092, 9094, 9404)
    ),
    ("Cluster", {"etcd": {"managed": {"replicas": 2}}}, 'supported values: "1", "3", "5"'),
    (
        "Cluster",
        {"etcd": {"managed": {}, "external": {"endpoints": ["e:1"]}}},
        "give either etcd.managed or etcd.external, not both",
    ),
    ("Cluster", {"config": {"node.id": 4}}, "these settings follow from the rest of the spec and cannot be given"),
    (
        "Cluster",
        {"listeners": {"external": {"type": "NodePort"}}},
        "a NodePort listener needs advertisedHost: an address of your nodes that clients can reach",
    ),
]


@pytest.mark.parametrize(("kind", "spec", "sentence"), WRONG)
def test_wrong_specs_are_refused_with_what_is_allowed(
    rules: ApiServer, kind: str, spec: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(Refused) as refused:
        create(rules, kind, spec)
    assert sentence in str(refused.value)


def test_a_cluster_with_a_name_that_makes_no_host_names_is_refused(rules: ApiServer) -> None:
    with pytest.raises(Refused, match="a cluster's name has at most 40 lower-case letters"):
        create(rules, "Cluster", {}, "a" * 41)


SHRINKS = "a volume can grow, never shrink: give at least the size it has"
OTHER_MEMBERS = "the number of etcd members cannot be changed once they run"
OTHER_CLASS = "the storage class of a volume cannot be given, taken away or changed later: make a new cluster"
OTHER_ETCD = "a cluster cannot move between a managed and an external etcd: make a new cluster"


def etcd(**managed: Any) -> dict[str, Any]:
    return {"etcd": {"managed": managed}}


def volume(**more: Any) -> dict[str, Any]:
    return {"brokers": {"storage": [{"name": "data", "size": "1Gi", **more}]}}


NO_ETCD = {"etcd": {"managed": None}}
CHANGES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("Topic", {"cluster": "c", "partitions": 3}, {"partitions": 2}, "partitions can be added, never taken away"),
    ("Topic", {"cluster": "c", "partitions": 3}, {"partitions": None}, "partitions can be added, never taken away"),
    ("Topic", {"cluster": "c"}, {"cluster": "d"}, "the cluster of a topic cannot be changed: make a new Topic"),
    ("Topic", {"cluster": "c", "name": "x"}, {"name": "y"}, "the name of a topic cannot be changed: make a new Topic"),
    ("Topic", {"cluster": "c"}, {"name": "y"}, "the name of a topic cannot be changed: make a new Topic"),
    (
        "Cluster",
        {"brokers": {"storage": [{"name": "data", "size": "10Gi"}]}},
        {"brokers": {"storage": [{"name": "data", "size": "9Gi"}]}},
        SHRINKS,
    ),
    ("Cluster", volume(), volume(storageClass="fast"), OTHER_CLASS),
    ("Cluster", volume(storageClass="fast"), volume(), OTHER_CLASS),
    ("Cluster", volume(storageClass="fast"), volume(storageClass="slow"), OTHER_CLASS),
    (
        "Cluster",
        {"brokers": {"storage": [{"name": "a", "size": "1Gi"}, {"name": "b", "size": "1Gi"}]}},
        {"brokers": {"storage": [{"name": "a", "size": "1Gi"}]}},
        "volumes can be added, never taken away or renamed",
    ),
    ("Cluster", etcd(replicas=1), etcd(replicas=3), OTHER_MEMBERS),
    ("Cluster", {}, etcd(replicas=1), OTHER_MEMBERS),
    ("Cluster", etcd(replicas=1), NO_ETCD, OTHER_MEMBERS),
    ("Cluster", etcd(replicas=5), {"etcd": None}, OTHER_MEMBERS),
    ("Cluster", etcd(storage={"size": "4Gi"}), etcd(storage={"size": "3Gi"}), SHRINKS),
    ("Cluster", {}, etcd(storage={"size": "1Gi"}), SHRINKS),
    ("Cluster", etcd(storage={"size": "3Gi"}), NO_ETCD, SHRINKS),
    ("Cluster", etcd(), etcd(storage={"storageClass": "fast"}), OTHER_CLASS),
    ("Cluster", {}, etcd(storage={"size": "2Gi", "storageClass": "fast"}), OTHER_CLASS),
    ("Cluster", etcd(storage={"size": "2Gi", "storageClass": "fast"}), NO_ETCD, OTHER_CLASS),
    ("Cluster", etcd(), {"etcd": {"managed": None, "external": {"endpoints": ["e:1"]}}}, OTHER_ETCD),
    ("Cluster", {"etcd": {"external": {"endpoints": ["e:1"]}}}, {"etcd": {"external": None}}, OTHER_ETCD),
]


@pytest.mark.parametrize(("kind", "spec", "change", "sentence"), CHANGES)
def test_changes_that_cannot_be_are_refused(
    rules: ApiServer, kind: str, spec: dict[str, Any], change: dict[str, Any], sentence: str, request: Any
) -> None:
    name = f"change-{request.node.callspec.indices['kind']}"
    create(rules, kind, spec, name, dry=False)
    where = f"{BASE}/{PLURALS[kind]}/{name}"
    with pytest.raises(Refused) as refused:
        rules.call("PATCH", where, {"spec": change}, "application/merge-patch+json")
    assert sentence in str(refused.value)


def test_what_runs_anyway_may_be_spelled_out(rules: ApiServer) -> None:
    create(rules, "Cluster", {}, "spelled", dry=False)
    where, kind = f"{BASE}/clusters/spelled", "application/merge-patch+json"
    rules.call("PATCH", where, {"spec": etcd(replicas=3, storage={"size": "2Gi"})}, kind)
    rules.call("PATCH", where, {"spec": NO_ETCD}, kind)
    rules.call("PATCH", where, {"spec": etcd(storage={"size": "3Gi"})}, kind)


def test_addresses_and_sizes_of_every_kind_are_taken(rules: ApiServer) -> None:
    endpoints = ["etcd-0.etcd.db.svc:2379", "10.0.0.1:2379", "[fd00::1]:2379"]
    create(rules, "Cluster", {"etcd": {"external": {"endpoints": endpoints}}})
    for size in ("10Gi", "1.5Ti", "10k", "5G", "1073741824"):
        create(rules, "Cluster", {"brokers": {"storage": [{"size": size}]}})


def test_volumes_grow_and_partitions_are_added(rules: ApiServer) -> None:
    create(rules, "Cluster", {"brokers": {"storage": [{"name": "data", "size": "1000Mi"}]}}, "grows", dry=False)
    change = {"spec": {"brokers": {"storage": [{"name": "data", "size": "1Gi"}, {"name": "more", "size": "1Gi"}]}}}
    rules.call("PATCH", f"{BASE}/clusters/grows", change, "application/merge-patch+json")
    create(rules, "Topic", {"cluster": "c", "partitions": 1}, "grows", dry=False)
    rules.call("PATCH", f"{BASE}/topics/grows", {"spec": {"partitions": 2}}, "application/merge-patch+json")


def test_brokers_can_be_scaled_by_the_subresource(rules: ApiServer) -> None:
    create(rules, "Cluster", {}, "scaled", dry=False)
    rules.call("PATCH", f"{BASE}/clusters/scaled/scale", {"spec": {"replicas": 5}}, "application/merge-patch+json")
    assert rules.call("GET", f"{BASE}/clusters/scaled")["spec"]["brokers"]["replicas"] == 5
