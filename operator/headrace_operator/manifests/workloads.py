"""StatefulSets, the metadata Deployment and their PodDisruptionBudgets."""

from __future__ import annotations

from headrace_operator.manifests.naming import Cluster
from headrace_operator.manifests.pods import pod_template
from headrace_operator.resources import ManagedEtcd, Volume
from headrace_operator.schema import Json


def workload(cluster: Cluster, component: str) -> Json:
    """The object that runs a component's pods."""
    if component == "metadata":
        return _deployment(cluster)
    return _stateful_set(cluster, component)


def replicas(cluster: Cluster, component: str) -> int:
    """Pods a component shall have now."""
    spec = cluster.spec
    match component:
        case "broker":
            return spec.brokers.replicas if cluster.broker_replicas is None else cluster.broker_replicas
        case "controller":
            return spec.controllers.replicas
        case "coordinator":
            return spec.coordinators.replicas
        case "metadata":
            return spec.metadata.replicas
        case _:
            return (spec.etcd.managed or ManagedEtcd()).replicas


def _stateful_set(cluster: Cluster, component: str) -> Json:
    # Brokers are restarted by the operator, which knows when it is safe; the others by Kubernetes, one at a time.
    strategy: Json = {"type": "OnDelete"} if component == "broker" else {"type": "RollingUpdate"}
    spec: Json = {
        "serviceName": cluster.child(component),
        "replicas": replicas(cluster, component),
        "podManagementPolicy": "Parallel",
        "updateStrategy": strategy,
        "selector": {"matchLabels": cluster.selector(component)},
        "template": pod_template(cluster, component),
    }
    if claims := claim_templates(cluster, component):
        retention = cluster.spec.brokers.claim_retention
        spec["volumeClaimTemplates"] = claims
        spec["persistentVolumeClaimRetentionPolicy"] = {
            "whenDeleted": retention.when_deleted,
            "whenScaled": retention.when_scaled if component == "broker" else "Retain",
        }
    return cluster.object("apps/v1", "StatefulSet", cluster.child(component), component, spec=spec)


def claim_templates(cluster: Cluster, component: str) -> list[Json]:
    """The volume claims of each pod."""
    if component == "broker":
        return [_claim(cluster, component, volume.name, volume) for volume in cluster.spec.brokers.storage]
    if component == "etcd":
        return [_claim(cluster, component, "data", (cluster.spec.etcd.managed or ManagedEtcd()).storage)]
    return []


def _claim(cluster: Cluster, component: str, name: str, volume: Volume) -> Json:
    spec: Json = {
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": "Filesystem",
        "resources": {"requests": {"storage": volume.size}},
    }
    if volume.storage_class is not None:
        spec["storageClassName"] = volume.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "labels": cluster.selector(component)},
        "spec": spec,
    }


def _deployment(cluster: Cluster) -> Json:
    return cluster.object(
        "apps/v1",
        "Deployment",
        cluster.child("metadata"),
        "metadata",
        spec={
            "replicas": replicas(cluster, "metadata"),
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "selector": {"matchLabels": cluster.selector("metadata")},
            "template": pod_template(cluster, "metadata"),
        },
    )


def disruption_budget(cluster: Cluster, component: str) -> Json:
    """A node that is drained takes one pod of a component at a time."""
    return cluster.object(
        "policy/v1",
        "PodDisruptionBudget",
        cluster.child(component),
        component,
        spec={
            "maxUnavailable": 1,
            "selector": {"matchLabels": cluster.selector(component)},
            # A pod that is not ready protects nothing: it may always be evicted.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    )
