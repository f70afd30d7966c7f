"""Pod templates: what every pod of a cluster has in common, and what each component adds."""

from __future__ import annotations

from typing import Any

from headrace_operator.manifests import settings
from headrace_operator.manifests.merging import merged
from headrace_operator.manifests.naming import (
    ETCD_CLIENT_PORT,
    ETCD_METRICS_PORT,
    ETCD_PEER_PORT,
    GRPC_PORT,
    KAFKA_PORT,
    METRICS_PORT,
    Cluster,
)
from headrace_operator.resources import PREFIX, ManagedEtcd
from headrace_operator.schema import Json

RACK_ANNOTATION = f"{PREFIX}/rack"
EXTERNAL_ANNOTATION = f"{PREFIX}/external-address"
"""The operator writes both onto a pod once it knows where the pod runs; an init container waits for them. So a broker
knows its failure domain and its address without any right on the API server."""
STALE_ANNOTATION = f"{PREFIX}/stale-address"
"""The outside address that a pod started with, once it has another: it has to start again to tell that to clients."""
TOLD_ANNOTATION = f"{PREFIX}/told"
"""When a pod was reminded of them."""
WAITING = "wait-for-place"
"""The init container."""
BOOTSTRAP_LABEL = f"{PREFIX}/bootstrap"

GRACE_SECONDS = {"broker": 120, "coordinator": 60, "controller": 30, "metadata": 30, "etcd": 60}
RECOVERY_SECONDS = 3600
"""How long a broker may take to open its logs after a crash before it is thought to hang."""
_PODINFO = "/etc/podinfo"
_USER = 1000


def pod_template(cluster: Cluster, component: str) -> Json:
    """The template of a component, with the user's overrides over it."""
    return merged_template(cluster, component, _etcd(cluster) if component == "etcd" else _service(cluster, component))


def merged_template(cluster: Cluster, component: str, template: Json) -> Json:
    override = _section(cluster, component).template
    if not override:
        return template
    found: Json = merged(template, override)
    # Selectors lean on our labels.
    found["metadata"]["labels"] |= cluster.labels(component)
    return found


def _section(cluster: Cluster, component: str) -> Any:
    spec = cluster.spec
    return {
        "broker": spec.brokers,
        "controller": spec.controllers,
        "coordinator": spec.coordinators,
        "metadata": spec.metadata,
        "etcd": spec.etcd.managed or ManagedEtcd(),
    }[component]


def _service(cluster: Cluster, component: str) -> Json:
    annotations = {f"{PREFIX}/config": settings.fingerprint(cluster, component)}
    if component == "broker" and cluster.restart:
        annotations[f"{PREFIX}/restart"] = cluster.restart
    mounts: list[Json] = [{"name": "config", "mountPath": "/etc/headrace", "readOnly": True}]
    volumes: list[Json] = [{"name": "config", "configMap": {"name": cluster.child("config")}}]
    external = cluster.spec.etcd.external
    if external is not None and external.tls is not None:
        mounts.append({"name": "etcd-tls", "mountPath": settings.ETCD_TLS_DIR, "readOnly": True})
        volumes.append({"name": "etcd-tls", "secret": {"secretName": external.tls.secret_name}})
    if component == "broker":
        mounts += [
            {"name": volume.name, "mountPath": f"{settings.DATA_ROOT}/{volume.name}"}
            for volume in cluster.spec.brokers.storage
        ]
    waits = _awaited(cluster, component)
    container = _container(
        cluster,
        component,
        args=[component, "--config", f"/etc/headrace/{component}.properties"],
        env=_environment(cluster, component),
        ports=_ports(cluster, component),
        volumeMounts=mounts,
        startupProbe=_grpc_probe("liveness", 2, RECOVERY_SECONDS // 2 if component == "broker" else 60),
        livenessProbe=_grpc_probe("liveness", 10, 6),
        readinessProbe=_grpc_probe("", 2, 2),
    )
    return _template(cluster, component, container, volumes, annotations, waits)


def _awaited(cluster: Cluster, component: str) -> dict[str, str]:
    """File name and annotation of each thing that a pod waits for before it starts."""
    found = {}
    if component == "broker" and cluster.spec.brokers.rack_topology_key:
        found["rack"] = RACK_ANNOTATION
    if component in ("broker", "coordinator") and cluster.spec.listeners.external is not None:
        found["external-address"] = EXTERNAL_ANNOTATION
    return found


def _environment(cluster: Cluster, component: str) -> list[Json]:
    found = [_field("POD_NAME", "metadata.name")]
    if component == "metadata":
        found.append(_field("POD_IP", "status.podIP"))
        found.append({"name": "HEADRACE_ADVERTISED_GRPC_LISTENER", "value": f"$(POD_IP):{GRPC_PORT}"})
        return found
    host = f"$(POD_NAME).{cluster.host(component)}"
    found.append(_field("HEADRACE_NODE_ID", "metadata.labels['apps.kubernetes.io/pod-index']"))
    found.append({"name": "HEADRACE_ADVERTISED_GRPC_LISTENER", "value": f"{host}:{GRPC_PORT}"})
    awaited = _awaited(cluster, component)
    if "rack" in awaited:
        found.append(_field("HEADRACE_BROKER_RACK", f"metadata.annotations['{RACK_ANNOTATION}']"))
    if component in ("broker", "coordinator"):
        advertised = f"PLAINTEXT://{host}:{KAFKA_PORT}"
        if "external-address" in awaited:
            found.append(_field("EXTERNAL_ADDRESS", f"metadata.annotations['{EXTERNAL_ANNOTATION}']"))
            advertised += ",EXTERNAL://$(EXTERNAL_ADDRESS)"
        found.append({"name": "HEADRACE_ADVERTISED_LISTENERS", "value": advertised})
    return found


def _ports(cluster: Cluster, component: str) -> list[Json]:
    # The bootstrap Service finds metadata servers, and not brokers, by that name.
    found = [_port("metadata" if component == "metadata" else "grpc", GRPC_PORT)]
    if component in ("broker", "coordinator"):
        found.append(_port("kafka", KAFKA_PORT))
        if cluster.spec.listeners.external is not None:
            found.append(_port("external", cluster.spec.listeners.external.port))
    if cluster.spec.metrics.enabled:
        found.append(_port("metrics", METRICS_PORT))
    return found


def _etcd(cluster: Cluster) -> Json:
    host = f"$(POD_NAME).{cluster.host('etcd')}"
    peers = ",".join(
        f"{member}=http://{member}.{cluster.host('etcd')}:{ETCD_PEER_PORT}" for member in settings.etcd_members(cluster)
    )
    container = _container(
        cluster,
        "etcd",
        command=["etcd"],
        args=[
            "--name=$(POD_NAME)",
            "--data-dir=/var/lib/etcd/member",
            f"--listen-client-urls=http://0.0.0.0:{ETCD_CLIENT_PORT}",
            f"--advertise-client-urls=http://{host}:{ETCD_CLIENT_PORT}",
            f"--listen-peer-urls=http://0.0.0.0:{ETCD_PEER_PORT}",
            f"--initial-advertise-peer-urls=http://{host}:{ETCD_PEER_PORT}",
            f"--initial-cluster={peers}",
            f"--initial-cluster-token={cluster.namespace}.{cluster.name}",
            f"--listen-metrics-urls=http://0.0.0.0:{ETCD_METRICS_PORT}",
            "--auto-compaction-mode=revision",
            "--auto-compaction-retention=10000",
            "--quota-backend-bytes=1073741824",
            # A warning quotes the whole transaction that was slow.
            "--log-level=error",
        ],
        env=[_field("POD_NAME", "metadata.name")],
        ports=[_port("client", ETCD_CLIENT_PORT), _port("peer", ETCD_PEER_PORT), _port("metrics", ETCD_METRICS_PORT)],
        volumeMounts=[{"name": "data", "mountPath": "/var/lib/etcd"}],
        startupProbe=_http_probe("/health?serializable=true", 2, 150),
        livenessProbe=_http_probe("/health?serializable=true", 10, 6),
        readinessProbe=_http_probe("/health", 2, 3),
    )
    return _template(cluster, "etcd", container, [], {}, {})


def _container(cluster: Cluster, component: str, **content: Any) -> Json:
    found: Json = {
        "name": component,
        "image": cluster.image_of(component),
        "imagePullPolicy": cluster.spec.image_pull_policy,
        **content,
        "securityContext": _security(),
    }
    found["volumeMounts"] = [*found["volumeMounts"], {"name": "tmp", "mountPath": "/tmp"}]
    if resources := _section(cluster, component).resources:
        found["resources"] = resources
    return found


def _template(
    cluster: Cluster,
    component: str,
    container: Json,
    volumes: list[Json],
    annotations: dict[str, str],
    awaited: dict[str, str],
) -> Json:
    labels = cluster.labels(component)
    if component in ("broker", "metadata"):
        labels[BOOTSTRAP_LABEL] = "true"
    pod: Json = {
        "serviceAccountName": cluster.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS[component],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": _apart(cluster, component),
        "containers": [container],
        "volumes": [*volumes, {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}}],
    }
    if secrets := (*cluster.spec.image_pull_secrets, *cluster.pull_secrets):
        pod["imagePullSecrets"] = [{"name": name} for name in dict.fromkeys(secrets)]
    if awaited:
        pod["initContainers"] = [_waiting(cluster, component, awaited)]
        files = [
            {"path": file, "fieldRef": {"fieldPath": f"metadata.annotations['{a}']"}} for file, a in awaited.items()
        ]
        pod["volumes"].append({"name": "podinfo", "downwardAPI": {"items": files}})
    if key := cluster.spec.brokers.rack_topology_key:
        pod["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": cluster.selector(component)},
            }
        ]
    metadata: Json = {"labels": labels}
    if annotations:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": pod}


def _waiting(cluster: Cluster, component: str, awaited: dict[str, str]) -> Json:
    tests = " && ".join(f"[ -s {_PODINFO}/{file} ]" for file in awaited)
    return {
        "name": WAITING,
        "image": cluster.image_of(component),
        "imagePullPolicy": cluster.spec.image_pull_policy,
        "command": ["sh", "-c", f"until {tests}; do sleep 0.2; done"],
        "volumeMounts": [{"name": "podinfo", "mountPath": _PODINFO, "readOnly": True}],
        "securityContext": _security(),
    }


def _apart(cluster: Cluster, component: str) -> Json:
    """Pods of one component prefer different nodes; a small cluster still gets all of them."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": cluster.selector(component)}}
    return {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]
        }
    }


def _security() -> Json:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _field(name: str, path: str) -> Json:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _port(name: str, number: int) -> Json:
    return {"name": name, "containerPort": number}


def _grpc_probe(service: str, period: int, failures: int) -> Json:
    return {
        "grpc": {"port": GRPC_PORT, "service": service},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _http_probe(path: str, period: int, failures: int) -> Json:
    return {
        "httpGet": {"path": path, "port": ETCD_METRICS_PORT},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
