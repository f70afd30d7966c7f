"""A Headrace release on the test cluster, and what the journeys do with it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from tests.e2e.kubectl import KubectlError, Namespace, Object, condition_of, run, wait_for

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "headrace"
VERSION = "0.1.0"
NEXT = "0.1.0-next"
"""The same image under another tag: what an upgrade rolls to."""
CLIENT_IMAGE = "headrace/e2e-client:dev"

SMALL: Object = {
    "requests": {"cpu": "20m", "memory": "64Mi"},
}
CLUSTER_SPEC: Object = {
    "brokers": {"replicas": 3, "storage": [{"size": "1Gi"}], "resources": SMALL},
    "controllers": {"replicas": 2, "resources": SMALL},
    "coordinators": {"replicas": 2, "resources": SMALL},
    "metadata": {"replicas": 2, "resources": SMALL},
    "etcd": {"managed": {"replicas": 1, "storage": {"size": "1Gi"}, "resources": SMALL}},
    "config": {"default.replication.factor": "3", "min.insync.replicas": "2", "offsets.topic.replication.factor": "3"},
}


# Each operator leaves alone what else lives on the cluster.
NAMESPACE = "headrace-e2e"
OPERATOR_NAMESPACE = "headrace-e2e-operator"
SMALL_NAMESPACES = ("headrace-e2e-small", "headrace-e2e-orphans")
SPARK_NAMESPACE = "headrace-e2e-spark"
NAMESPACES = (NAMESPACE, OPERATOR_NAMESPACE, *SMALL_NAMESPACES, SPARK_NAMESPACE)


@cache
def values() -> Object:
    """What the shared release is installed with: also with a way in from outside, at the node's address."""
    (node, *_) = json.loads(run("kubectl", "get", "nodes", "-o", "json"))["items"]
    address = next(a["address"] for a in node["status"]["addresses"] if a["type"] == "InternalIP")
    spec = {**CLUSTER_SPEC, "listeners": {"external": {"type": "NodePort", "advertisedHost": address}}}
    return {"operator": {"watchNamespaces": [NAMESPACE]}, "cluster": {"spec": spec}}


def spark_values() -> Object:
    """A smaller release: what is looked at there are the jobs beside it."""
    ones = {name: {"replicas": 1, "resources": SMALL} for name in ("controllers", "coordinators", "metadata")}
    brokers = {"replicas": 2, "storage": [{"size": "2Gi"}], "resources": SMALL}
    config = dict.fromkeys(CLUSTER_SPEC["config"], "1")
    spec = {**CLUSTER_SPEC, **ones, "brokers": brokers, "config": config}
    return {"operator": {"watchNamespaces": [SPARK_NAMESPACE]}, "cluster": {"spec": spec}}


@dataclass
class Release:
    """One `helm install` of the chart."""

    namespace: Namespace
    name: str
    installed_at: float = 0.0
    seconds_to_ready: float = 0.0
    """From `helm install` to the first time the Cluster was Ready."""
    values: Object = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        return f"{self.name}-bootstrap.{self.namespace.name}.svc:9092"

    def install(self, values: Object, *words: str) -> str:
        """Installs, or upgrades when it is there; does not wait. Returns the notes.

        Beside another release the definitions are there already, and kept up to date by the operator of that one.
        """
        self.values = values
        if run("kubectl", "get", "crd", "clusters.headrace.dev", "--ignore-not-found", "-o", "name"):
            words = ("--skip-crds", *words)
        self.installed_at = time.monotonic()
        return run(
            "helm", "upgrade", "--install", self.name, str(CHART), "-n", self.namespace.name, "--create-namespace",
            "-f", "-", *words, text=yaml.safe_dump(values),
        )  # fmt: skip

    def uninstall(self) -> str:
        return run("helm", "uninstall", self.name, "-n", self.namespace.name, "--wait", "--timeout", "3m", seconds=200)

    def cluster(self) -> Object:
        return self.namespace.get("cluster.headrace.dev", self.name)

    def wait_ready(self, seconds: float = 400.0) -> Object:
        return self.namespace.wait_condition("cluster.headrace.dev", self.name, "Ready", seconds=seconds)

    def wait_settled(self, seconds: float = 400.0) -> None:
        """Ready, and nothing is being changed any more."""
        self.namespace.wait_condition("cluster.headrace.dev", self.name, "Progressing", "False", seconds)
        self.wait_ready(seconds)

    def wait_healthy(self, seconds: float = 300.0) -> None:
        """Every partition has its leader and all of its replicas in sync, as the cluster itself says."""
        wait_for("the cluster is healthy", lambda: self.headrace("cluster", "health"), seconds, pause=1)

    def change(self, spec: Object) -> None:
        self.namespace.patch("cluster.headrace.dev", self.name, {"spec": spec})

    def pods(self, component: str) -> list[Object]:
        chosen = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component={component}"
        return sorted(self.namespace.pods(chosen), key=lambda pod: pod["metadata"]["name"])

    def operators(self) -> set[str]:
        """Names of the operator pods that run."""
        pods = self.namespace.pods("app.kubernetes.io/name=headrace-operator")
        return {str(pod["metadata"]["name"]) for pod in pods if is_ready(pod)}

    def working_operator(self) -> str:
        """The pod that holds the operators' Lease."""
        holder = lambda: self.namespace.get("lease", "headrace-operator")["spec"].get("holderIdentity")  # noqa: E731
        return str(wait_for("an operator that works", holder, 60))

    @contextmanager
    def without_operator(self) -> Iterator[None]:
        """While the block lasts no operator runs."""
        deployment = f"{self.name}-operator"
        self.namespace.kubectl("scale", "deployment", deployment, "--replicas=0")
        chosen = "app.kubernetes.io/name=headrace-operator"
        wait_for("no operator", lambda: not self.namespace.pods(chosen), 240)
        try:
            yield
        finally:
            self.namespace.kubectl("scale", "deployment", deployment, "--replicas=1")

    def topics(self) -> list[str]:
        """Names of the topics there are, as the cluster says."""
        return [str(each["name"]) for each in json.loads(self.headrace("topics", "list", "-o", "json"))]

    def headrace(self, *words: str, seconds: float = 240.0) -> str:
        """The `headrace` command, in a pod of its own."""
        metadata = f"HEADRACE_BOOTSTRAP={self.name}-metadata:9094"
        return self.namespace.exec("tool", "env", metadata, "headrace", *words, seconds=seconds)


def topic(name: str, cluster: str, /, **spec: Any) -> Object:
    """A Topic resource."""
    return {
        "apiVersion": "headrace.dev/v1alpha1",
        "kind": "Topic",
        "metadata": {"name": name},
        "spec": {"cluster": cluster, "partitions": 3, "replicas": 3, **spec},
    }


def tool_pod() -> Object:
    """A pod with the `headrace` command."""
    container = {"name": "tool", "image": f"headrace/services:{VERSION}", "command": ["sleep", "infinity"]}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tool"}, "spec": spec}


def client_pod(name: str = "client", **spec: Any) -> Object:
    """A pod with a Kafka client that nobody here wrote."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            **spec,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "client",
                    "image": CLIENT_IMAGE,
                    "volumeMounts": [{"name": "ledgers", "mountPath": "/ledgers"}],
                }
            ],
            "volumes": [{"name": "ledgers", "emptyDir": {}}],
        },
    }


def reaper_pod() -> Object:
    """Sees the node's processes, to kill one of ours as a machine would: without a word."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "reaper"},
        "spec": {
            "hostPID": True,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "reaper",
                    "image": CLIENT_IMAGE,
                    "securityContext": {"privileged": True, "runAsUser": 0},
                }
            ],
        },
    }


@dataclass
class Ledger:
    """What a run of the load said, and what reading everything again said."""

    summary: Object
    check: Object

    def assert_nothing_lost(self) -> None:
        told = f"\nload:  {self.summary}\ncheck: {self.check}"
        assert self.summary["acked"] > 0, told
        assert self.summary["acked"] == self.summary["sent"], f"a producer saw an error beyond its retries{told}"
        assert self.summary["unseen_by_group"] == 0, f"the group did not see everything{told}"
        assert not self.check["unread_partitions"], told
        assert not self.check["missing"], f"acknowledged records are gone{told}"
        assert not self.check["changed"], told
        assert not self.check["doubled"], told


class Load:
    """A producer and a group member in the client pod, for as long as the block lasts."""

    def __init__(self, namespace: Namespace, bootstrap: str, pod: str = "client") -> None:
        self._namespace = namespace
        self._bootstrap = bootstrap
        self._pod = pod
        self.last: Ledger | None = None

    @contextmanager
    def on(self, topic_name: str, rate: float = 200.0) -> Iterator[None]:
        """Load on a topic for as long as the block lasts; then everything is read again and must be there."""
        path = f"/ledgers/{topic_name}"
        words = ("python3", "load.py", "run", self._bootstrap, topic_name, str(rate), path)

        def acknowledged() -> int:
            return int(self._namespace.exec(self._pod, "sh", "-c", f"wc -l < {path}"))

        with self._namespace.exec_until_closed(self._pod, *words) as process:

            def flows() -> bool:
                assert process.poll() is None, f"the load ended: {process.communicate()}"
                return acknowledged() > 50

            wait_for("records are acknowledged", flows, 240, pause=1)
            yield
            before = acknowledged()
            wait_for("records are still acknowledged", lambda: acknowledged() > before + 50, 240, pause=1)
            out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        self.last = Ledger(json.loads(out), self.check(topic_name))
        self.last.assert_nothing_lost()

    def check(self, topic_name: str) -> Object:
        words = ("python3", "load.py", "check", self._bootstrap, topic_name, f"/ledgers/{topic_name}")
        found: Object = json.loads(self._namespace.exec(self._pod, *words, seconds=400))
        return found


def container_id(pod: Object) -> str:
    return str(pod["status"]["containerStatuses"][0]["containerID"]).partition("://")[2]


def kill(namespace: Namespace, pod_name: str) -> None:
    """kill -9 of a pod's process; returns when the kubelet has started it anew and it is ready."""
    before = container_id(namespace.get("pod", pod_name))
    namespace.exec("reaper", "python3", "reaper.py", before)

    def back() -> bool:
        pod = namespace.get("pod", pod_name)
        return container_id(pod) != before and is_ready(pod)

    wait_for(f"{pod_name} is back", back, 240)


def is_ready(pod: Object) -> bool:
    entry = condition_of(pod, "Ready")
    return entry is not None and entry["status"] == "True" and "deletionTimestamp" not in pod["metadata"]


def memory_by_pod(namespace: Namespace) -> dict[str, int]:
    """Working set in bytes of every pod, as the kubelets see it."""
    found = {}
    for node in json.loads(run("kubectl", "get", "nodes", "-o", "json"))["items"]:
        name = node["metadata"]["name"]
        stats = json.loads(run("kubectl", "get", "--raw", f"/api/v1/nodes/{name}/proxy/stats/summary"))
        for pod in stats["pods"]:
            if pod["podRef"]["namespace"] == namespace.name:
                found[pod["podRef"]["name"]] = int(pod.get("memory", {}).get("workingSetBytes", 0))
    return found


def fails_with(call: Any, *words: str) -> str:
    """The complaint of a kubectl call that must be refused, and must say these words."""
    try:
        call()
    except (KubectlError, subprocess.TimeoutExpired) as error:
        text = str(error)
    else:
        raise AssertionError("it was not refused")
    for word in words:
        assert word in text, f"{word!r} is not in: {text}"
    return text
