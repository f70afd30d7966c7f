"""Tells pods where they are: the failure domain of their node and the address that outside clients reach them at.

Brokers read both from annotations of their own pod, so they need no right on the API server.
"""

from __future__ import annotations

from headrace_operator.events import now
from headrace_operator.kube import Kube, path
from headrace_operator.manifests import Cluster
from headrace_operator.manifests.pods import EXTERNAL_ANNOTATION, RACK_ANNOTATION, TOLD_ANNOTATION, WAITING
from headrace_operator.observed import Observed
from headrace_operator.resources import ExternalListener
from headrace_operator.schema import Json

NO_RACK = "unknown"
"""The failure domain of a node without the label."""


def external_address(service: Json | None, listener: ExternalListener) -> str | None:
    """Where clients outside reach a pod, host:port; None while its Service has no address yet."""
    if service is None:
        return None
    port = service["spec"]["ports"][0]
    given = (listener.advertised_host or "").replace("{pod}", service["metadata"]["name"].removesuffix("-external"))
    if listener.type == "NodePort":
        number = port.get("nodePort")
        return f"{given}:{number}" if number else None
    ingress = (service.get("status", {}).get("loadBalancer", {}).get("ingress") or [{}])[0]
    host = given or ingress.get("hostname") or ingress.get("ip")
    return f"{host}:{port['port']}" if host else None


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
    for component in ("broker", "coordinator"):
        for pod in observed.pods.get(component, []):
            about = pod["metadata"]
            known = about.get("annotations", {})
            told: dict[str, str] = {}
            node = pod["spec"].get("nodeName")
            if key and component == "broker" and RACK_ANNOTATION not in known and node:
                labels = (await kube.get(path("v1", "Node", None, node)) or {}).get("metadata", {}).get("labels", {})
                told[RACK_ANNOTATION] = labels.get(key, NO_RACK)
            if listener is not None and EXTERNAL_ANNOTATION not in known:
                service = await kube.get(path("v1", "Service", cluster.namespace, f"{about['name']}-external"))
                if address := external_address(service, listener):
                    told[EXTERNAL_ANNOTATION] = address
                else:
                    missing = f"the Service {about['name']}-external has no address yet"
            if not told and missing is None and still_waits(pod):
                told[TOLD_ANNOTATION] = now()
            if told:
                where = path("v1", "Pod", cluster.namespace, about["name"])
                await kube.merge(where, {"metadata": {"annotations": told}})
    return missing
