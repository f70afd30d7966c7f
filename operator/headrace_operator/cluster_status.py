"""A Cluster's status from what was seen and what is being done: pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace.cluster.image import Image
from headrace_operator import conditions, picture, quantities, rollout
from headrace_operator.conditions import Condition
from headrace_operator.manifests import Cluster, own_components
from headrace_operator.manifests.naming import GRPC_PORT, KAFKA_PORT
from headrace_operator.observed import (
    Observed,
    container_image,
    ordinal,
    ready,
    trouble,
    wanted_image,
    without_class,
)
from headrace_operator.picture import Disk
from headrace_operator.resources import Addresses, BrokerStatus, ClusterStatus
from headrace_operator.schema import Json


@dataclass(slots=True)
class Doing:
    """What a reconciliation is busy with; the first thing said is what a person sees."""

    reason: str = ""
    message: str = ""
    blocked: bool = False
    """It cannot go on by itself: something has to be changed by a person."""

    def say(self, reason: str, message: str, *, blocked: bool = False) -> None:
        if not self.reason:
            self.reason, self.message, self.blocked = reason, message, blocked


@dataclass(slots=True)
class Memory:
    """What one look leaves in the status for the next one."""

    live_config: tuple[str, ...]
    spreading: tuple[int, ...]
    rolling: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """What a status is made of."""

    cluster: Cluster
    observed: Observed
    image: Image | None
    doing: Doing
    memory: Memory
    disks: Mapping[int, Disk] = field(default_factory=dict)
    external: str | None = None


def status_of(facts: Facts, before: ClusterStatus, generation: int, time: str) -> ClusterStatus:
    """The whole status."""
    cluster, observed, image = facts.cluster, facts.observed, facts.image
    brokers = _brokers(facts)
    serving = sum(each.state == "Running" for each in brokers if each.id < cluster.spec.brokers.replicas)
    selector = ",".join(f"{k}={v}" for k, v in cluster.selector("broker").items())
    host = cluster.host("bootstrap")
    total, used = sum(d.total for d in facts.disks.values()), sum(d.used for d in facts.disks.values())
    status = ClusterStatus(
        observed_generation=generation,
        conditions=conditions.updated(before.conditions, _conditions(facts, before, serving), generation, time),
        replicas=len(observed.pods.get("broker", [])),
        selector=selector,
        brokers_ready=f"{serving}/{cluster.spec.brokers.replicas}",
        brokers=brokers,
        bootstrap=Addresses(kafka=f"{host}:{KAFKA_PORT}", grpc=f"{host}:{GRPC_PORT}", external=facts.external),
        version=_version(cluster, observed) or before.version,
        storage=f"{quantities.rounded(used)} of {quantities.rounded(total)}" if total else before.storage,
        live_config=facts.memory.live_config,
        spreading=facts.memory.spreading,
        rolling=facts.memory.rolling,
        controller=before.controller,
        topics=before.topics,
        partitions=before.partitions,
        under_replicated_partitions=before.under_replicated_partitions,
        under_min_isr_partitions=before.under_min_isr_partitions,
        offline_partitions=before.offline_partitions,
        moving_partitions=before.moving_partitions,
    )
    return status if image is None else _counted(status, image)


def _counted(status: ClusterStatus, image: Image) -> ClusterStatus:
    states = [state for _, state in picture.partitions(image)]
    return replace(
        status,
        controller=image.controller.id if image.controller else None,
        topics=len(image.topics),
        partitions=len(states),
        under_replicated_partitions=len(picture.under_replicated(image)),
        under_min_isr_partitions=len(picture.under_min_isr(image)),
        offline_partitions=len(picture.offline(image)),
        moving_partitions=sum(picture.moving(state) for state in states),
    )


def _version(cluster: Cluster, observed: Observed) -> str | None:
    """The one image that all services run, as their pods say; None while there are two."""
    found: set[str] = set()
    for component in own_components(cluster):
        # One whose template names an image has that, whatever the others run.
        if wanted_image(cluster, component) == cluster.image:
            found |= {container_image(pod, component) for pod in observed.pods.get(component, [])}
            if (workload := observed.workloads.get(component)) is not None:
                found.add(workload.image)
    return found.pop() if len(found) == 1 else None


def _brokers(facts: Facts) -> tuple[BrokerStatus, ...]:
    cluster, image = facts.cluster, facts.image or Image()
    pods = {ordinal(pod): pod for pod in facts.observed.pods.get("broker", [])}
    workload = facts.observed.workloads.get("broker")
    wanted = max(cluster.spec.brokers.replicas, workload.replicas if workload else 0)
    held, led = picture.held(image), picture.led(image)
    lagging = [r for _, state in picture.partitions(image) for r in state.out_of_sync]
    found = []
    for broker in range(wanted):
        pod, node, disk = pods.get(broker), image.brokers.get(broker), facts.disks.get(broker)
        found.append(
            BrokerStatus(
                id=broker,
                pod=f"{cluster.child('broker')}-{broker}",
                state=_state(cluster, broker, pod, facts.image),
                image=container_image(pod, "broker") or None if pod else None,
                leaders=led[broker],
                replicas=held[broker],
                out_of_sync=lagging.count(broker),
                rack=node.rack or None if node else None,
                storage_capacity=quantities.rounded(disk.total) if disk else None,
                storage_used=quantities.rounded(disk.used) if disk else None,
            )
        )
    return tuple(found)


def _state(cluster: Cluster, broker: int, pod: Json | None, image: Image | None) -> str:
    if pod is None:
        return "Missing"
    if "deletionTimestamp" in pod["metadata"]:
        return "Restarting" if broker < cluster.spec.brokers.replicas else "Leaving"
    if trouble([pod]):
        return "Down"
    if not ready(pod) or (image is not None and broker not in image.brokers):
        return "Starting"
    return "Running" if broker < cluster.spec.brokers.replicas else "Draining"


def _conditions(facts: Facts, before: ClusterStatus, serving: int) -> list[Condition]:
    return [
        _ready(facts, before, serving),
        _progressing(facts.doing),
        _degraded(facts, serving),
        _rollout_safe(facts.image),
    ]


def _ready(facts: Facts, before: ClusterStatus, serving: int) -> Condition:
    name, image, wanted = conditions.READY, facts.image, facts.cluster.spec.brokers.replicas
    pods = [pod for listed in facts.observed.pods.values() for pod in listed]
    if image is None:
        why = trouble(pods) or "no metadata server answers yet"
        return Condition(name, False, "Unreachable", why)
    if image.controller is None:
        return Condition(name, False, "NoController", trouble(pods) or "no controller is active")
    if not image.brokers:
        return Condition(name, False, "NoBrokers", trouble(pods) or "no broker is alive")
    if lost := picture.offline(image):
        return Condition(
            name, False, "PartitionsOffline", f"{len(lost)} partitions have no leader ({picture.some(lost)})"
        )
    if not image.coordinators:
        return Condition(name, False, "NoCoordinator", trouble(pods) or "no group coordinator is alive")
    if serving < wanted and not conditions.is_true(before.conditions, name):
        return Condition(name, False, "BrokersStarting", trouble(pods) or f"{serving} of {wanted} brokers serve")
    return Condition(name, True, "Serving", f"{serving} of {wanted} brokers serve")


def _progressing(doing: Doing) -> Condition:
    if not doing.reason:
        return Condition(conditions.PROGRESSING, False, "Settled", "everything is as the spec says")
    return Condition(conditions.PROGRESSING, not doing.blocked, doing.reason, doing.message)


def _degraded(facts: Facts, serving: int) -> Condition:
    name, wanted = conditions.DEGRADED, facts.cluster.spec.brokers.replicas
    every = [pod for listed in facts.observed.pods.values() for pod in listed]
    if why := without_class(facts.observed):
        return Condition(name, True, "StorageClassMissing", why)
    if why := trouble(every):
        return Condition(name, True, "PodFailing", why)
    if serving < wanted:
        away = [b.pod for b in _brokers(facts) if b.state != "Running" and b.id < wanted]
        return Condition(name, True, "BrokersAway", f"{picture.some(away)} do not serve")
    if facts.image is not None and (lagging := picture.under_replicated(facts.image)):
        message = f"{len(lagging)} partitions have a replica out of sync ({picture.some(lagging)})"
        return Condition(name, True, "UnderReplicated", message)
    return Condition(name, False, "Healthy", "every broker serves and every replica is in sync")


def _rollout_safe(image: Image | None) -> Condition:
    name = conditions.ROLLOUT_SAFE
    if image is None:
        return Condition(name, None, "Unknown", "the cluster does not answer")
    for broker in sorted(image.brokers):
        if why := rollout.unsafe(image, broker):
            return Condition(name, False, "Unsafe", why)
    return Condition(name, True, "Safe", "any one broker can be restarted")
