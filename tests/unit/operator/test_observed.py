"""What is read from the API server's objects."""

from __future__ import annotations

from headrace_operator.manifests import COMPONENTS, Cluster
from headrace_operator.observed import Observed, Workload, images, without_class
from headrace_operator.resources import ClusterSpec
from headrace_operator.schema import Json, parse


def claim(name: str, storage_class: str | None, phase: str = "Pending") -> Json:
    spec = {"storageClassName": storage_class} if storage_class else {}
    return {"metadata": {"name": name}, "spec": spec, "status": {"phase": phase}}


def test_a_claim_that_waits_for_a_class_that_is_not_there_is_named() -> None:
    seen = Observed(claims=[claim("data-demo-broker-0", "fast")], missing_classes={"fast"})
    said = without_class(seen)
    assert said is not None
    assert "data-demo-broker-0" in said
    assert "storage class fast" in said


def test_other_claims_are_not_talked_about() -> None:
    bound, slow, default = claim("a", "fast", "Bound"), claim("b", "slow"), claim("c", None)
    assert without_class(Observed(claims=[bound, slow, default], missing_classes={"fast"})) is None


def upgrading(done: int, settled: bool = True, spec: Json | None = None, **there: str) -> dict[str, str]:
    """The images to give while the first few components have the new one; `there` says which others run."""
    workloads = {c: Workload(1, "new" if at < done else "old", True) for at, c in enumerate(COMPONENTS)}
    if done:
        last = COMPONENTS[done - 1]
        workloads[last] = Workload(1, "new", settled)
    workloads |= {c: Workload(1, image, True) for c, image in there.items()}
    return images(Cluster("demo", "shop", "uid-1", parse(ClusterSpec, spec or {}), "new"), Observed(workloads))


def test_a_new_image_goes_to_the_next_component_once_those_before_are_settled_on_it() -> None:
    order = ["etcd", "metadata", "controller", "coordinator", "broker"]
    for done in range(len(order)):
        given = upgrading(done)
        assert [c for c in order if given[c] == "new"] == order[: done + 1]
        if done:
            waits = upgrading(done, settled=False)
            assert [c for c in order if waits[c] == "new"] == order[:done]


def test_a_component_that_is_not_there_yet_gets_the_new_image_at_once() -> None:
    cluster = Cluster("demo", "shop", "uid-1", ClusterSpec(), "new")
    seen = Observed({"etcd": Workload(1, "old", False), "broker": Workload(1, "old", True)})
    assert images(cluster, seen) == {**dict.fromkeys(COMPONENTS, "new"), "broker": "old"}


ETCD = {"etcd": {"managed": {"template": {"spec": {"containers": [{"name": "etcd", "image": "quay.io/etcd:3"}]}}}}}


def test_an_image_of_its_own_holds_up_no_other_component() -> None:
    assert upgrading(1, spec=ETCD, etcd="quay.io/etcd:3")["metadata"] == "new"
    assert upgrading(1, spec=ETCD, etcd="quay.io/etcd:2")["metadata"] == "old"


def test_what_comes_beside_an_image_of_its_own_does_not_change_with_others() -> None:
    """The image of the init container would follow, and the pods start again whenever something else did."""
    spec = {"brokers": {"template": {"spec": {"containers": [{"name": "broker", "image": "mine"}]}}}}
    assert upgrading(2, settled=False, spec=spec, broker="mine")["broker"] == "new"
    assert upgrading(4, spec=spec, broker="mine")["broker"] == "new"
