"""NetworkPolicies: each component takes connections on its ports from those who need it, and from nobody else."""

from __future__ import annotations

from headrace_operator.manifests.naming import (
    ETCD_CLIENT_PORT,
    ETCD_METRICS_PORT,
    ETCD_PEER_PORT,
    GRPC_PORT,
    KAFKA_PORT,
    MANAGER,
    METRICS_PORT,
    Cluster,
)
from headrace_operator.schema import Json


def network_policy(cluster: Cluster, component: str) -> Json:
    """The policy of one component."""
    return cluster.object(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        cluster.child(component),
        component,
        spec={
            "podSelector": {"matchLabels": cluster.selector(component)},
            "policyTypes": ["Ingress"],
            "ingress": _etcd(cluster) if component == "etcd" else _service(cluster, component),
        },
    )


def _etcd(cluster: Cluster) -> list[Json]:
    return [
        {"from": [_own(cluster)], "ports": _ports(ETCD_CLIENT_PORT)},
        {"from": [{"podSelector": {"matchLabels": cluster.selector("etcd")}}], "ports": _ports(ETCD_PEER_PORT)},
        {"ports": _ports(ETCD_METRICS_PORT)},
    ]


def _service(cluster: Cluster, component: str) -> list[Json]:
    spec = cluster.spec
    ports = [GRPC_PORT]
    if component in ("broker", "coordinator"):
        ports.append(KAFKA_PORT)
        if spec.listeners.external is not None:
            ports.append(spec.listeners.external.port)
    clients: Json = {"ports": _ports(*ports)}
    if spec.network_policies.client_from is not None:
        operator = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/name": MANAGER}}}
        clients["from"] = [_own(cluster), operator, *spec.network_policies.client_from]
    found = [clients]
    if spec.metrics.enabled:
        found.append({"ports": _ports(METRICS_PORT)})
    return found


def _own(cluster: Cluster) -> Json:
    own = {k: v for k, v in cluster.selector("").items() if k != "app.kubernetes.io/component"}
    return {"podSelector": {"matchLabels": own}}


def _ports(*numbers: int) -> list[Json]:
    return [{"port": number, "protocol": "TCP"} for number in numbers]
