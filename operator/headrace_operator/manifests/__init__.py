"""From a Cluster's spec to the objects it is made of: a pure function, compared as a whole in its tests."""

from __future__ import annotations

from headrace_operator.manifests.naming import COMPONENTS, Cluster
from headrace_operator.manifests.policies import network_policy
from headrace_operator.manifests.services import bootstrap, external, headless, metadata
from headrace_operator.manifests.settings import config_map
from headrace_operator.manifests.workloads import disruption_budget, workload
from headrace_operator.schema import Json

__all__ = ["COMPONENTS", "Cluster", "manifests", "own_components"]


def own_components(cluster: Cluster) -> tuple[str, ...]:
    """The components that run as pods of this cluster, in the order of upgrades."""
    return COMPONENTS if cluster.managed_etcd else COMPONENTS[1:]


def manifests(cluster: Cluster) -> list[Json]:
    """Every object of a cluster, what others need first."""
    found = [
        cluster.object("v1", "ServiceAccount", cluster.service_account, "cluster", automountServiceAccountToken=False),
        config_map(cluster),
        bootstrap(cluster),
        metadata(cluster),
        *external(cluster),
    ]
    for component in own_components(cluster):
        if component != "metadata":
            found.append(headless(cluster, component))
        found.append(disruption_budget(cluster, component))
        if cluster.spec.network_policies.enabled:
            found.append(network_policy(cluster, component))
        found.append(workload(cluster, component))
    return found
