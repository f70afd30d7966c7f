"""An etcd of the user's own that wants TLS and a client's certificate, in a pod."""

from __future__ import annotations

from pathlib import Path

from tests.certificates import certificates
from tests.e2e.headrace import VERSION
from tests.e2e.kubectl import Object

CLIENT_SECRET = "etcd-client"


def secret(name: str, directory: Path, whose: str) -> Object:
    files = {"ca.crt": "ca.crt", "tls.crt": f"{whose}.crt", "tls.key": f"{whose}.key"}
    data = {entry: (directory / file).read_text() for entry, file in files.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}


def objects(directory: Path, host: str) -> list[Object]:
    """The etcd behind the Service `etcd`, and the Secret that its clients need."""
    certificates(directory, host)
    ours = {"app": "users-etcd"}
    container = {
        "name": "etcd",
        "image": f"headrace/services:{VERSION}",
        "command": ["etcd"],
        "args": [
            "--data-dir=/data/member",
            "--unsafe-no-fsync",
            "--log-level=error",
            "--listen-client-urls=https://0.0.0.0:2379",
            f"--advertise-client-urls=https://{host}:2379",
            "--client-cert-auth",
            "--trusted-ca-file=/tls/ca.crt",
            "--cert-file=/tls/tls.crt",
            "--key-file=/tls/tls.key",
        ],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "tls", "mountPath": "/tls"}],
    }
    volumes = [{"name": "data", "emptyDir": {}}, {"name": "tls", "secret": {"secretName": "etcd-server"}}]
    pod = {"terminationGracePeriodSeconds": 0, "containers": [container], "volumes": volumes}
    return [
        secret("etcd-server", directory, "server"),
        secret(CLIENT_SECRET, directory, "client"),
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "etcd", "labels": ours}, "spec": pod},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "etcd"},
            "spec": {"selector": ours, "ports": [{"port": 2379}]},
        },
    ]
