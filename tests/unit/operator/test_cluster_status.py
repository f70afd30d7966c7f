"""What is said of a Cluster."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.operator.pictures import image, node, partition, topic

from headrace.cluster.image import Image, Topic
from headrace_operator.cluster_status import Doing, Facts, Memory, status_of
from headrace_operator.manifests import COMPONENTS, Cluster
from headrace_operator.observed import Observed, Workload
from headrace_operator.resources import ClusterSpec, ClusterStatus
from headrace_operator.schema import Json, parse

THREE = topic("orders", partition([0, 1, 2]))


def serving(*topics: Topic, brokers: int = 3, min_isr: int = 1) -> Image:
    return replace(image(range(brokers), *topics, min_isr=min_isr), coordinators={0: node(0)})


def pod(component: str, ordinal: int, *, ready: bool = True, image: str = "new", **status: Json) -> Json:
    return {
        "metadata": {"name": f"demo-{component}-{ordinal}"},
        "spec": {"containers": [{"name": component, "image": image}]},
        "status": {"conditions": [{"type": "Ready", "status": str(ready)}], **status},
    }


def brokers(*pods: Json) -> Observed:
    return Observed(pods={"broker": list(pods)})


ALL = brokers(*(pod("broker", each) for each in range(3)))


def told(
    picture: Image | None,
    seen: Observed = ALL,
    doing: Doing | None = None,
    before: ClusterStatus | None = None,
    spec: Json | None = None,
) -> ClusterStatus:
    cluster = Cluster("demo", "shop", "uid-1", parse(ClusterSpec, spec or {}), "new")
    facts = Facts(cluster, seen, picture, doing or Doing(), Memory((), (), False))
    return status_of(facts, before or ClusterStatus(), 1, "2030-01-01T00:00:00Z")


def said(name: str, status: ClusterStatus) -> tuple[str, str]:
    """Status and reason of a condition."""
    found = next(c for c in status.conditions if c["type"] == name)
    return found["status"], found["reason"]


def test_a_cluster_is_ready_when_clients_are_served() -> None:
    assert said("Ready", told(serving(THREE))) == ("True", "Serving")
    assert said("Ready", told(None)) == ("False", "Unreachable")
    assert said("Ready", told(replace(serving(), controller=None))) == ("False", "NoController")
    assert said("Ready", told(serving(brokers=0))) == ("False", "NoBrokers")
    assert said("Ready", told(replace(serving(), coordinators={}))) == ("False", "NoCoordinator")
    lost = topic("orders", partition([0, 1], isr=[], leader=-1))
    assert said("Ready", told(serving(lost))) == ("False", "PartitionsOffline")


def test_a_broker_that_is_away_keeps_a_cluster_from_becoming_ready_but_takes_nothing_from_one_that_is() -> None:
    two = brokers(pod("broker", 0), pod("broker", 1))
    first = told(serving(THREE, brokers=2), two)
    assert said("Ready", first) == ("False", "BrokersStarting")
    ready = told(serving(THREE))
    later = told(serving(THREE, brokers=2), two, before=ready)
    assert (said("Ready", later), later.brokers_ready) == (("True", "Serving"), "2/3")
    assert said("Degraded", later) == ("True", "BrokersAway")


def test_why_a_cluster_is_not_reached_is_told_from_its_pods() -> None:
    waiting = {"initContainerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}}]}
    seen = brokers(pod("broker", 0, ready=False, **waiting))  # type: ignore[arg-type]
    status = told(None, seen)
    assert "ImagePullBackOff" in next(c["message"] for c in status.conditions if c["type"] == "Ready")
    assert said("Degraded", status) == ("True", "PodFailing")
    assert status.brokers[0].state == "Down"


def test_progressing_tells_what_is_done_or_why_it_cannot_be() -> None:
    assert said("Progressing", told(serving())) == ("False", "Settled")
    assert said("Progressing", told(serving(), doing=Doing("Rolling", "b"))) == ("True", "Rolling")
    stuck = Doing("ScaleDownBlocked", "too few", blocked=True)
    assert said("Progressing", told(serving(), doing=stuck)) == ("False", "ScaleDownBlocked")


def test_the_first_thing_said_is_what_a_person_sees() -> None:
    doing = Doing()
    doing.say("Refused", "a", blocked=True)
    doing.say("Starting", "b")
    assert (doing.reason, doing.blocked) == ("Refused", True)


def test_degraded_tells_of_what_should_run_or_be_in_sync() -> None:
    assert said("Degraded", told(serving(THREE))) == ("False", "Healthy")
    lagging = topic("orders", partition([0, 1, 2], isr=[0, 1]))
    assert said("Degraded", told(serving(lagging))) == ("True", "UnderReplicated")
    claim = {"metadata": {"name": "data"}, "spec": {"storageClassName": "fast"}}
    seen = replace(ALL, claims=[claim], missing_classes={"fast"})
    assert said("Degraded", told(serving(THREE), seen)) == ("True", "StorageClassMissing")


def test_a_rollout_is_safe_when_any_one_broker_can_be_spared() -> None:
    assert said("RolloutSafe", told(serving(THREE, min_isr=2))) == ("True", "Safe")
    lagging = topic("orders", partition([0, 1, 2], isr=[0, 1]))
    assert said("RolloutSafe", told(serving(lagging, min_isr=2))) == ("False", "Unsafe")
    assert said("RolloutSafe", told(None)) == ("Unknown", "Unknown")


def test_a_broker_that_is_to_go_is_draining_and_then_leaving() -> None:
    leaving = pod("broker", 1)
    spec = {"brokers": {"replicas": 1}}

    def state() -> str:
        seen = replace(brokers(pod("broker", 0), leaving), workloads={"broker": Workload(2, "new", True)})
        return told(serving(brokers=2), seen, spec=spec).brokers[1].state

    assert state() == "Draining"
    leaving["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    assert state() == "Leaving"


def upgraded(*images: str, spec: Json | None = None, **other: str) -> str | None:
    """The version while every template is new and the brokers' pods run these."""
    workloads = {c: Workload(1, other.get(c, "new"), True) for c in COMPONENTS}
    seen = replace(brokers(*(pod("broker", n, image=i) for n, i in enumerate(images))), workloads=workloads)
    return told(serving(), seen, before=ClusterStatus(version="old"), spec=spec).version


def test_the_version_is_the_old_one_until_the_last_broker_has_the_new() -> None:
    assert upgraded("old", "new", "new") == "old"
    assert upgraded("new", "new", "new") == "new"
    assert upgraded("new", "new", "new", coordinator="old") == "old"


def test_an_image_of_its_own_is_not_the_version() -> None:
    template = {"spec": {"containers": [{"name": "etcd", "image": "quay.io/etcd:3"}]}}
    assert upgraded("new", spec={"etcd": {"managed": {"template": template}}}, etcd="quay.io/etcd:3") == "new"
