"""The operator as its own process against the API server, with exactly the rights its chart gives it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.apiserver.server import ApiServer, Refused

from headrace.registry.local_etcd import free_port
from headrace_operator.rbac import own_rules, rules

Json = dict[str, Any]


def grant(api: ApiServer) -> None:
    """The operator's ClusterRole and its Role, bound to the user it comes as; kubeconfigs name no namespace."""
    group = "rbac.authorization.k8s.io"
    subjects = [{"kind": "User", "apiGroup": group, "name": "operator"}]
    for kind, within, about, granted in (
        ("ClusterRole", "", {"name": "operator"}, rules()),
        ("Role", "namespaces/default/", {"name": "operator", "namespace": "default"}, own_rules()),
    ):
        role = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": about, "rules": granted}
        reference = {"apiGroup": group, "kind": kind, "name": "operator"}
        binding = {"apiVersion": f"{group}/v1", "kind": f"{kind}Binding", "metadata": about, "subjects": subjects}
        where = f"/apis/{group}/v1/{within}{kind.lower()}"
        api.apply(f"{where}s/operator", role)
        api.apply(f"{where}bindings/operator", {**binding, "roleRef": reference})


class Operator:
    """`python -m headrace_operator`."""

    def __init__(self, api: ApiServer, directory: Path, metadata: str, name: str = "one") -> None:
        self.log = directory / f"operator-{name}.log"
        self.health_port = free_port()
        self.metrics_port = free_port()
        self._environment = {
            **os.environ,
            "KUBECONFIG": str(api.kubeconfig("operator")),
            "HEADRACE_SERVICES_IMAGE": "headrace/services:test",
            "HEADRACE_METADATA_ADDRESS": metadata,
            "METRICS_PORT": str(self.metrics_port),
            "HEALTH_PORT": str(self.health_port),
            "POD_NAME": name,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Operator:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headrace_operator"], env=self._environment, stderr=self.log.open("ab")
        )
        return self

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(30)


def namespace(api: ApiServer, name: str) -> None:
    api.apply(f"/api/v1/namespaces/{name}", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


def cluster(api: ApiServer, where: str, name: str = "demo", **spec: Any) -> None:
    body = {
        "apiVersion": "headrace.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": name, "namespace": where},
        "spec": spec,
    }
    api.call("POST", f"/apis/headrace.dev/v1alpha1/namespaces/{where}/clusters", body)


def topic(api: ApiServer, where: str, resource: str, **spec: Any) -> None:
    body = {
        "apiVersion": "headrace.dev/v1alpha1",
        "kind": "Topic",
        "metadata": {"name": resource, "namespace": where},
        "spec": {"cluster": "demo", **spec},
    }
    api.call("POST", f"/apis/headrace.dev/v1alpha1/namespaces/{where}/topics", body)


def get(api: ApiServer, where: str, kind: str, name: str) -> Json | None:
    return found(api, f"/apis/headrace.dev/v1alpha1/namespaces/{where}/{kind}/{name}")


def found(api: ApiServer, path: str) -> Json | None:
    """The object that is there, if there is one."""
    try:
        body: Json = api.call("GET", path)
    except Refused as refused:
        if refused.code == 404:
            return None
        raise
    return body


def condition(body: Json | None, name: str) -> Json:
    listed = (body or {}).get("status", {}).get("conditions", [])
    return next((c for c in listed if c["type"] == name), {})


def eventually(what: str, check: Callable[[], Any], seconds: float = 120.0, pause: float = 0.1) -> Any:
    """The first true value of `check`; the deadline is for a busy machine."""
    deadline = time.monotonic() + seconds
    while not (value := check()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(pause)
    return value
