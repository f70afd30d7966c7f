"""The custom resources Cluster and Topic: every field, bound, rule and default, in one place.

The CRDs, the chart's copies of them, the reference page and the types the operator works with all come from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headrace_operator.schema import CONFIG_MAP, FREE_OBJECT, Json, Rule, spec_field

GROUP, VERSION = "headrace.dev", "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
PREFIX = GROUP
"""Of every annotation and label that is ours."""
RESTART_ANNOTATION = f"{PREFIX}/restart"
"""On a Cluster: a new value restarts every broker, one at a time."""

OWN_PORTS = (9092, 9094, 9404)
"""Where every broker listens: Kafka's clients inside, gRPC, metrics."""
_QUANTITY = Rule(
    "self.matches('^[0-9]+([.][0-9]+)?([KMGTPE]i|[kMGTPE])?$')",
    "a size is a number of bytes with Ki, Mi, Gi, Ti, Pi, Ei or k, M, G, T, P, E after it, as in 10Gi",
)
_GROWS = Rule(
    "quantity(self).compareTo(quantity(oldSelf)) >= 0",
    "a volume can grow, never shrink: give at least the size it has",
)
_SAME_CLASS = Rule(
    "has(self.storageClass) ? has(oldSelf.storageClass) && self.storageClass == oldSelf.storageClass : "
    "!has(oldSelf.storageClass)",
    "the storage class of a volume cannot be given, taken away or changed later: make a new cluster",
)
OWNED_CONFIGS = (
    "advertised.grpc.listener",
    "advertised.listeners",
    "broker.id",
    "broker.rack",
    "cluster.id",
    "etcd.endpoints",
    "etcd.ssl.ca.file",
    "etcd.ssl.certificate.file",
    "etcd.ssl.key.file",
    "grpc.listener",
    "listeners",
    "log.dir",
    "log.dirs",
    "metadata.servers",
    "metrics.port",
    "node.id",
)
"""Settings that follow from the rest of the spec."""

_RESOURCES: Json = {
    "type": "object",
    "properties": {
        kind: {
            "type": "object",
            "additionalProperties": {
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                "x-kubernetes-int-or-string": True,
            },
        }
        for kind in ("requests", "limits")
    },
}
_CONDITIONS: Json = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": {
        "type": "object",
        "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        "properties": {
            "type": {"type": "string"},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "observedGeneration": {"type": "integer", "format": "int64"},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "reason": {"type": "string"},
            "message": {"type": "string"},
        },
    },
}
_TEMPLATE_DOC = (
    "Merged over the pod template: metadata.labels, metadata.annotations and any field of a pod's spec; "
    "containers are merged by name."
)


@dataclass(frozen=True)
class Volume:
    """A persistent volume."""

    RULES: ClassVar[tuple[Rule, ...]] = (_SAME_CLASS,)
    size: str = spec_field(
        "Its size. A claim that something else grew stays as it is.", maxLength=32, rules=(_QUANTITY, _GROWS)
    )
    storage_class: str | None = spec_field(
        "Its StorageClass; absent: the cluster's default.", default=None, maxLength=253
    )


@dataclass(frozen=True)
class LogVolume(Volume):
    """A persistent volume with a log directory on it."""

    name: str = spec_field(
        "Its name, part of the claims' names.", default="data", pattern="^[a-z]([-a-z0-9]*[a-z0-9])?$", maxLength=20
    )


@dataclass(frozen=True)
class ClaimRetention:
    """What becomes of volume claims whose pod is gone, in the words of a StatefulSet."""

    when_deleted: str = spec_field("When the Cluster is deleted.", default="Retain", enum=["Retain", "Delete"])
    when_scaled: str = spec_field(
        "When a broker is removed; it was drained before.", default="Retain", enum=["Retain", "Delete"]
    )


@dataclass(frozen=True)
class Brokers:
    """The brokers: they hold the logs."""

    replicas: int = spec_field(
        "How many. More: partitions are spread onto the new ones. Fewer: those that leave are drained first.",
        default=3,
        minimum=1,
        maximum=1000,
    )
    storage: tuple[LogVolume, ...] = spec_field(
        "The volumes of each; a log directory on each of them.",
        factory=lambda: (LogVolume(size="10Gi"),),
        minItems=1,
        maxItems=16,
        rules=(
            Rule(
                "oldSelf.all(old, self.exists(new, new.name == old.name))",
                "volumes can be added, never taken away or renamed",
            ),
        ),
        key="name",
    )
    claim_retention: ClaimRetention = spec_field("What becomes of claims that lost their pod.", factory=ClaimRetention)
    resources: Json | None = spec_field(
        "CPU and memory of each; one core is what a broker uses.", default=None, whole=_RESOURCES
    )
    rack_topology_key: str | None = spec_field(
        "Label of nodes that names their failure domain, as in topology.kubernetes.io/zone: pods spread over it, and "
        "replicas of a partition too.",
        default=None,
        maxLength=317,
    )
    template: Json | None = spec_field(_TEMPLATE_DOC, default=None, whole=FREE_OBJECT)


@dataclass(frozen=True)
class Controllers:
    """The controllers: one is active, the others stand by."""

    replicas: int = spec_field("How many.", default=2, minimum=1, maximum=9)
    resources: Json | None = spec_field("CPU and memory of each.", default=None, whole=_RESOURCES)
    template: Json | None = spec_field(_TEMPLATE_DOC, default=None, whole=FREE_OBJECT)


@dataclass(frozen=True)
class Coordinators:
    """The group coordinators: they share the consumer groups."""

    replicas: int = spec_field("How many.", default=2, minimum=1, maximum=100)
    resources: Json | None = spec_field("CPU and memory of each.", default=None, whole=_RESOURCES)
    template: Json | None = spec_field(_TEMPLATE_DOC, default=None, whole=FREE_OBJECT)


@dataclass(frozen=True)
class Metadata:
    """The metadata servers: they tell everyone what the cluster looks like."""

    replicas: int = spec_field("How many.", default=2, minimum=1, maximum=100)
    resources: Json | None = spec_field("CPU and memory of each.", default=None, whole=_RESOURCES)
    template: Json | None = spec_field(_TEMPLATE_DOC, default=None, whole=FREE_OBJECT)


@dataclass(frozen=True)
class ManagedEtcd:
    """An etcd of this cluster's own."""

    replicas: int = spec_field(
        "How many members: 1, 3 or 5. It cannot be changed once they run.", default=3, enum=[1, 3, 5]
    )
    storage: Volume = spec_field("The volume of each member.", factory=lambda: Volume(size="2Gi"))
    resources: Json | None = spec_field("CPU and memory of each.", default=None, whole=_RESOURCES)
    template: Json | None = spec_field(_TEMPLATE_DOC, default=None, whole=FREE_OBJECT)


_ETCD = ManagedEtcd()


@dataclass(frozen=True)
class EtcdTls:
    """How to meet an etcd that wants TLS."""

    secret_name: str = spec_field("Secret with ca.crt and, for a client certificate, tls.crt and tls.key.", minLength=1)


@dataclass(frozen=True)
class ExternalEtcd:
    """An etcd that is already there."""

    endpoints: tuple[str, ...] = spec_field(
        "Its members, host:port each.",
        whole={"type": "array", "items": {"type": "string", "maxLength": 260}, "minItems": 1, "maxItems": 15},
        rules=(
            Rule(
                r"self.all(each, each.matches('^([A-Za-z0-9._-]+|\\[[0-9A-Fa-f:.]+\\]):[0-9]{1,5}$'))",
                "an etcd endpoint is host:port without a scheme, as in etcd-0.etcd:2379",
            ),
        ),
    )
    tls: EtcdTls | None = spec_field("Absent: plain text.", default=None)


@dataclass(frozen=True)
class Etcd:
    """The registry: either managed or external."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("!(has(self.managed) && has(self.external))", "give either etcd.managed or etcd.external, not both"),
        Rule(
            "has(self.external) == has(oldSelf.external)",
            "a cluster cannot move between a managed and an external etcd: make a new cluster",
        ),
        # Without `managed` there is an etcd all the same, with its defaults: these compare what runs.
        Rule(
            f"(has(self.managed) ? self.managed.replicas : {_ETCD.replicas}) == "
            f"(has(oldSelf.managed) ? oldSelf.managed.replicas : {_ETCD.replicas})",
            "the number of etcd members cannot be changed once they run",
        ),
        Rule(
            "has(self.managed) == has(oldSelf.managed) || (has(self.managed) ? "
            f"quantity(self.managed.storage.size).compareTo(quantity('{_ETCD.storage.size}')) >= 0 : "
            f"quantity('{_ETCD.storage.size}').compareTo(quantity(oldSelf.managed.storage.size)) >= 0)",
            _GROWS.message,
        ),
        Rule(
            "has(self.managed) == has(oldSelf.managed) || (has(self.managed) ? "
            "!has(self.managed.storage.storageClass) : !has(oldSelf.managed.storage.storageClass))",
            _SAME_CLASS.message,
        ),
    )
    managed: ManagedEtcd | None = spec_field("An etcd of its own; this is the default.", default=None)
    external: ExternalEtcd | None = spec_field("An etcd that is already there.", default=None)


@dataclass(frozen=True)
class ExternalListener:
    """A way in from outside the Kubernetes cluster: a Service for each broker and coordinator."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.type != 'NodePort' || has(self.advertisedHost)",
            "a NodePort listener needs advertisedHost: an address of your nodes that clients can reach",
        ),
        Rule(
            "self.type != 'LoadBalancer' || !has(self.advertisedHost) || self.advertisedHost.contains('{pod}')",
            "every load balancer has an address of its own: give an advertisedHost with {pod} in it, or none",
        ),
    )
    type: str = spec_field("The type of the Services.", enum=["NodePort", "LoadBalancer"])
    port: int = spec_field(
        "The port brokers listen on for it.",
        default=9095,
        minimum=1024,
        maximum=65535,
        rules=(
            Rule(
                f"!(self in {list(OWN_PORTS)})",
                f"brokers listen on {', '.join(map(str, OWN_PORTS))} already: give another port, as in 9095",
            ),
        ),
    )
    advertised_host: str | None = spec_field(
        "Where clients are told to connect, {pod} standing for a pod's name; absent: the load balancer's address.",
        default=None,
        maxLength=253,
    )
    annotations: Json | None = spec_field(
        "For the Services, as load balancers want them.",
        default=None,
        whole={"type": "object", "additionalProperties": {"type": "string"}},
    )


@dataclass(frozen=True)
class Listeners:
    """How clients come in. Inside the Kubernetes cluster they always can, on port 9092."""

    external: ExternalListener | None = spec_field("A way in from outside.", default=None)


@dataclass(frozen=True)
class Metrics:
    """Prometheus metrics."""

    enabled: bool = spec_field("Serve them on the port named metrics.", default=True)


@dataclass(frozen=True)
class NetworkPolicies:
    """Who may talk to the pods."""

    enabled: bool = spec_field("Make NetworkPolicies.", default=True)
    client_from: tuple[Json, ...] | None = spec_field(
        "Peers (as in a NetworkPolicy's from) that may use the Kafka and gRPC ports; absent: everyone.",
        default=None,
        whole={"type": "array", "items": FREE_OBJECT, "maxItems": 64},
    )


@dataclass(frozen=True)
class ClusterSpec:
    """What a cluster shall be."""

    image: str | None = spec_field(
        "The image of every service; absent: the operator's own version of it.", default=None
    )
    image_pull_policy: str = spec_field(
        "As in a pod.", default="IfNotPresent", enum=["Always", "IfNotPresent", "Never"]
    )
    image_pull_secrets: tuple[str, ...] = spec_field(
        "Names of Secrets to pull the image with.", default=(), maxItems=16
    )
    brokers: Brokers = spec_field("The brokers.", factory=Brokers)
    controllers: Controllers = spec_field("The controllers.", factory=Controllers)
    coordinators: Coordinators = spec_field("The group coordinators.", factory=Coordinators)
    metadata: Metadata = spec_field("The metadata servers.", factory=Metadata)
    etcd: Etcd = spec_field("The registry.", factory=Etcd)
    listeners: Listeners = spec_field("How clients come in.", factory=Listeners)
    config: Json = spec_field(
        "Settings by Kafka's names. Those that running brokers can take are applied live, the others by a roll.",
        factory=dict,
        whole=CONFIG_MAP,
        rules=(
            Rule(
                f"self.all(name, !(name in {list(OWNED_CONFIGS)!r}))",
                f"these settings follow from the rest of the spec and cannot be given: {', '.join(OWNED_CONFIGS)}",
            ),
        ),
    )
    metrics: Metrics = spec_field("Prometheus metrics.", factory=Metrics)
    network_policies: NetworkPolicies = spec_field("Who may talk to the pods.", factory=NetworkPolicies)


@dataclass(frozen=True)
class BrokerStatus:
    """One broker as it is."""

    id: int = spec_field("Its id, which is its pod's ordinal.")
    pod: str = spec_field("Its pod.")
    state: str = spec_field("Running, Starting, Restarting, Draining, Leaving, Down or Missing.")
    image: str | None = spec_field("The image it runs.", default=None)
    leaders: int = spec_field("Partitions it leads.", default=0)
    replicas: int = spec_field("Replicas it holds.", default=0)
    out_of_sync: int = spec_field("Replicas it holds that are not in sync.", default=0)
    rack: str | None = spec_field("Its failure domain.", default=None)
    storage_capacity: str | None = spec_field("Size of its volumes as its file systems say.", default=None)
    storage_used: str | None = spec_field("How much of it is used.", default=None)


@dataclass(frozen=True)
class Addresses:
    """Where clients connect first."""

    kafka: str = spec_field("For Kafka's clients.")
    grpc: str = spec_field("For native clients.")
    external: str | None = spec_field("For Kafka's clients outside.", default=None)


@dataclass(frozen=True)
class ClusterStatus:
    """What a cluster is."""

    observed_generation: int = spec_field("The generation of the spec that this is about.", default=0)
    conditions: tuple[Json, ...] = spec_field(
        "Ready, Progressing, Degraded, RolloutSafe.", default=(), whole=_CONDITIONS
    )
    replicas: int = spec_field("Brokers there are.", default=0)
    selector: str = spec_field("Selects the broker pods, for the scale subresource.", default="")
    brokers_ready: str = spec_field("Brokers that serve, of those wanted.", default="")
    brokers: tuple[BrokerStatus, ...] = spec_field("Each broker.", default=())
    bootstrap: Addresses | None = spec_field("Where clients connect first.", default=None)
    version: str | None = spec_field("The image that every service runs; during an upgrade the old one.", default=None)
    controller: int | None = spec_field("The active controller.", default=None)
    topics: int = spec_field("Topics there are.", default=0)
    partitions: int = spec_field("Partitions there are.", default=0)
    under_replicated_partitions: int = spec_field("Partitions with a replica that is not in sync.", default=0)
    under_min_isr_partitions: int = spec_field("Partitions that refuse acks=all.", default=0)
    offline_partitions: int = spec_field("Partitions without a leader.", default=0)
    moving_partitions: int = spec_field("Partitions that move between brokers.", default=0)
    storage: str | None = spec_field("Used and total space of all brokers.", default=None)
    live_config: tuple[str, ...] = spec_field("Settings that were applied to running brokers.", default=())
    spreading: tuple[int, ...] = spec_field("New brokers that get their share of partitions.", default=())
    rolling: bool = spec_field("Brokers restart one after the other, or leaders have to be given back.", default=False)


@dataclass(frozen=True)
class TopicSpec:
    """What a topic shall be."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.name) == has(oldSelf.name) && (!has(self.name) || self.name == oldSelf.name)",
            "the name of a topic cannot be changed: make a new Topic",
        ),
        Rule(
            "!has(oldSelf.partitions) || (has(self.partitions) && self.partitions >= oldSelf.partitions)",
            "partitions can be added, never taken away: give at least as many as before",
        ),
        Rule(
            "!has(self.replicas) || !has(self.config) || !('min.insync.replicas' in self.config) || "
            "!string(self.config['min.insync.replicas']).matches('^[0-9]{1,5}$') || "
            "int(string(self.config['min.insync.replicas'])) <= self.replicas",
            "min.insync.replicas is more than replicas: give at most as many",
        ),
    )
    cluster: str = spec_field(
        "The Cluster it lives in, in the same namespace.",
        minLength=1,
        maxLength=253,
        rules=(Rule("self == oldSelf", "the cluster of a topic cannot be changed: make a new Topic"),),
    )
    name: str | None = spec_field(
        "Its name in Kafka; absent: the name of the Topic.",
        default=None,
        maxLength=249,
        rules=(
            Rule(
                "self.matches('^[a-zA-Z0-9._-]+$') && self != '.' && self != '..'",
                "a topic's name has 1 to 249 letters, digits, '.', '_' and '-', and is neither '.' nor '..'",
            ),
        ),
    )
    partitions: int | None = spec_field(
        "How many partitions; absent: the cluster's num.partitions.", default=None, minimum=1, maximum=100000
    )
    replicas: int | None = spec_field(
        "How many replicas each; absent: the cluster's default.replication.factor. A change moves data.",
        default=None,
        minimum=1,
        maximum=1000,
    )
    config: Json = spec_field(
        "Settings by Kafka's names; everything else has its default.", factory=dict, whole=CONFIG_MAP
    )
    deletion_policy: str = spec_field(
        "What becomes of the topic and its data when this resource is deleted.",
        default="Retain",
        enum=["Retain", "Delete"],
    )


@dataclass(frozen=True)
class TopicStatus:
    """What a topic is."""

    observed_generation: int = spec_field("The generation of the spec that this is about.", default=0)
    conditions: tuple[Json, ...] = spec_field("Ready and Progressing.", default=(), whole=_CONDITIONS)
    topic_name: str | None = spec_field("Its name in Kafka.", default=None)
    topic_id: str | None = spec_field("Its id; a topic that was made again has another.", default=None)
    partitions: int | None = spec_field("Partitions it has.", default=None)
    replicas: int | None = spec_field("Replicas each partition has, once moves are done.", default=None)
    in_sync: str | None = spec_field("Partitions whose replicas are all in sync, of all.", default=None)
    reassignment: str | None = spec_field("Partitions that still move, of all.", default=None)
    size: str | None = spec_field("Bytes of one copy of its data, rounded; absent: none.", default=None)


TOPIC_ROOT_RULE = Rule(
    "has(self.spec.name) || size(self.metadata.name) <= 249",
    "a topic's name has at most 249 characters: give a shorter spec.name",
)
CLUSTER_ROOT_RULE = Rule(
    "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 40",
    "a cluster's name has at most 40 lower-case letters, digits and '-', and starts with a letter",
)
