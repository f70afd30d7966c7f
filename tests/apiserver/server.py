"""A real kube-apiserver with its etcd on loopback, and nothing else: no nodes, no controllers.

Enough to see what the API server makes of definitions, rules, rights and server-side apply.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from headrace.registry.local_etcd import LocalEtcd, free_port

Json = dict[str, Any]
TOKENS = {"admin": "admin-token", "operator": "operator-token"}


def programs() -> Path | None:
    """Where kube-apiserver and kubectl are."""
    cache = Path(os.environ.get("HEADRACE_KUBE_CACHE", Path.home() / ".cache" / "headrace-kube")) / "bin"
    if (cache / "kube-apiserver").exists():
        return cache
    found = shutil.which("kube-apiserver")
    return Path(found).parent if found else None


class Refused(Exception):
    """What the API server answered instead of doing it."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class ApiServer:
    """One API server; `call` speaks to it as the administrator."""

    def __init__(self, directory: Path, binaries: Path) -> None:
        self._directory = directory
        self._binaries = binaries
        self._etcd = LocalEtcd(directory / "etcd", fsync=False)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._tls = ssl.create_default_context()
        self._tls.check_hostname = False
        self._tls.verify_mode = ssl.CERT_NONE

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._etcd.start()
        tokens = self._directory / "tokens.csv"
        tokens.write_text(
            f'{TOKENS["admin"]},admin,admin,"system:masters"\n{TOKENS["operator"]},operator,operator,""\n'
        )
        key = self._directory / "sa.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        self._process = subprocess.Popen(
            [
                str(self._binaries / "kube-apiserver"),
                f"--etcd-servers=http://{self._etcd.endpoint}",
                "--bind-address=127.0.0.1",
                f"--secure-port={self.port}",
                f"--cert-dir={self._directory / 'certs'}",
                "--authorization-mode=RBAC",
                f"--token-auth-file={tokens}",
                "--service-cluster-ip-range=10.96.0.0/16",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={key}",
                f"--service-account-signing-key-file={key}",
                "--disable-admission-plugins=ServiceAccount",
            ],
            stdout=subprocess.DEVNULL,
            stderr=(self._directory / "apiserver.log").open("wb"),
        )
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            try:
                self.call("GET", "/readyz")
                return
            except (OSError, Refused):
                if self._process.poll() is not None:
                    break
                time.sleep(0.2)
        raise RuntimeError((self._directory / "apiserver.log").read_text()[-2000:])

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
        self._etcd.stop()

    def kubeconfig(self, user: str) -> Path:
        path = self._directory / f"{user}.kubeconfig"
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
                    "clusters": [{"name": "test", "cluster": {"server": self.url, "insecure-skip-tls-verify": True}}],
                    "users": [{"name": user, "user": {"token": TOKENS[user]}}],
                }
            )
        )
        return path

    def call(self, method: str, path: str, body: Json | None = None, kind: str = "application/json") -> Any:
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {TOKENS['admin']}", "Content-Type": kind},
        )
        try:
            with urllib.request.urlopen(request, context=self._tls, timeout=30) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            answer = error.read()
            try:
                message = json.loads(answer)["message"]
            except (ValueError, KeyError):
                message = answer.decode(errors="replace")
            raise Refused(error.code, message) from None
        return json.loads(text) if text[:1] == b"{" else text

    def apply(self, path: str, body: Json) -> Any:
        return self.call("PATCH", f"{path}?fieldManager=test&force=true", body, "application/apply-patch+yaml")
