"""What the integration tests share: one cluster for the whole run, fresh topics in it, and an admin client."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from tests.integration.cluster import EXTERNAL, Cluster
from tests.integration.kafka_clients import MAX_BYTES
from tests.integration.proxy import CuttingProxy
from tests.integration.topics import create_topic

TopicFactory = Callable[..., str]

LONG = ("test_client_matrix", "test_spark_sql", "test_spark_jobs", "test_failover", "test_groups_java", "test_moves")
"""Files that take longest, first: what begins last should not be what the whole run waits for."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


@pytest.fixture(scope="session", autouse=True)
def as_deployed() -> Iterator[None]:
    """Whatever the tests start imports what it would where only Headrace is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent / "deployed"), prepend=os.pathsep)
        yield


def running(cluster: Cluster) -> Iterator[Cluster]:
    """Start it, lend it, and see that it stops cleanly and never wrote a traceback."""
    cluster.start()
    try:
        yield cluster
    except BaseException:
        cluster.kill_all()
        raise
    code = cluster.stop()
    output = cluster.output()
    assert code == 0, f"headrace dev ended with {code} on SIGTERM:\n{output[-4000:]}"
    assert "Traceback" not in output, output[-8000:]


@pytest.fixture(scope="session")
def own_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster of this run, for tests that look at its processes."""
    if EXTERNAL:
        pytest.skip("HEADRACE_TEST_BOOTSTRAP names a server whose processes are not known")
    yield from running(Cluster(tmp_path_factory.mktemp("cluster") / "data"))


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """Where the clients connect to."""
    if EXTERNAL:
        return EXTERNAL
    own: Cluster = request.getfixturevalue("own_cluster")
    return own.bootstrap


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, CuttingProxy]]:
    """A cluster that clients reach only through a proxy; it does not create topics by itself."""
    if EXTERNAL:
        pytest.skip("HEADRACE_TEST_BOOTSTRAP names a server that advertises its own address")
    proxy = CuttingProxy()
    advertised = f"PLAINTEXT://{proxy.address}"
    settings = {"advertised.listeners": advertised, "auto.create.topics.enable": "false"}
    cluster = Cluster(tmp_path_factory.mktemp("proxied") / "data", settings=settings)
    proxy.upstream = ("127.0.0.1", cluster.port)
    for started in running(cluster):
        yield started, proxy
    proxy.close()


@pytest.fixture
def cluster_at(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Clusters of a test's own, which it may stop and kill; whatever still runs at its end is killed."""
    if EXTERNAL:
        pytest.skip("HEADRACE_TEST_BOOTSTRAP names a server that cannot be restarted")
    made: list[Cluster] = []

    def make(**options: object) -> Cluster:
        made.append(Cluster(tmp_path / f"data-{len(made)}", **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for cluster in made:
        cluster.dispose()


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture(scope="session")
def new_topic(admin: AdminClient) -> TopicFactory:
    """Makes a topic with a name of its own: `new_topic(partitions=3, cleanup_policy="compact")`."""
    run, count = uuid.uuid4().hex[:6], itertools.count()

    def make(name: str = "t", partitions: int = 1, **config: str) -> str:
        return create_topic(admin, f"{name}-{run}-{next(count)}", partitions, **config)

    return make


@pytest.fixture(scope="session")
def large() -> dict[str, str]:
    """Topic settings for records of up to a megabyte and more."""
    return {"max_message_bytes": str(MAX_BYTES)}
