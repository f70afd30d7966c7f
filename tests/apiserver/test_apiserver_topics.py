"""Topics on a real API server with real brokers: the operator's whole way, without pods."""

from __future__ import annotations

import os
import sys
import time
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.apiserver.operator import Operator, cluster, condition, eventually, get, namespace, topic
from tests.apiserver.server import ApiServer
from tests.integration.cluster import Cluster

from headrace.client.sync import Admin

TOPICS = "/apis/headrace.dev/v1alpha1/namespaces/{}/topics"


@pytest.fixture
def place(api: ApiServer) -> str:
    """A namespace of its own."""
    name = f"shop-{uuid.uuid4().hex[:8]}"
    namespace(api, name)
    return name


def status_patches(api: ApiServer) -> int:
    """Patches of the status of Topics that the API server has taken so far."""
    families = text_string_to_metric_families(api.call("GET", "/metrics").decode())
    samples = [s for f in families if f.name == "apiserver_request" for s in f.samples if s.name.endswith("_total")]
    wanted = {"resource": "topics", "subresource": "status", "verb": "PATCH"}
    return int(sum(s.value for s in samples if wanted.items() <= s.labels.items()))


@pytest.mark.timeout(900)
def test_a_thousand_topics_at_once(api: ApiServer, operator: Operator, brokers: Cluster, place: str) -> None:
    count = int(os.environ.get("HEADRACE_TEST_TOPICS", "200"))
    cluster(api, place)
    eventually("the Cluster is seen", lambda: condition(get(api, place, "clusters", "demo"), "Progressing"))
    patched = status_patches(api)
    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: topic(api, place, f"many-{i}", partitions=1, replicas=3), range(count)))
    made = time.monotonic()

    def ready() -> bool:
        # As the API server remembers them: reading them all from etcd time and again would be most of what is measured.
        items = api.call("GET", f"{TOPICS.format(place)}?resourceVersion=0")["items"]
        return sum(condition(body, "Ready").get("status") == "True" for body in items) == count

    eventually("all are Ready", ready, 600, pause=1.0)
    told = time.monotonic()
    patched = status_patches(api) - patched
    # One each on a quiet machine, more for those that the metadata stream told of late or whose replicas fell behind:
    # 2.3 each at a load of 60. What this bounds is a storm.
    assert count <= patched < 4 * count
    assert operator.process is not None
    ticks = os.sysconf("SC_CLK_TCK")
    with open(f"/proc/{operator.process.pid}/stat") as file:
        used = sum(map(int, file.read().rpartition(")")[2].split()[11:13])) / ticks
    sys.stderr.write(
        f"\n{count} Topics: applied in {made - began:.1f} s, Ready {told - made:.1f} s later, {patched} patches; "
        f"the operator used {used:.1f} s of CPU\n"
    )
    with Admin(bootstrap_servers=brokers.description["grpc"]) as admin:
        names = admin.list_topics()
        assert sum(name.startswith("many-") for name in names) == count
        admin.delete_topics([name for name in names if name.startswith("many-")])


def test_topics_are_created_altered_put_right_and_deleted(
    api: ApiServer, operator: Operator, brokers: Cluster, place: str
) -> None:
    own = f"{place}-orders"
    cluster(api, place)
    topic(
        api, place, "orders", name=own, partitions=2, replicas=2, deletionPolicy="Delete", config={"segment.ms": 1000}
    )

    def state(reason: str = "AsSpecified", **wanted: object) -> bool:
        body = get(api, place, "topics", "orders") or {}
        status = body.get("status", {})
        return condition(body, "Ready").get("reason") == reason and all(status.get(k) == v for k, v in wanted.items())

    eventually("it is made", lambda: state(partitions=2, replicas=2, inSync="2/2"))
    change = {"spec": {"partitions": 4, "replicas": 3, "config": {"segment.ms": 2000}}}
    api.call("PATCH", f"{TOPICS.format(place)}/orders", change, "application/merge-patch+json")
    eventually("it is altered", lambda: state(partitions=4, replicas=3, inSync="4/4"))
    with Admin(bootstrap_servers=brokers.description["grpc"]) as admin:

        def setting() -> str:
            return next(e.value for e in admin.describe_configs("topic", own) if e.name == "segment.ms")

        eventually("its setting is there", lambda: setting() == "2000")
        admin.alter_configs("topic", own, set={"segment.ms": "5"})
        eventually("drift is put back", lambda: setting() == "2000")
        topic(api, place, "younger", name=own)
        eventually(
            "the younger one says who has it",
            lambda: condition(get(api, place, "topics", "younger"), "Ready").get("reason") == "Conflict",
        )
        api.call("DELETE", f"{TOPICS.format(place)}/younger")
        api.call("DELETE", f"{TOPICS.format(place)}/orders")
        eventually("the resource is gone", lambda: get(api, place, "topics", "orders") is None)
        eventually("its data is gone", lambda: own not in admin.list_topics())


def test_a_topic_without_its_cluster_waits_and_holds_up_nothing(
    api: ApiServer, operator: Operator, brokers: Cluster, place: str
) -> None:
    own = f"{place}-early"
    topic(api, place, "early", name=own, partitions=1, replicas=1, deletionPolicy="Delete")
    eventually(
        "it waits",
        lambda: condition(get(api, place, "topics", "early"), "Ready").get("reason") == "ClusterNotFound",
    )
    cluster(api, place)
    eventually("it is made", lambda: condition(get(api, place, "topics", "early"), "Ready").get("status") == "True")
    assert "finalizers" not in (get(api, place, "topics", "early") or {})["metadata"]
    api.call("DELETE", f"/apis/headrace.dev/v1alpha1/namespaces/{place}/clusters/demo")
    api.call("DELETE", f"{TOPICS.format(place)}/early")
    eventually("nothing holds it", lambda: get(api, place, "topics", "early") is None)
    with Admin(bootstrap_servers=brokers.description["grpc"]) as admin:
        assert own in admin.list_topics()
        admin.delete_topics([own])


def made(api: ApiServer, place: str, resource: str) -> str:
    """Waits until a Topic is Ready; the id of its topic."""
    ready = f"the Topic {resource} is Ready"
    eventually(ready, lambda: condition(get(api, place, "topics", resource), "Ready").get("status") == "True")
    return str((get(api, place, "topics", resource) or {})["status"]["topicId"])


def test_topics_deleted_while_no_operator_works_go_when_one_does(
    api: ApiServer, operator: Operator, brokers: Cluster, place: str
) -> None:
    cluster(api, place)
    names = {resource: f"{place}-{resource}" for resource in ("doomed", "again", "kept")}
    for resource, policy in (("doomed", "Delete"), ("again", "Delete"), ("kept", "Retain")):
        topic(api, place, resource, name=names[resource], partitions=1, deletionPolicy=policy)
    ids = {resource: made(api, place, resource) for resource in names}
    operator.kill()
    for resource in names:
        api.call("DELETE", f"{TOPICS.format(place)}/{resource}")
        assert get(api, place, "topics", resource) is None, "nothing holds it"
    topic(api, place, "again", name=names["again"], partitions=1)
    operator.start()
    with Admin(bootstrap_servers=brokers.description["grpc"]) as admin:
        eventually("its data is gone", lambda: names["doomed"] not in admin.list_topics())
        assert made(api, place, "again") != ids["again"], "it is another topic, without the data of the one before"
        assert names["kept"] in admin.list_topics()
        admin.delete_topics([names["kept"], names["again"]])


def test_a_cluster_that_was_made_again_deletes_nothing_for_the_one_before(
    api: ApiServer, operator: Operator, brokers: Cluster, place: str
) -> None:
    cluster(api, place)
    own, other = f"{place}-restored", f"{place}-other"
    topic(api, place, "restored", name=own, partitions=1, deletionPolicy="Delete")
    first = made(api, place, "restored")
    operator.kill()
    for kind, name in (("clusters", "demo"), ("topics", "restored")):
        api.call("DELETE", f"/apis/headrace.dev/v1alpha1/namespaces/{place}/{kind}/{name}")
    cluster(api, place)
    operator.start()
    # The Cluster comes back before its Topic, as from a backup.
    topic(api, place, "other", name=other, partitions=1)
    made(api, place, "other")
    topic(api, place, "restored", name=own, partitions=1, deletionPolicy="Delete")
    assert made(api, place, "restored") == first
    with Admin(bootstrap_servers=brokers.description["grpc"]) as admin:
        admin.delete_topics([own, other])


def test_the_next_operator_takes_over_from_one_that_was_killed(
    api: ApiServer, operator: Operator, brokers: Cluster, place: str, tmp_path: Path
) -> None:
    cluster(api, place)
    second = Operator(api, tmp_path, brokers.description["grpc"], "two").start()
    try:
        topic(api, place, "first", name=f"{place}-first", partitions=1)
        eventually("one works", lambda: condition(get(api, place, "topics", "first"), "Ready").get("status") == "True")
        lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/headrace-operator"
        assert api.call("GET", lease)["spec"]["holderIdentity"] == "one"
        operator.kill()
        topic(api, place, "second", name=f"{place}-second", partitions=1)
        eventually("two works", lambda: condition(get(api, place, "topics", "second"), "Ready").get("status") == "True")
        assert api.call("GET", lease)["spec"]["holderIdentity"] == "two"
        assert second.stop() == 0
        assert "Traceback" not in second.log.read_text()
    finally:
        second.kill()


def test_the_operator_is_alive_and_says_so(api: ApiServer, operator: Operator, place: str) -> None:
    def answer(port: int, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
                return str(response.read().decode())
        except OSError as error:
            return str(error)

    cluster(api, place)
    eventually("it works", lambda: "headrace_operator_leader 1.0" in answer(operator.metrics_port, "/metrics"))
    assert answer(operator.health_port, "/healthz") == "ok"
