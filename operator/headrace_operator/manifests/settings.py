"""The settings files of the services, from a Cluster's spec. What differs between pods comes from their environment."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from headrace.cluster.broker_keys import BROKER_KEYS, TOPIC_SYNONYMS
from headrace.config import InvalidConfig
from headrace_operator.manifests.naming import (
    ETCD_CLIENT_PORT,
    GRPC_PORT,
    KAFKA_PORT,
    METRICS_PORT,
    Cluster,
)
from headrace_operator.resources import ManagedEtcd
from headrace_operator.schema import Json

LIVE = frozenset(
    synonym.name for names in TOPIC_SYNONYMS.values() for synonym in names if BROKER_KEYS[synonym.name].live
) | {"leader.replication.throttled.rate", "follower.replication.throttled.rate"}
"""Settings that running brokers take at once. Kafka calls more of them dynamic; those need a restart here."""

_METADATA_NAMES = ("metadata.", "etcd.", "broker.session.")
DATA_ROOT = "/var/lib/headrace"
ETCD_TLS_DIR = "/etc/headrace-etcd-tls"


def texts(config: Mapping[str, object]) -> dict[str, str]:
    """Settings as text; numbers may be written without quotes."""
    return {name: str(value) for name, value in config.items()}


def live_config(config: Mapping[str, object]) -> dict[str, str]:
    """What is given to running brokers, in the one spelling the cluster keeps."""
    return {
        name: BROKER_KEYS[name].render(BROKER_KEYS[name].parse(text))
        for name, text in sorted(texts(config).items())
        if name in LIVE
    }


def wrong_config(config: Mapping[str, object]) -> str | None:
    """What is wrong with a Cluster's settings, in a sentence; None when nothing is."""
    wrong = []
    for name, text in sorted(texts(config).items()):
        try:
            BROKER_KEYS.parse({name: text})
        except InvalidConfig as error:
            wrong.append(error.message)
    return "; ".join(wrong) or None


def etcd_members(cluster: Cluster) -> list[str]:
    """The pods of a managed etcd."""
    managed = cluster.spec.etcd.managed or ManagedEtcd()
    return [f"{cluster.child('etcd')}-{ordinal}" for ordinal in range(managed.replicas)]


def etcd_endpoints(cluster: Cluster) -> list[str]:
    """Where etcd answers, host:port each."""
    external = cluster.spec.etcd.external
    if external is not None:
        return list(external.endpoints)
    return [f"{member}.{cluster.host('etcd')}:{ETCD_CLIENT_PORT}" for member in etcd_members(cluster)]


def properties(cluster: Cluster, component: str) -> str:
    """The settings file of a component."""
    spec = cluster.spec
    values = {name: text for name, text in texts(spec.config).items() if name not in LIVE}
    if component == "metadata":
        # It needs few of them, and need not start again for the others.
        values = {name: text for name, text in values.items() if name.startswith(_METADATA_NAMES)}
    values |= {
        "cluster.id": f"{cluster.namespace}.{cluster.name}",
        "etcd.endpoints": ",".join(etcd_endpoints(cluster)),
        "grpc.listener": f"0.0.0.0:{GRPC_PORT}",
        "metadata.servers": f"{cluster.host('metadata')}:{GRPC_PORT}",
        "metrics.port": str(METRICS_PORT if spec.metrics.enabled else 0),
    }
    if spec.etcd.external is not None and spec.etcd.external.tls is not None:
        values["etcd.ssl.ca.file"] = f"{ETCD_TLS_DIR}/ca.crt"
        values["etcd.ssl.certificate.file"] = f"{ETCD_TLS_DIR}/tls.crt"
        values["etcd.ssl.key.file"] = f"{ETCD_TLS_DIR}/tls.key"
    if component in ("broker", "coordinator"):
        listeners = [f"PLAINTEXT://0.0.0.0:{KAFKA_PORT}"]
        if spec.listeners.external is not None:
            listeners.append(f"EXTERNAL://0.0.0.0:{spec.listeners.external.port}")
        values["listeners"] = ",".join(listeners)
    if component == "broker":
        values["log.dirs"] = ",".join(f"{DATA_ROOT}/{volume.name}/log" for volume in spec.brokers.storage)
    return "".join(f"{name}={values[name]}\n" for name in sorted(values))


def config_map(cluster: Cluster) -> Json:
    files = {f"{c}.properties": properties(cluster, c) for c in ("broker", "controller", "coordinator", "metadata")}
    return cluster.object("v1", "ConfigMap", cluster.child("config"), "config", data=files)


def fingerprint(cluster: Cluster, component: str) -> str:
    """Changes when the settings file of a component does: its pods then have to start again."""
    return hashlib.sha256(properties(cluster, component).encode()).hexdigest()[:16]
