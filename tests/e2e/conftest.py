"""The release that the journeys share, the client in it, and what is kept when one of them fails."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.headrace import NAMESPACE, NAMESPACES, Load, Release, client_pod, reaper_pod, tool_pod, values
from tests.e2e.kubectl import Namespace, diagnostics, run, wait_for

DIAGNOSTICS = Path(os.environ.get("HEADRACE_E2E_OUT", "build/e2e"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    report = yield
    if report.failed:
        out = DIAGNOSTICS / item.name
        diagnostics(NAMESPACES, out)
        report.sections.append(("diagnostics", f"objects, events and logs are in {out}"))
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # Waits have their own deadlines and say what they waited for; this only ends what hangs.
        item.add_marker(pytest.mark.timeout(1200))
    if "KUBECONFIG" not in os.environ:
        for item in items:
            item.add_marker(pytest.mark.skip(reason="no KUBECONFIG: tests/e2e/run brings a cluster up"))


@pytest.fixture(scope="session")
def namespace() -> Namespace:
    return Namespace(NAMESPACE)


@pytest.fixture(scope="session")
def release(namespace: Namespace) -> Release:
    """The shared release, installed once. What HEADRACE_E2E_KEEP=1 kept runs older images: it goes first."""
    run("kubectl", "delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=240s", seconds=260)
    release = Release(namespace, "headrace")
    release.install(values())
    namespace.apply(tool_pod())
    release.wait_ready()
    release.seconds_to_ready = time.monotonic() - release.installed_at
    return release


@pytest.fixture(scope="session")
def client(namespace: Namespace, release: Release) -> Namespace:
    """The namespace, with a client pod and a reaper pod that run."""
    namespace.apply(client_pod(), reaper_pod())
    for name in ("client", "reaper"):
        wait_for(f"pod {name}", lambda name=name: namespace.get("pod", name)["status"]["phase"] == "Running", 240)
    return namespace


@pytest.fixture
def load(client: Namespace, release: Release) -> Load:
    return Load(client, release.bootstrap)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Any:
    """Prints a figure for whoever reads the run; nothing is asserted on it."""

    def tell(text: str) -> None:
        with capsys.disabled():
            print(f"\n  {text}", end="")  # noqa: T201

    return tell
