"""What `headrace spark submit` puts into a Kubernetes cluster: pure, from what was asked for to manifests.

A job's driver is the pod of a Kubernetes Job that runs spark-submit in client mode; executors are pods it makes itself
and owns. A Job brings the driver back when its node is drained or its pod is killed, and the checkpoint, on a volume
of its own, tells it where it was. No Java is needed where `headrace` runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from headrace import __version__

Manifest = dict[str, Any]

LABEL = "headrace.dev/spark-job"
CLUSTER_LABEL = "headrace.dev/cluster"
CHECKPOINTS = "/var/lib/spark/checkpoints"
SERVICE_ACCOUNT = "headrace-spark"
IMAGE = f"headrace/spark:{__version__}"
IN_IMAGE = ("compacted_snapshot.py", "replay.py", "topic_to_parquet.py", "windowed_counts.py")
"""The jobs that it brings; other images may bring others."""
_SCRIPTS = "/opt/headrace/submitted"
_TEMPLATES = "/opt/headrace/spark"
_DRIVER = "spark-kubernetes-driver"
_UI_PORT, _DRIVER_PORT, _BLOCK_PORT = 4040, 7078, 7079
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?")
_MOST_SCRIPT_BYTES = 900_000


class InvalidSubmission(ValueError):
    """A job that cannot be submitted; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as the command line asks for it. `script` is the text of a file of the user's; None: one of the image."""

    job: str
    name: str
    namespace: str
    cluster: str
    image: str
    arguments: tuple[str, ...] = ()
    script: str | None = None
    executors: int = 2
    cores: int = 1
    driver_memory: str = "512m"
    executor_memory: str = "512m"
    overhead: str = "640m"
    checkpoint_size: str = "1Gi"
    storage_class: str | None = None
    volumes: Mapping[str, str] = field(default_factory=dict)
    """Claims of the user's by where driver and executors find them."""
    retries: int = 6
    service_account: str | None = None
    """None: one that is made with the job, and may do what a driver must."""
    conf: Mapping[str, str] = field(default_factory=dict)


def job_name(job: str) -> str:
    """A name for a job that was given none.

    >>> job_name("jobs/topic_to_parquet.py")
    'topic-to-parquet'
    """
    stem = PurePosixPath(job).name.removesuffix(".py")
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")


def manifests(wanted: Submission) -> list[Manifest]:
    """Everything a job needs, in the order to apply it."""
    _check(wanted)
    made = rights(wanted.namespace) if wanted.service_account is None else []
    made += [_service(wanted), _claim(wanted)]
    if wanted.script is not None:
        made.append(_script(wanted))
    return [*made, _job(wanted)]


def rights(namespace: str | None = None) -> list[Manifest]:
    """What a driver may do: make, watch and remove its executors. Executors themselves get no token at all."""
    meta: Manifest = {"name": SERVICE_ACCOUNT, **({"namespace": namespace} if namespace else {})}
    everything = ["create", "get", "list", "watch", "patch", "delete", "deletecollection"]
    group = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {
            "apiVersion": f"{group}/v1",
            "kind": "Role",
            "metadata": meta,
            "rules": [
                {
                    "apiGroups": [""],
                    "resources": ["pods", "services", "configmaps", "persistentvolumeclaims"],
                    "verbs": everything,
                }
            ],
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": SERVICE_ACCOUNT},
            "subjects": [
                {"kind": "ServiceAccount", "name": SERVICE_ACCOUNT, **({"namespace": namespace} if namespace else {})}
            ],
        },
    ]


def command(wanted: Submission) -> list[str]:
    """The driver's command line; `$(POD_NAME)` and `$(POD_IP)` are filled in by Kubernetes."""
    conf = {**_conf(wanted), **wanted.conf}
    line = ["driver-client", "--master", "k8s://https://kubernetes.default.svc", "--name", wanted.name]
    for name in sorted(conf):
        line += ["--conf", f"{name}={conf[name]}"]
    return [*line, _location(wanted), *_arguments(wanted)]


def _check(wanted: Submission) -> None:
    if not _NAME.fullmatch(wanted.name):
        raise InvalidSubmission(
            f"{wanted.name!r} cannot name a job: give --name at most 50 lower-case letters, digits and dashes"
        )
    if wanted.script is None and wanted.image == IMAGE and wanted.job not in IN_IMAGE:
        there = ", ".join(each.removesuffix(".py") for each in IN_IMAGE)
        raise InvalidSubmission(
            f"{wanted.image} has no job {wanted.job.removesuffix('.py')}: it has {there}; a file of yours ends in .py"
        )
    if wanted.executors < 1 or wanted.cores < 1:
        raise InvalidSubmission("--executors and --cores must be at least 1")
    if wanted.retries < 0:
        raise InvalidSubmission("--retries must be at least 0")
    _sum(wanted.driver_memory, wanted.executor_memory, wanted.overhead)
    for path in wanted.volumes:
        if not path.startswith("/") or any(path.startswith(own) for own in (CHECKPOINTS, "/opt/headrace", "/tmp")):
            raise InvalidSubmission(f"a volume cannot be mounted at {path!r}: write --volume CLAIM:/data, say")
    if wanted.script is not None and len(wanted.script.encode()) > _MOST_SCRIPT_BYTES:
        raise InvalidSubmission(f"{wanted.job} is too large for a ConfigMap: put it into an image, and give --image")


def names_servers(arguments: Sequence[str]) -> bool:
    """Whether a job is told where to read and write by its own arguments."""
    return any(each == "--bootstrap-servers" or each.startswith("--bootstrap-servers=") for each in arguments)


def _arguments(wanted: Submission) -> list[str]:
    """The job's own, with the cluster's address where the job was not told one."""
    given = list(wanted.arguments)
    if names_servers(given):
        return given
    return ["--bootstrap-servers", f"{wanted.cluster}-metadata.{wanted.namespace}.svc:9094", *given]


def _location(wanted: Submission) -> str:
    name = PurePosixPath(wanted.job).name
    return f"local://{_SCRIPTS}/{name}" if wanted.script is not None else f"local:///opt/headrace/jobs/{name}"


def _conf(wanted: Submission) -> dict[str, str]:
    conf = {
        # Executors are told this one, and not the host, unless spark.kubernetes.executor.useDriverPodIP is false.
        "spark.driver.bindAddress": "$(POD_IP)",
        "spark.driver.host": f"{_child(wanted, 'driver')}.{wanted.namespace}.svc",
        "spark.driver.port": str(_DRIVER_PORT),
        "spark.driver.blockManager.port": str(_BLOCK_PORT),
        "spark.driver.memory": wanted.driver_memory,
        "spark.executor.instances": str(wanted.executors),
        "spark.executor.cores": str(wanted.cores),
        "spark.executor.memory": wanted.executor_memory,
        "spark.executor.memoryOverhead": wanted.overhead,
        # Progress is what people want to see; Spark says a hundred lines at info before it does anything.
        "spark.log.level": "WARN",
        "spark.kubernetes.namespace": wanted.namespace,
        "spark.kubernetes.container.image": wanted.image,
        "spark.kubernetes.driver.pod.name": "$(POD_NAME)",
        "spark.kubernetes.executor.podTemplateFile": f"{_TEMPLATES}/executor-pod.yaml",
        f"spark.kubernetes.executor.label.{LABEL}": wanted.name,
        "spark.metrics.namespace": wanted.name,
    }
    for number, (path, claim) in enumerate(sorted(wanted.volumes.items())):
        prefix = f"spark.kubernetes.executor.volumes.persistentVolumeClaim.volume-{number}"
        conf |= {f"{prefix}.options.claimName": claim, f"{prefix}.mount.path": path}
    return conf


def _child(wanted: Submission, what: str) -> str:
    return f"{wanted.name}-{what}"


def driver_labels(name: str) -> dict[str, str]:
    """What the driver pods of a job are found by."""
    return {LABEL: name, "spark-role": "driver"}


def _labels(wanted: Submission) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "headrace-spark",
        "app.kubernetes.io/instance": wanted.name,
        "app.kubernetes.io/managed-by": "headrace-cli",
        LABEL: wanted.name,
        CLUSTER_LABEL: wanted.cluster,
    }


def _meta(wanted: Submission, name: str) -> Manifest:
    return {"name": name, "namespace": wanted.namespace, "labels": _labels(wanted)}


def _service(wanted: Submission) -> Manifest:
    """Executors find the driver under this name, whichever pod it is."""
    ports = (("driver", _DRIVER_PORT), ("blocks", _BLOCK_PORT), ("ui", _UI_PORT))
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(wanted, _child(wanted, "driver")),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": driver_labels(wanted.name),
            "ports": [{"name": name, "port": port} for name, port in ports],
        },
    }


def _claim(wanted: Submission) -> Manifest:
    spec: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": wanted.checkpoint_size}},
    }
    if wanted.storage_class is not None:
        spec["storageClassName"] = wanted.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _meta(wanted, _child(wanted, "checkpoints")),
        "spec": spec,
    }


def _script(wanted: Submission) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _meta(wanted, _child(wanted, "script")),
        "data": {PurePosixPath(wanted.job).name: wanted.script},
    }


def _job(wanted: Submission) -> Manifest:
    labels = {**_labels(wanted), **driver_labels(wanted.name)}
    annotations = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(_UI_PORT),
        "prometheus.io/path": "/metrics/prometheus",
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _meta(wanted, wanted.name),
        "spec": {
            "backoffLimit": wanted.retries,
            "podFailurePolicy": {"rules": _failures()},
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": _pod(wanted),
            },
        },
    }


def _failures() -> list[Manifest]:
    """A drained node or a lost one is nobody's fault: the driver comes back elsewhere, and it does not count.
    Arguments that the job refuses (exit code 2) are as wrong the second time."""
    refused = {"containerName": _DRIVER, "operator": "In", "values": [2]}
    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": refused},
    ]


def _pod(wanted: Submission) -> Manifest:
    mounts: list[Manifest] = [
        {"name": "checkpoints", "mountPath": CHECKPOINTS},
        {"name": "scratch", "mountPath": "/tmp"},
    ]
    volumes: list[Manifest] = [
        {"name": "checkpoints", "persistentVolumeClaim": {"claimName": _child(wanted, "checkpoints")}},
        {"name": "scratch", "emptyDir": {}},
    ]
    for number, (path, claim) in enumerate(sorted(wanted.volumes.items())):
        mounts.append({"name": f"volume-{number}", "mountPath": path})
        volumes.append({"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": claim}})
    if wanted.script is not None:
        mounts.append({"name": "script", "mountPath": _SCRIPTS, "readOnly": True})
        volumes.append({"name": "script", "configMap": {"name": _child(wanted, "script")}})
    return {
        "serviceAccountName": wanted.service_account or SERVICE_ACCOUNT,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 30,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "fsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": _DRIVER,
                "image": wanted.image,
                "imagePullPolicy": "IfNotPresent",
                "args": command(wanted),
                "env": [
                    {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    {"name": "SPARK_LOCAL_DIRS", "value": "/tmp"},
                ],
                "ports": [
                    # Named as Spark itself names it.
                    {"name": "spark-ui", "containerPort": _UI_PORT},
                    {"name": "driver", "containerPort": _DRIVER_PORT},
                ],
                "resources": {
                    "requests": {"cpu": "500m", "memory": _sum(wanted.driver_memory, wanted.overhead)},
                    "limits": {"memory": _sum(wanted.driver_memory, wanted.overhead)},
                },
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }


def _sum(*sizes: str) -> str:
    """Java's sizes (512m, 2g) added up, as Kubernetes writes them.

    >>> _sum("512m", "1g")
    '1536Mi'
    """
    return f"{sum(_mebibytes(size) for size in sizes)}Mi"


def _mebibytes(size: str) -> int:
    found = re.fullmatch(r"(\d+)([mg])", size.lower())
    if found is None:
        raise InvalidSubmission(f"{size!r} is no size of memory: write 512m or 2g")
    return int(found[1]) * (1024 if found[2] == "g" else 1)
