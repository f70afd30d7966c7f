"""What the operator may do on the API server, and why. `python -m headrace_operator.rbac` prints the rules as YAML."""

from __future__ import annotations

import sys

from headrace_operator.printing import yaml_text
from headrace_operator.resources import GROUP
from headrace_operator.schema import Json

_LOOK = ["get", "list"]
_APPLY = ["create", "patch"]


def _rule(group: str, resources: list[str], verbs: list[str], **more: list[str]) -> Json:
    return {"apiGroups": [group], "resources": resources, **more, "verbs": verbs}


def rules() -> list[Json]:
    """The rules of the operator's ClusterRole: what it calls, and nothing else."""
    definitions = [f"clusters.{GROUP}", f"topics.{GROUP}"]
    return [
        # Its own resources: followed, and their status told.
        _rule(GROUP, ["clusters", "topics"], [*_LOOK, "watch"]),
        _rule(GROUP, ["clusters/status", "topics/status"], ["patch"]),
        # Their definitions are applied at every start.
        _rule("apiextensions.k8s.io", ["customresourcedefinitions"], ["create"]),
        _rule("apiextensions.k8s.io", ["customresourcedefinitions"], ["get", "patch"], resourceNames=definitions),
        # What a Cluster is made of. Some of it goes before the Cluster does; the rest is the garbage collector's.
        _rule("", ["configmaps", "services"], [*_LOOK, *_APPLY, "delete"]),
        _rule("networking.k8s.io", ["networkpolicies"], [*_LOOK, *_APPLY, "delete"]),
        _rule("apps", ["statefulsets"], [*_LOOK, *_APPLY, "delete"]),
        _rule("apps", ["deployments"], [*_LOOK, *_APPLY]),
        _rule("policy", ["poddisruptionbudgets"], _APPLY),
        _rule("", ["serviceaccounts"], _APPLY),
        # Pods are looked at, told their place, and evicted one by one in a roll.
        _rule("", ["pods"], [*_LOOK, "patch"]),
        _rule("", ["pods/eviction"], ["create"]),
        # Volumes that grow.
        _rule("", ["persistentvolumeclaims"], [*_LOOK, "patch"]),
        _rule("storage.k8s.io", ["storageclasses"], ["get"]),
        # The failure domain of a pod's node.
        _rule("", ["nodes"], ["get"]),
        _rule("", ["events"], ["create", "patch"]),
    ]


def own_rules() -> list[Json]:
    """The rules of its Role in its own namespace: one of several operators works."""
    return [_rule("coordination.k8s.io", ["leases"], ["get", "create", "update"])]


def main() -> None:
    """Prints them."""
    sys.stdout.write(yaml_text({"everywhere": rules(), "own": own_rules()}))


if __name__ == "__main__":
    main()
