"""Services: headless ones that give pods their names, those that clients use, and the ways in from outside."""

from __future__ import annotations

from headrace_operator.manifests.naming import (
    ETCD_CLIENT_PORT,
    ETCD_PEER_PORT,
    GRPC_PORT,
    KAFKA_PORT,
    METRICS_PORT,
    Cluster,
)
from headrace_operator.manifests.pods import BOOTSTRAP_LABEL
from headrace_operator.manifests.workloads import replicas
from headrace_operator.resources import ExternalListener
from headrace_operator.schema import Json


def headless(cluster: Cluster, component: str) -> Json:
    """Names for the pods of a StatefulSet, also while they are not ready: a controller talks to brokers that start."""
    ports = {"grpc": GRPC_PORT}
    if component in ("broker", "coordinator"):
        ports["kafka"] = KAFKA_PORT
    if cluster.spec.metrics.enabled:
        ports["metrics"] = METRICS_PORT
    if component == "etcd":
        ports = {"client": ETCD_CLIENT_PORT, "peer": ETCD_PEER_PORT}
    return cluster.object(
        "v1",
        "Service",
        cluster.child(component),
        component,
        spec={
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": cluster.selector(component),
            "ports": [_port(name, port) for name, port in ports.items()],
        },
    )


def metadata(cluster: Cluster) -> Json:
    """Any metadata server: services and native clients start here."""
    return cluster.object(
        "v1",
        "Service",
        cluster.child("metadata"),
        "metadata",
        spec={"selector": cluster.selector("metadata"), "ports": [_port("grpc", GRPC_PORT, "metadata")]},
    )


def bootstrap(cluster: Cluster) -> Json:
    """Where clients connect first: Kafka's at any broker, native ones at any metadata server.

    Both kinds of pods carry the label; a pod serves the ports whose names it has.
    """
    selector = {
        "app.kubernetes.io/name": cluster.selector("broker")["app.kubernetes.io/name"],
        "app.kubernetes.io/instance": cluster.name,
        BOOTSTRAP_LABEL: "true",
    }
    return cluster.object(
        "v1",
        "Service",
        cluster.child("bootstrap"),
        "bootstrap",
        spec={"selector": selector, "ports": [_port("kafka", KAFKA_PORT), _port("grpc", GRPC_PORT, "metadata")]},
    )


def external(cluster: Cluster) -> list[Json]:
    """One Service for each broker and coordinator, and one for the first connection."""
    listener = cluster.spec.listeners.external
    if listener is None:
        return []
    found = [_external(cluster, listener, "external-bootstrap", "broker", cluster.selector("broker"))]
    for component in ("broker", "coordinator"):
        for ordinal in range(replicas(cluster, component)):
            selector = {
                **cluster.selector(component),
                "statefulset.kubernetes.io/pod-name": f"{cluster.child(component)}-{ordinal}",
            }
            found.append(_external(cluster, listener, f"{component}-{ordinal}-external", component, selector))
    return found


def _external(
    cluster: Cluster, listener: ExternalListener, suffix: str, component: str, selector: dict[str, str]
) -> Json:
    found = cluster.object(
        "v1",
        "Service",
        cluster.child(suffix),
        component,
        spec={
            "type": listener.type,
            "externalTrafficPolicy": "Cluster",
            "publishNotReadyAddresses": suffix != "external-bootstrap",
            "selector": selector,
            "ports": [_port("kafka", listener.port, "external")],
        },
    )
    if listener.annotations:
        found["metadata"]["annotations"] = dict(listener.annotations)
    return found


def _port(name: str, port: int, target: str | None = None) -> Json:
    return {"name": name, "port": port, "targetPort": target or name, "protocol": "TCP"}
