"""Topics against what there is."""

from __future__ import annotations

from typing import Any

from tests.unit.operator.pictures import image, partition, topic

from headrace.cluster.image import Image
from headrace_operator.ledger import Owned
from headrace_operator.resources import TopicSpec
from headrace_operator.schema import parse
from headrace_operator.topics import Plan, TopicResource, plan, waiting


def wanted(resource: str, created: str = "2030-01-01T00:00:00Z", **spec: Any) -> TopicResource:
    deleting = spec.pop("deleting", False)
    return TopicResource(resource, f"uid-{resource}", created, parse(TopicSpec, {"cluster": "demo", **spec}), deleting)


def planned(picture: Image, *topics: TopicResource, owned: dict[str, Owned] | None = None) -> Plan:
    return plan(topics, picture, sorted(picture.brokers), owned)


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


def test_a_broker_that_is_away_does_not_keep_a_topic_from_being_altered() -> None:
    """With as many replicas as it shall have, one of them on the broker that restarts: nothing is wrong with it."""
    picture = image([0, 2], topic("orders", partition([0, 1, 2], isr=[0, 2])))
    assert planned(picture, wanted("orders", replicas=3)).verdicts["uid-orders"].reason == "AsSpecified"
    found = planned(picture, wanted("orders", partitions=2, replicas=3, config={"retention.ms": "7"}))
    assert found.configs == {"orders": {"retention.ms": "7"}}
    # The controller would refuse new partitions now.
    assert not found.partitions
    verdict = found.verdicts["uid-orders"]
    assert (verdict.ready, verdict.progressing) == (True, True)
    assert "once 3 brokers are alive" in verdict.message
    back = image(range(3), topic("orders", partition([0, 1, 2], isr=[0, 2])))
    assert planned(back, wanted("orders", partitions=2, replicas=3)).partitions == {"orders": 2}


def test_more_replicas_than_brokers_holds_up_nothing_else_and_heals() -> None:
    before = topic("orders", partition([0, 1]), partition([1, 0]))
    spec = wanted("orders", partitions=3, replicas=3, config={"retention.ms": "7"})
    found = planned(image(range(2), before), spec)
    assert found.verdicts["uid-orders"].reason == "NotEnoughBrokers"
    assert (found.partitions, found.configs, found.moves) == ({"orders": 3}, {"orders": {"retention.ms": "7"}}, {})
    assert len(planned(image(range(3), before), spec).moves) == 2


def test_a_wrong_setting_is_said_with_the_nearest_right_one() -> None:
    found = planned(image(range(3)), wanted("orders", config={"retention.msec": "1"}))
    assert not found.acts
    assert found.verdicts["uid-orders"].message == "unknown config retention.msec: did you mean retention.ms?"


def test_the_older_of_two_topics_wins_and_the_other_says_so() -> None:
    older = wanted("z", "2029-01-01T00:00:00Z", name="orders", partitions=3)
    newer = wanted("a", name="orders", partitions=9, deletionPolicy="Delete")
    found = planned(image(range(3), THREE), newer, older, owned={"uid-a": Owned("a", "orders")})
    assert not found.acts
    assert found.verdicts["uid-z"].ready
    assert found.verdicts["uid-a"].reason == "Conflict"
    assert "belongs to the Topic z" in found.verdicts["uid-a"].message
    assert (found.keep, found.forget) == ({}, {"uid-a"})


ORDERS = {"uid-orders": Owned("orders", "orders")}


def test_only_topics_to_be_deleted_with_their_data_are_in_the_ledger() -> None:
    picture = image(range(3), THREE)
    assert planned(picture, wanted("orders")).keep == {}
    assert planned(picture, wanted("orders", deletionPolicy="Delete")).keep == ORDERS
    assert planned(image(range(3)), wanted("orders", deletionPolicy="Delete")).keep == ORDERS
    assert planned(picture, wanted("orders", deletionPolicy="Delete"), owned=ORDERS).keep == {}
    assert planned(picture, wanted("orders"), owned=ORDERS).forget == {"uid-orders"}


def test_a_topic_goes_when_its_topic_is_gone_and_the_ledger_says_so() -> None:
    picture = image(range(3), THREE)
    assert planned(picture, owned=ORDERS).deletes == {"uid-orders": "orders"}
    assert not planned(picture).acts
    assert not planned(picture, wanted("orders", deletionPolicy="Delete", deleting=True), owned=ORDERS).acts


def test_the_ledger_is_believed_also_where_the_picture_has_no_such_topic_yet() -> None:
    assert planned(image(range(3)), owned=ORDERS).deletes == {"uid-orders": "orders"}


def test_a_topic_made_again_waits_until_the_data_of_the_one_before_is_gone() -> None:
    before = {"uid-before": Owned("orders", "orders")}
    again = wanted("orders", partitions=9, deletionPolicy="Delete")
    first = planned(image(range(3), THREE), again, owned=before)
    assert (first.deletes, first.partitions, first.keep) == ({"uid-before": "orders"}, {}, {})
    assert first.verdicts["uid-orders"].reason == "WaitingForDeletion"
    then = planned(image(range(3)), again)
    assert (set(then.creates), then.keep) == ({"orders"}, ORDERS)


def test_topics_say_what_they_wait_for() -> None:
    found = waiting([wanted("orders")], "ClusterNotFound", "it waits for the Cluster demo")
    assert found.verdicts["uid-orders"].reason == "ClusterNotFound"
    assert not found.acts


def test_a_topic_without_a_leader_is_not_ready() -> None:
    picture = image([0], topic("orders", partition([1], isr=[1], leader=-1)))
    assert planned(picture, wanted("orders")).verdicts["uid-orders"].reason == "NoLeader"
