"""One API server for all of these tests; skipped, with the reason, where it was not built."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.apiserver.operator import Operator, grant
from tests.apiserver.server import ApiServer, Refused, programs
from tests.integration.cluster import Cluster

from headrace_operator.crds import crds


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    binaries = programs()
    if binaries is None:
        pytest.skip("there is no kube-apiserver: run tests/e2e/kube/build")
    server = ApiServer(tmp_path_factory.mktemp("apiserver"), binaries)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def definitions(api: ApiServer) -> ApiServer:
    """The API server with our definitions, ready to be used."""
    for crd in crds():
        api.apply(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}", crd)
    wait_served(api)
    return api


def wait_served(api: ApiServer) -> None:
    """Until the API server knows our resources."""
    deadline = time.monotonic() + 60
    while True:
        try:
            api.call("GET", "/apis/headrace.dev/v1alpha1/topics")
            api.call("GET", "/apis/headrace.dev/v1alpha1/clusters")
            return
        except Refused:
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three real brokers on loopback, for the operator to talk to."""
    cluster = Cluster(tmp_path_factory.mktemp("brokers") / "data", brokers=3)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.dispose()


@pytest.fixture
def operator(api: ApiServer, brokers: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """A running operator that meets these brokers under whatever name a Cluster has."""
    grant(api)
    running = Operator(api, tmp_path_factory.mktemp("operator"), brokers.description["grpc"])
    running.start()
    try:
        # It brings the definitions itself.
        wait_served(api)
        yield running
    finally:
        running.kill()
        assert "Traceback" not in running.log.read_text(), running.log.read_text()[-4000:]
