"""Tells pods where they are: the failure domain of their node and the address that outside clients reach them at.

Brokers read both from annotations of their own pod, so they need no right on the API server.
"""

from __future__ import annotations

from headrace_operator.events import now
from headrace_operator.kube import Kube, path
from headrace_operator.manifests import Cluster
from headrace_operator.manifests.naming import MANAGER
from headrace_operator.manifests.pods import (
    EXTERNAL_ANNOTATION,
    RACK_ANNOTATION,
    STALE_ANNOTATION,
    TOLD_ANNOTATION,
    WAITING,
)
from headrace_operator.observed import Observed, stale
from headrace_operator.resources import ExternalListener
from headrace_operator.schema import Json

NO_RACK = "unknown"
"""The failure domain of a node without the label."""


def external_addresses(service: Json | None, listener: ExternalListener) -> list[str]:
    """Where clients outside reach a pod, host:port each; none while its Service has no address yet."""
    if service is None:
        return []
    port = service["spec"]["ports"][0]
    given = (listener.advertised_host or "").replace("{pod}", service["metadata"]["name"].removesuffix("-external"))
    if listener.type == "NodePort":
        number = port.get("nodePort")
        return [f"{given}:{number}"] if number else []
    ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress") or []
    hosts = [given] if given else [each.get("hostname") or each.get("ip") for each in ingress]
    return [f"{host}:{port['port']}" for host in hosts if host]


def news(pod: Json, addresses: list[str]) -> dict[str, str]:
    """What to write onto a pod that is reached there; the addresses of a load balancer come in any order."""
    known = pod["metadata"].get("annotations", {}).get(EXTERNAL_ANNOTATION)
    if not addresses or known in addresses:
        return {}
    told = {EXTERNAL_ANNOTATION: addresses[0]}
    if known is not None and not still_waits(pod):
        told[STALE_ANNOTATION] = known
    return told


def still_waits(pod: Json) -> bool:
    """Whether a pod that was told its place has not noticed.

    The kubelet now and then misses that an annotation came, and then looks again only after a minute and a half; any
    other change of the pod makes it look.
    """
    states = pod.get("status", {}).get("initContainerStatuses", [])
    return any(state["name"] == WAITING and "running" in state.get("state", {}) for state in states)


async def tell_pods(kube: Kube, cluster: Cluster, observed: Observed) -> str | None:
    """Writes what pods wait for; the answer names what is still missing."""
    missing = None
    key, listener = cluster.spec.brokers.rack_topology_key, cluster.spec.listeners.external
    services: dict[str, Json] = {}
    if listener is not None:
        own = {"app.kubernetes.io/instance": cluster.name, "app.kubernetes.io/managed-by": MANAGER}
        listed = await kube.list(path("v1", "Service", cluster.namespace), own)
        services = {service["metadata"]["name"]: service for service in listed}
    for component in ("broker", "coordinator"):
        for pod in observed.pods.get(component, []):
            about = pod["metadata"]
            known = about.get("annotations", {})
            told: dict[str, str] = {}
            node = pod["spec"].get("nodeName")
            if key and component == "broker" and RACK_ANNOTATION not in known and node:
                labels = (await kube.get(path("v1", "Node", None, node)) or {}).get("metadata", {}).get("labels", {})
                told[RACK_ANNOTATION] = labels.get(key, NO_RACK)
            if listener is not None:
                addresses = external_addresses(services.get(f"{about['name']}-external"), listener)
                told |= news(pod, addresses)
                if not addresses and EXTERNAL_ANNOTATION not in known:
                    missing = f"the Service {about['name']}-external has no address yet"
            if not told and missing is None and still_waits(pod):
                told[TOLD_ANNOTATION] = now()
            if told:
                where = path("v1", "Pod", cluster.namespace, about["name"])
                await kube.merge(where, {"metadata": {"annotations": told}})
            if component == "coordinator" and stale(pod) and "deletionTimestamp" not in about:
                # Kubernetes rolls these, and knows of templates only. Their budget lets one go at a time.
                await kube.evict(cluster.namespace, about["name"], about["uid"])
    return missing
