"""Topics against what there is."""

from __future__ import annotations

from typing import Any

from tests.unit.operator.pictures import image, partition, topic

from headrace.cluster.image import Image
from headrace_operator.resources import TopicSpec
from headrace_operator.schema import parse
from headrace_operator.topics import Plan, TopicResource, plan, waiting


def wanted(resource: str, created: str = "2030-01-01T00:00:00Z", **spec: Any) -> TopicResource:
    flags = {k: spec.pop(k) for k in ("deleting", "finalizer") if k in spec}
    return TopicResource(resource, f"uid-{resource}", created, parse(TopicSpec, {"cluster": "demo", **spec}), **flags)


def planned(picture: Image, *topics: TopicResource) -> Plan:
    return plan(topics, picture, sorted(picture.brokers))


THREE = topic("orders", *(partition([i, (i + 1) % 3, (i + 2) % 3]) for i in range(3)))


def test_a_missing_topic_is_created_with_all_it_shall_have() -> None:
    found = planned(image(range(3)), wanted("orders", partitions=6, replicas=3, config={"retention.ms": 1000}))
    (new,) = found.creates.values()
    assert (new.name, new.partitions, new.replication_factor, new.configs) == ("orders", 6, 3, {"retention.ms": "1000"})
    assert found.verdicts["uid-orders"].reason == "Creating"


def test_a_topic_that_is_as_it_shall_be_is_left_alone() -> None:
    found = planned(
        image(range(3), THREE, configs={"orders": {"cleanup.policy": "compact"}}),
        wanted("orders", partitions=3, replicas=3, config={"cleanup.policy": "compact"}),
    )
    assert not found.acts
    assert found.verdicts["uid-orders"].ready


def test_drift_of_settings_is_put_back_but_throttles_of_a_move_stay() -> None:
    actual = {"retention.ms": "5", "segment.ms": "9", "leader.replication.throttled.replicas": "*"}
    found = planned(image(range(3), THREE, configs={"orders": actual}), wanted("orders", config={"retention.ms": "7"}))
    assert found.configs == {"orders": {"retention.ms": "7", "segment.ms": None}}


def test_partitions_grow_and_never_shrink() -> None:
    assert planned(image(range(3), THREE), wanted("orders", partitions=5)).partitions == {"orders": 5}
    fewer = planned(image(range(3), THREE), wanted("orders", partitions=2))
    assert not fewer.acts
    assert fewer.verdicts["uid-orders"].reason == "PartitionsCannotShrink"


def test_more_replicas_go_to_brokers_with_the_fewest() -> None:
    picture = image(range(4), topic("orders", partition([0]), partition([1])), topic("full", partition([2, 2])))
    moves = planned(picture, wanted("orders", replicas=2)).moves
    assert moves[("orders", 0)] == (0, 3)
    assert len(set(moves[("orders", 1)])) == 2


def test_fewer_replicas_drop_the_one_out_of_sync() -> None:
    picture = image(range(3), topic("orders", partition([0, 1, 2], isr=[0, 2]), partition([0, 1, 2])))
    moves = planned(picture, wanted("orders", replicas=2)).moves
    assert moves == {("orders", 0): (0, 2), ("orders", 1): (0, 1)}


def test_moves_under_way_are_left_to_arrive_and_told() -> None:
    moving = partition([0, 1, 2], isr=[0, 1], adding=[2])
    found = planned(image(range(3), topic("orders", moving)), wanted("orders", replicas=3))
    assert not found.moves
    verdict = found.verdicts["uid-orders"]
    assert (verdict.ready, verdict.progressing, verdict.message) == (True, True, "1 of 1 partitions move")


def test_more_replicas_than_brokers_is_said_and_heals() -> None:
    topic_ = wanted("orders", replicas=3)
    assert planned(image(range(2)), topic_).verdicts["uid-orders"].reason == "NotEnoughBrokers"
    assert planned(image(range(3)), topic_).creates


def test_a_wrong_setting_is_said_with_the_nearest_right_one() -> None:
    found = planned(image(range(3)), wanted("orders", config={"retention.msec": "1"}))
    assert not found.acts
    assert found.verdicts["uid-orders"].message == "unknown config retention.msec: did you mean retention.ms?"


def test_the_older_of_two_topics_wins_and_the_other_says_so() -> None:
    older = wanted("z", "2029-01-01T00:00:00Z", name="orders", partitions=3)
    newer = wanted("a", name="orders", partitions=9, deletionPolicy="Delete", finalizer=True)
    found = planned(image(range(3), THREE), newer, older)
    assert not found.acts
    assert found.verdicts["uid-z"].ready
    assert found.verdicts["uid-a"].reason == "Conflict"
    assert "belongs to the Topic z" in found.verdicts["uid-a"].message
    assert found.release == {"uid-a"}


def test_only_topics_to_be_deleted_with_their_data_are_held() -> None:
    picture = image(range(3), THREE)
    assert planned(picture, wanted("orders")).hold == set()
    assert planned(picture, wanted("orders", deletionPolicy="Delete")).hold == {"uid-orders"}
    assert planned(picture, wanted("orders", finalizer=True)).release == {"uid-orders"}


def test_a_deleted_topic_goes_with_its_data_or_without_as_it_says() -> None:
    picture = image(range(3), THREE)
    going = {"deleting": True, "finalizer": True}
    gone = planned(picture, wanted("orders", deletionPolicy="Delete", **going))
    assert (gone.deletes, gone.release) == ({"orders"}, set())
    assert planned(image(range(3)), wanted("orders", deletionPolicy="Delete", **going)).release == {"uid-orders"}
    kept = planned(picture, wanted("orders", **going))
    assert (kept.deletes, kept.release) == (set(), {"uid-orders"})


def test_nobody_waits_for_a_cluster_that_is_gone() -> None:
    held = wanted("orders", deletionPolicy="Delete", finalizer=True, deleting=True)
    assert waiting([held], "ClusterNotFound", "", gone=True).release == {"uid-orders"}
    assert waiting([held], "ClusterNotReady", "", gone=False).release == set()


def test_a_topic_without_a_leader_is_not_ready() -> None:
    picture = image([0], topic("orders", partition([1], isr=[1], leader=-1)))
    assert planned(picture, wanted("orders")).verdicts["uid-orders"].reason == "NoLeader"
