"""A user installs Headrace with one command and asks whether it is well."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from tests.e2e.headrace import Release, is_ready, memory_by_pod
from tests.e2e.kubectl import CACHE_BIN, Namespace, condition_of, run, wait_for


def test_install_with_one_command_until_ready(release: Release, say: Callable[[str], None]) -> None:
    say(f"helm install until Ready: {release.seconds_to_ready:.0f} s with 3 brokers")
    found = release.cluster()
    for name, status in (("Ready", "True"), ("Degraded", "False"), ("RolloutSafe", "True")):
        entry = condition_of(found, name)
        assert entry is not None, name
        assert entry["status"] == status, entry
        assert entry["reason"], entry
        assert entry["message"], entry
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
    assert len(found["status"]["brokers"]) == 3
    assert all(is_ready(pod) for pod in release.pods("broker"))
    assert found["status"]["bootstrap"]["kafka"].endswith(":9092")


def test_get_clusters_answers_is_it_well(namespace: Namespace, release: Release) -> None:
    head, row = namespace.kubectl("get", "hrc", release.name).splitlines()
    assert "READY" in head
    assert "True" in row
    assert "3/3" in row


def test_the_next_three_commands_of_the_notes_work(namespace: Namespace, release: Release) -> None:
    """Among them `helm test`, which sends a record through the cluster."""
    notes = run("helm", "get", "notes", release.name, "-n", namespace.name)
    commands = re.findall(r"^  ((?:kubectl|helm) .*\n(?:    .*\n)*)", notes.partition("Kafka clients")[0], re.MULTILINE)
    assert len(commands) == 3, notes
    said = [run("bash", "-c", f'PATH="{CACHE_BIN}:$PATH"\n{command}', seconds=180) for command in commands]
    assert "Succeeded" in said[1], said
    namespace.wait_condition("hrt", "orders", "Ready", seconds=240)
    namespace.patch("hrt", "orders", {"spec": {"deletionPolicy": "Delete"}})
    namespace.wait_condition("hrt", "orders", "Ready", seconds=240)
    namespace.delete("hrt", "orders")
    wait_for("its data is gone", lambda: "orders" not in release.topics(), 240)


def test_memory_at_idle(namespace: Namespace, release: Release, say: Callable[[str], None]) -> None:
    """Only printed: docs/figures.md records it."""
    seen = lambda: min(memory_by_pod(namespace).values(), default=0) > 0  # noqa: E731
    wait_for("the kubelet has seen every pod", seen, 240, pause=5)
    time_of_quiet = time.monotonic() + 15
    wait_for("a quarter of a minute of quiet", lambda: time.monotonic() > time_of_quiet, 240)
    by_pod = memory_by_pod(namespace)
    for name, size in sorted(by_pod.items()):
        say(f"{name:32} {size / 2**20:6.1f} MiB")
    say(f"{'all':32} {sum(by_pod.values()) / 2**20:6.1f} MiB")


def test_pods_run_without_rights_they_do_not_need(namespace: Namespace, release: Release) -> None:
    for pod in namespace.pods(f"app.kubernetes.io/instance={release.name}"):
        name = pod["metadata"]["name"]
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True, name
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["capabilities"]["drop"] == ["ALL"], name
    for account in namespace.list("serviceaccounts", f"app.kubernetes.io/instance={release.name}"):
        name = f"system:serviceaccount:{namespace.name}:{account['metadata']['name']}"
        rights = namespace.kubectl("auth", "can-i", "--list", f"--as={name}")
        for line in rights.splitlines()[1:]:
            assert not line.startswith(("secrets", "*", "pods ", "configmaps")) or "headrace-operator" in name, line


def test_the_image_has_no_build_tools_and_another_user_than_root(namespace: Namespace, release: Release) -> None:
    found = namespace.exec("tool", "sh", "-c", "id -u; command -v gcc cc make cargo go git; ls /opt/headrace/bin")
    lines = found.split()
    assert lines[0] == "1000"
    assert not [line for line in lines if line.startswith("/")], found
    assert "pip" not in lines
    assert {"headrace", "etcd", "python3"} <= set(lines)
