"""What a cluster is made of right now, read from the API server's objects into what decisions need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from headrace_operator import quantities
from headrace_operator.manifests import Cluster, own_components
from headrace_operator.manifests.pods import STALE_ANNOTATION, pod_template
from headrace_operator.resources import BrokerStatus
from headrace_operator.rollout import Pod
from headrace_operator.schema import Json


@dataclass(frozen=True, slots=True)
class Workload:
    """A StatefulSet or Deployment."""

    replicas: int
    """Pods it shall have."""
    image: str
    settled: bool
    """Whether Kubernetes has carried out what it says, and every pod is ready."""
    revision: str = ""
    claims: dict[str, int] = field(default_factory=dict)
    """Size of each of its volume claims, by name."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything at one look."""

    workloads: dict[str, Workload] = field(default_factory=dict)
    """By component; one that is not there yet is missing."""
    pods: dict[str, list[Json]] = field(default_factory=dict)
    """By component, by name."""
    claims: list[Json] = field(default_factory=list)
    missing_classes: set[str] = field(default_factory=set)
    """Storage classes that claims wait for and that are not there."""


def waiting_for_class(claims: list[Json]) -> dict[str, str]:
    """Claims that have no volume yet, and the class each of them names."""
    return {
        claim["metadata"]["name"]: name
        for claim in claims
        if claim.get("status", {}).get("phase") != "Bound" and (name := claim["spec"].get("storageClassName"))
    }


def without_class(observed: Observed) -> str | None:
    """What to say of a claim whose class is not there; the scheduler tells of the pod, and not always of the reason."""
    for claim, name in sorted(waiting_for_class(observed.claims).items()):
        if name in observed.missing_classes:
            return f"the volume {claim} waits for the storage class {name}, which is not there: create it"
    return None


def workload(body: Json, component: str) -> Workload:
    """A StatefulSet or Deployment as read."""
    spec, status = body["spec"], body.get("status", {})
    replicas = spec.get("replicas", 1)
    seen = status.get("observedGeneration", 0) >= body["metadata"].get("generation", 0)
    ready = status.get("readyReplicas", 0) == replicas
    updated = status.get("updatedReplicas", 0) == replicas and status.get("replicas", 0) == replicas
    return Workload(
        replicas=replicas,
        image=container_image(spec["template"], component),
        settled=seen and ready and updated,
        revision=status.get("updateRevision", "") if seen else "",
        claims=claims(body),
    )


def claims(body: Json) -> dict[str, int]:
    """The size of each volume claim of a StatefulSet; the API server spells it in its own way (1024Gi: 1Ti)."""
    templates = body["spec"].get("volumeClaimTemplates", [])
    return {t["metadata"]["name"]: quantities.parse(t["spec"]["resources"]["requests"]["storage"]) for t in templates}


def ready(pod: Json) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", []))


def ordinal(pod: Json) -> int:
    return int(pod["metadata"]["name"].rpartition("-")[2])


def stale(pod: Json) -> bool:
    """Whether a pod tells clients an outside address that is no longer its own."""
    return STALE_ANNOTATION in pod["metadata"].get("annotations", {})


def broker_pods(observed: Observed) -> list[Pod]:
    """The brokers' pods as a roll needs them; while the newest revision is not known none is called outdated."""
    brokers = observed.workloads.get("broker")
    revision = brokers.revision if brokers else ""
    return [
        Pod(
            name=pod["metadata"]["name"],
            ordinal=ordinal(pod),
            ready=ready(pod),
            current=not stale(pod)
            and (not revision or pod["metadata"]["labels"].get("controller-revision-hash") == revision),
            deleting="deletionTimestamp" in pod["metadata"],
        )
        for pod in observed.pods.get("broker", [])
    ]


def brokers_there(observed: Observed, told: Iterable[BrokerStatus]) -> int:
    """How many brokers a cluster has; none before it was made.

    An operator that was killed while it made their StatefulSet anew left the pods alone: then they say it, and the last
    status for one that is just not there. Else those that are not drained would go with the new StatefulSet.
    """
    if (workload := observed.workloads.get("broker")) is not None:
        return workload.replicas
    there = {ordinal(pod) for pod in observed.pods.get("broker", [])}
    there |= {broker.id for broker in told if broker.state != "Missing"}
    return 1 + max(there, default=-1)


def trouble(pods: list[Json]) -> str | None:
    """Why a pod does not run, in Kubernetes' words; None when all do or are just starting."""
    for pod in pods:
        name, status = pod["metadata"]["name"], pod.get("status", {})
        for condition in status.get("conditions", []):
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                return f"{name} cannot be scheduled: {condition.get('message', condition.get('reason', ''))}"
        for container in (*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])):
            waiting = container.get("state", {}).get("waiting", {})
            if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                ended = container.get("lastState", {}).get("terminated", {})
                code = f" (it ended with {ended['exitCode']})" if "exitCode" in ended else ""
                return f"{name}: {waiting['reason']} {waiting.get('message', '')}".strip() + code
    return None


def wanted_image(cluster: Cluster, component: str) -> str:
    """The image that a component shall run in the end: the cluster's, unless its template names another."""
    return container_image(pod_template(replace(cluster, images={}), component), component)


def container_image(template: Json, component: str) -> str:
    """The image of a component's own container in a pod or the template of one."""
    return next((c["image"] for c in template["spec"]["containers"] if c["name"] == component), "")


def images(cluster: Cluster, observed: Observed) -> dict[str, str]:
    """The image each component shall run now: a new one goes to the next when the ones before it are settled on it.

    A component that is not there yet gets the new one at once, so a fresh install does not wait in line. Nor does one
    whose template names an image: that decides.
    """
    found: dict[str, str] = {}
    clear = True
    for component in own_components(cluster):
        current, wanted = observed.workloads.get(component), wanted_image(cluster, component)
        found[component] = cluster.image if current is None or clear or wanted != cluster.image else current.image
        if current is not None and (current.image != wanted or not current.settled):
            clear = False
    return found


def grown_claims(cluster: Cluster, observed: Observed, component: str, templates: list[Json]) -> dict[str, str]:
    """New sizes of claims that are smaller than they shall be; larger ones stay as they are."""
    wanted = {t["metadata"]["name"]: t["spec"]["resources"]["requests"]["storage"] for t in templates}
    found = {}
    for claim in observed.claims:
        volume, _, rest = claim["metadata"]["name"].partition(f"-{cluster.child(component)}-")
        if volume in wanted and rest.isdecimal():
            size = claim["spec"]["resources"]["requests"]["storage"]
            if quantities.parse(size) < quantities.parse(wanted[volume]):
                found[claim["metadata"]["name"]] = wanted[volume]
    return found
