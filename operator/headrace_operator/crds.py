"""The CustomResourceDefinitions, made from `resources`. `python -m headrace_operator.crds` prints them as YAML."""

from __future__ import annotations

import sys

from headrace_operator import resources
from headrace_operator.printing import yaml_text
from headrace_operator.schema import Json, Rule, schema_of


def _column(name: str, path: str, kind: str = "string", doc: str = "", priority: int = 0) -> Json:
    found: Json = {"name": name, "type": kind, "jsonPath": path}
    if doc:
        found["description"] = doc
    if priority:
        found["priority"] = priority
    return found


def _condition(name: str, what: str = "status") -> str:
    return f'.status.conditions[?(@.type=="{name}")].{what}'


_AGE = _column("Age", ".metadata.creationTimestamp", "date")

CLUSTER_COLUMNS = [
    _column("Ready", _condition("Ready"), doc="Whether clients are served as the spec says"),
    _column("Brokers", ".status.brokersReady", doc="Brokers that serve, of those wanted"),
    _column(
        "Under-Replicated", ".status.underReplicatedPartitions", "integer", "Partitions with a replica out of sync"
    ),
    _column("Offline", ".status.offlinePartitions", "integer", "Partitions without a leader"),
    _column("Storage", ".status.storage", doc="Used and total"),
    _column("Doing", _condition("Progressing", "reason"), doc="What the operator is doing"),
    _column("Message", _condition("Ready", "message"), priority=1),
    _column("Version", ".status.version", priority=1),
    _AGE,
]
TOPIC_COLUMNS = [
    _column("Cluster", ".spec.cluster"),
    _column("Ready", _condition("Ready")),
    _column("Partitions", ".status.partitions", "integer"),
    _column("Replicas", ".status.replicas", "integer"),
    _column("In-Sync", ".status.inSync", doc="Partitions whose replicas are all in sync, of all"),
    _column("Moving", ".status.reassignment", doc="Partitions that still move, of all", priority=1),
    _column("Size", ".status.size"),
    _column("Reason", _condition("Ready", "reason"), priority=1),
    _column("Message", _condition("Ready", "message"), priority=1),
    _AGE,
]


def _crd(
    kind: str, short: str, spec: type, status: type, columns: list[Json], rule: Rule, doc: str, scale: Json | None
) -> Json:
    plural = f"{kind.lower()}s"
    subresources: Json = {"status": {}}
    if scale:
        subresources["scale"] = scale
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{resources.GROUP}"},
        "spec": {
            "group": resources.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["headrace"],
            },
            "versions": [
                {
                    "name": resources.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": subresources,
                    "additionalPrinterColumns": columns,
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "description": doc,
                            "required": ["spec"],
                            "properties": {
                                "apiVersion": {"type": "string"},
                                "kind": {"type": "string"},
                                "metadata": {"type": "object"},
                                "spec": schema_of(spec),
                                "status": schema_of(status),
                            },
                            "x-kubernetes-validations": [rule.schema()],
                        }
                    },
                }
            ],
        },
    }


def cluster_crd() -> Json:
    return _crd(
        "Cluster",
        "hrc",
        resources.ClusterSpec,
        resources.ClusterStatus,
        CLUSTER_COLUMNS,
        resources.CLUSTER_ROOT_RULE,
        "A Headrace cluster: brokers, controllers, coordinators, metadata servers and their etcd.",
        {
            "specReplicasPath": ".spec.brokers.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    )


def topic_crd() -> Json:
    return _crd(
        "Topic",
        "hrt",
        resources.TopicSpec,
        resources.TopicStatus,
        TOPIC_COLUMNS,
        resources.TOPIC_ROOT_RULE,
        "A topic of a Headrace cluster.",
        None,
    )


def crds() -> list[Json]:
    """Both definitions."""
    return [cluster_crd(), topic_crd()]


def main() -> None:
    """Prints them."""
    sys.stdout.write(yaml_text(*crds()))


if __name__ == "__main__":
    main()
