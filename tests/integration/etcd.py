"""A real etcd for tests: import the fixture into a conftest (`from tests.integration.etcd import etcd`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.registry.local_etcd import LocalEtcd


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEtcd]:
    """One etcd for the whole run, on free ports, in a temporary directory, without fsync."""
    server = LocalEtcd(tmp_path_factory.mktemp("etcd"), fsync=False)
    server.start()
    yield server
    server.stop()
