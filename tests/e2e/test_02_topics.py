"""A user applies, alters and deletes Topics and reads their status."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.e2e.headrace import Release, fails_with, topic
from tests.e2e.kubectl import Namespace, run, wait_for

MANY = 1000


def test_apply_alter_and_delete_a_topic(namespace: Namespace, release: Release) -> None:
    namespace.apply(topic("orders", release.name, config={"retention.ms": "3600000"}))
    namespace.wait_condition("hrt", "orders", "Ready", seconds=240)
    status = namespace.get("hrt", "orders")["status"]
    assert (status["partitions"], status["replicas"], status["inSync"]) == (3, 3, "3/3")
    first_id = status["topicId"]

    namespace.patch("hrt", "orders", {"spec": {"partitions": 6, "config": {"retention.ms": "7200000"}}})
    namespace.wait_condition("hrt", "orders", "Ready", seconds=240)
    wait_for("six partitions in status", lambda: namespace.get("hrt", "orders")["status"]["partitions"] == 6, 240)
    assert "7200000" in release.headrace("configs", "describe", "topic", "orders")

    namespace.patch("hrt", "orders", {"spec": {"replicas": 2}})
    wait_for("two replicas in status", lambda: namespace.get("hrt", "orders")["status"]["replicas"] == 2, 240)
    namespace.wait_condition("hrt", "orders", "Ready", seconds=240)

    namespace.delete("hrt", "orders")
    assert "orders" in release.headrace("topics", "list"), "a topic is retained unless told otherwise"

    namespace.apply(topic("orders", release.name, partitions=6, replicas=2, deletionPolicy="Delete"))
    namespace.wait_condition("hrt", "orders", "Ready", seconds=240)
    assert namespace.get("hrt", "orders")["status"]["topicId"] == first_id, "the retained topic is taken up again"
    namespace.delete("hrt", "orders")
    wait_for("the topic is deleted", lambda: "orders" not in release.headrace("topics", "list"), 240)


def test_drift_is_put_back(namespace: Namespace, release: Release) -> None:
    namespace.apply(topic("steady", release.name, config={"retention.ms": "3600000"}, deletionPolicy="Delete"))
    namespace.wait_condition("hrt", "steady", "Ready", seconds=240)
    release.headrace("configs", "alter", "topic", "steady", "--set", "retention.ms=1234")

    def back() -> bool:
        return "3600000" in release.headrace("configs", "describe", "topic", "steady")

    wait_for("retention.ms is put back", back, 240, pause=2)
    namespace.delete("hrt", "steady")


def test_of_two_topics_for_one_name_the_older_wins(namespace: Namespace, release: Release) -> None:
    namespace.apply(topic("first", release.name, name="shared", deletionPolicy="Delete"))
    namespace.wait_condition("hrt", "first", "Ready", seconds=240)
    namespace.apply(topic("second", release.name, name="shared", partitions=5, deletionPolicy="Delete"))
    entry = namespace.wait_condition("hrt", "second", "Ready", "False", 240)
    assert "first" in entry["message"], entry
    namespace.delete("hrt", "second")
    assert "shared" in release.headrace("topics", "list"), "the loser's deletion leaves the topic alone"
    namespace.delete("hrt", "first")


def test_too_many_replicas_are_a_condition_that_heals(namespace: Namespace, release: Release) -> None:
    namespace.apply(topic("wide", release.name, replicas=9, deletionPolicy="Delete"))
    entry = namespace.wait_condition("hrt", "wide", "Ready", "False", 240)
    assert "9" in entry["message"], entry
    assert "3" in entry["message"], entry
    namespace.patch("hrt", "wide", {"spec": {"replicas": 3}})
    namespace.wait_condition("hrt", "wide", "Ready", seconds=240)
    namespace.delete("hrt", "wide")


def test_a_topic_waits_for_its_cluster(namespace: Namespace, release: Release) -> None:
    namespace.apply(topic("early", "not-there-yet"))
    entry = namespace.wait_condition("hrt", "early", "Ready", "False", 240)
    assert "not-there-yet" in entry["message"], entry
    namespace.delete("hrt", "early")


WRONG = [
    ({"partitions": 0}, "greater than or equal to 1"),
    ({"replicas": 0}, "greater than or equal to 1"),
    ({"name": "a b"}, "a topic's name has 1 to 249 letters, digits, '.', '_' and '-'"),
    ({"deletionPolicy": "Maybe"}, 'supported values: "Retain", "Delete"'),
    ({"replicas": 2, "config": {"min.insync.replicas": "3"}}, "min.insync.replicas is more than replicas"),
    ({"partitions": "many"}, "must be of type integer"),
]


@pytest.mark.parametrize(("spec", "said"), WRONG, ids=[said[:24] for _, said in WRONG])
def test_a_wrong_topic_is_refused_with_what_is_allowed(
    namespace: Namespace, release: Release, spec: dict[str, object], said: str
) -> None:
    fails_with(lambda: namespace.apply(topic("wrong", release.name, **spec)), said)


def test_what_cannot_change_is_refused(namespace: Namespace, release: Release) -> None:
    namespace.apply(topic("fixed", release.name, deletionPolicy="Delete"))
    for change, said in (
        ({"partitions": 1}, "partitions can be added, never taken away"),
        ({"cluster": "other"}, "the cluster of a topic cannot be changed"),
        ({"name": "other"}, "the name of a topic cannot be changed"),
    ):
        fails_with(lambda change=change: namespace.patch("hrt", "fixed", {"spec": change}), said)
    namespace.delete("hrt", "fixed")


def test_a_thousand_topics_become_ready_together(
    namespace: Namespace, release: Release, say: Callable[[str], None]
) -> None:
    many = [topic(f"many-{n:04}", release.name, partitions=1, replicas=1, deletionPolicy="Delete") for n in range(MANY)]
    for each in many:
        each["metadata"]["labels"] = {"e2e": "many"}
    # kubectl makes one after the other and waits for each answer: four of them keep the API server busy.
    parts = [json.dumps({"apiVersion": "v1", "kind": "List", "items": many[n::4]}) for n in range(4)]
    create = lambda part: namespace.kubectl("create", "-f", "-", text=part, seconds=300)  # noqa: E731
    with namespace.watched("hrt", "e2e=many", '.status.conditions[?(@.type=="Ready")].status') as ready:
        begin = time.monotonic()
        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(create, parts))
        applied = time.monotonic()
        all_ready = lambda: list(ready.values()).count("True") == MANY  # noqa: E731
        wait_for(f"{MANY} Topics are Ready", all_ready, 400)
    done = time.monotonic()
    say(f"{MANY} Topics: created in {applied - begin:.0f} s, all Ready {done - begin:.0f} s after the first")
    # All by one call: kubectl would delete them one by one, which shows nothing that creating them did not.
    where = f"/apis/headrace.dev/v1alpha1/namespaces/{namespace.name}/topics?labelSelector=e2e%3Dmany"
    # An API server that is busy gives up after a minute; the next call goes on where it was.
    wait_for("they are deleted", lambda: run("kubectl", "delete", "--raw", where), 400)
    deleted = time.monotonic()
    wait_for("their topics are gone", lambda: not any(t.startswith("many-") for t in release.topics()), 400)
    say(f"deleted in {deleted - done:.0f} s, their data {time.monotonic() - deleted:.0f} s later")
