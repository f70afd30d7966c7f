"""What the operator may do on the API server, and why. `python -m headrace_operator.rbac` prints the rules as YAML."""

from __future__ import annotations

import sys

from headrace_operator.printing import yaml_text
from headrace_operator.resources import GROUP
from headrace_operator.schema import Json

_READ = ["get", "list", "watch"]
_APPLY = ["get", "list", "watch", "create", "patch", "delete"]


def _rule(group: str, resources: list[str], verbs: list[str], **more: list[str]) -> Json:
    return {"apiGroups": [group], "resources": resources, **more, "verbs": verbs}


def rules() -> list[Json]:
    """The rules of the operator's ClusterRole."""
    definitions = [f"clusters.{GROUP}", f"topics.{GROUP}"]
    return [
        # Its own resources: followed, and their status told.
        _rule(GROUP, ["clusters", "topics"], _READ),
        _rule(GROUP, ["clusters/status", "topics/status"], ["get", "patch"]),
        _rule(GROUP, ["clusters/finalizers"], ["update"]),
        # Their definitions are applied at every start.
        _rule("apiextensions.k8s.io", ["customresourcedefinitions"], ["list", "watch", "create"]),
        _rule("apiextensions.k8s.io", ["customresourcedefinitions"], ["get", "patch"], resourceNames=definitions),
        # What a Cluster is made of.
        _rule("", ["configmaps", "services", "serviceaccounts"], _APPLY),
        _rule("apps", ["statefulsets", "deployments"], _APPLY),
        _rule("policy", ["poddisruptionbudgets"], _APPLY),
        _rule("networking.k8s.io", ["networkpolicies"], _APPLY),
        # Pods are looked at, told their place, and evicted one by one in a roll.
        _rule("", ["pods"], [*_READ, "patch", "delete"]),
        _rule("", ["pods/eviction"], ["create"]),
        # Volumes that grow.
        _rule("", ["persistentvolumeclaims"], [*_READ, "patch"]),
        _rule("storage.k8s.io", ["storageclasses"], ["get"]),
        # The failure domain of a pod's node; whether a namespace is going away.
        _rule("", ["nodes", "namespaces"], _READ),
        _rule("", ["events"], ["create", "patch"]),
        # One of several operators works.
        _rule("coordination.k8s.io", ["leases"], ["get", "create", "update", "patch"]),
    ]


def main() -> None:
    """Prints them."""
    sys.stdout.write(yaml_text(rules()))


if __name__ == "__main__":
    main()
