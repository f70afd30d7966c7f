"""What the objects of a cluster are called, labelled and reached by."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace_operator.resources import API_VERSION, OWN_PORTS, ClusterSpec
from headrace_operator.schema import Json

NAME, MANAGER = "headrace", "headrace-operator"
KAFKA_PORT, GRPC_PORT, METRICS_PORT = OWN_PORTS
ETCD_CLIENT_PORT, ETCD_PEER_PORT, ETCD_METRICS_PORT = 2379, 2380, 2381
COMPONENTS = ("etcd", "metadata", "controller", "coordinator", "broker")
"""In the order in which a new image reaches them: what others lean on goes first."""


@dataclass(frozen=True)
class Cluster:
    """A Cluster resource as the manifests need it, and what only the operator knows."""

    name: str
    namespace: str
    uid: str
    spec: ClusterSpec
    image: str
    """The image of every service, unless `images` says otherwise for one."""
    images: dict[str, str] = field(default_factory=dict)
    broker_replicas: int | None = None
    """Brokers to run now, while the spec's number waits for a drain."""
    pull_secrets: tuple[str, ...] = ()
    restart: str | None = None

    def image_of(self, component: str) -> str:
        return self.images.get(component, self.image)

    def child(self, component: str) -> str:
        """Name of the objects of a component."""
        return f"{self.name}-{component}"

    @property
    def service_account(self) -> str:
        """Whom the pods come as. Not the cluster's own name: `default` is the namespace's."""
        return self.child("services")

    def host(self, component: str) -> str:
        """The name of a component's Service in DNS, good in every namespace."""
        return f"{self.child(component)}.{self.namespace}.svc"

    def selector(self, component: str) -> dict[str, str]:
        return {
            "app.kubernetes.io/name": NAME,
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/component": component,
        }

    def labels(self, component: str) -> dict[str, str]:
        return self.selector(component) | {"app.kubernetes.io/managed-by": MANAGER}

    def object(self, api_version: str, kind: str, name: str, component: str, **content: object) -> Json:
        """An object of this cluster: named, labelled, and owned by the Cluster resource so that it goes with it."""
        owner = {
            "apiVersion": API_VERSION,
            "kind": "Cluster",
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }
        return {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": self.labels(component),
                "ownerReferences": [owner],
            },
            **content,
        }

    @property
    def managed_etcd(self) -> bool:
        return self.spec.etcd.external is None
