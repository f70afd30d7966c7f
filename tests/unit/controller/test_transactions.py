"""How plans become transactions, and how their results and the watch's echo meet in the picture."""

from __future__ import annotations

import uuid

from headrace.cluster import codec
from headrace.cluster.image import Image, Partition, Topic
from headrace.controller.picture import Picture
from headrace.controller.plan import Incarnation, Plan
from headrace.controller.transactions import transactions, writes_of
from headrace.registry.api import Changes, CreateRevision, Event, KeyValue, ModRevision, Put, Snapshot
from headrace.registry.keys import Keys

KEYS = Keys("test")
GUARD = CreateRevision(KEYS.controller, 7)
STATE = Partition(1, 0, (1,), (1, 2))


def topic(name: str, partitions: int) -> Topic:
    return Topic(name, uuid.uuid5(uuid.NAMESPACE_DNS, name), (STATE,) * partitions)


def test_a_small_plan_is_one_transaction() -> None:
    plan = Plan(topics={"a": topic("a", 3)}, topic_configs={"a": {"retention.ms": "1"}})

    [[only]] = transactions(writes_of(plan, Image(), KEYS), GUARD, {}, limit=128)

    assert only.conditions[0] == GUARD
    assert [change.key.removeprefix(KEYS.root).split("/")[0] for change in only.changes] == [
        "partitions",
        "partitions",
        "partitions",
        "configs",
        "topics",
    ]
    assert ModRevision(KEYS.topic("a"), 0) in only.conditions


def test_a_large_topic_becomes_visible_after_all_its_partitions() -> None:
    plan = Plan(topics={"a": topic("a", 300)}, incarnations={1: Incarnation(5)})

    steps = transactions(writes_of(plan, Image(), KEYS), GUARD, {}, limit=128)

    assert [[len(transaction.changes) for transaction in step] for step in steps] == [[127, 127, 46], [1], [1]]
    assert all(len(transaction.conditions) <= 128 for step in steps for transaction in step)
    assert all(transaction.conditions[0] == GUARD for step in steps for transaction in step)
    assert steps[1][0].changes[0].key == KEYS.topic("a")


def test_changed_partitions_must_be_as_they_were_read() -> None:
    known = topic("a", 2)
    image = Image(topics={"a": known}, topic_names={known.id: "a"})
    key = KEYS.partition(str(known.id), 1)

    [[only]] = transactions(writes_of(Plan(partitions={("a", 1): STATE}), image, KEYS), GUARD, {key: 42}, limit=128)

    assert only.conditions == (GUARD, ModRevision(key, 42))


def snapshot_of(*topics: Topic, revision: int) -> Snapshot:
    items = []
    for known in topics:
        entry = codec.encode_topic(codec.TopicEntry(known.id, len(known.partitions)))
        items.append(KeyValue(KEYS.topic(known.name), entry, revision, revision))
        for index, state in enumerate(known.partitions):
            key = KEYS.partition(str(known.id), index)
            items.append(KeyValue(key, codec.encode_partition(state), revision, revision))
    return Snapshot(revision, tuple(items))


def picture_of(*topics: Topic, revision: int = 10) -> Picture:
    picture = Picture(KEYS, "test")
    picture.load(snapshot_of(*topics, revision=revision))
    return picture


def put(known: Topic, state: Partition) -> Put:
    return Put(KEYS.partition(str(known.id), 0), codec.encode_partition(state))


def test_an_own_write_is_there_at_once_and_its_echo_changes_nothing() -> None:
    known = topic("a", 1)
    picture = picture_of(known)
    first, second = (Partition(1, 0, (1, 2), (1, 2), epoch) for epoch in (1, 2))

    picture.made([put(known, first)], 11)
    assert picture.image.partition("a", 0) == first
    picture.made([put(known, second)], 12)
    echo = Changes(11, (Event(put(known, first).key, put(known, first).value, 10, 11),))
    assert picture.absorb(echo).changes == ()
    assert picture.image.partition("a", 0) == second
    assert picture.revisions[put(known, second).key] == 12


def test_the_echo_of_what_was_deleted_since_does_not_bring_it_back() -> None:
    known = topic("a", 1)
    picture = Picture(KEYS, "test")
    plan = Plan(topics={"a": known})
    [[create]] = transactions(writes_of(plan, picture.image, KEYS), GUARD, {}, limit=128)
    picture.made(create.changes, 11)
    [[delete]] = transactions(writes_of(Plan(deleted={"a": known}), picture.image, KEYS), GUARD, {}, limit=128)
    picture.made(delete.changes, 12)
    assert not picture.image.topics

    created = tuple(Event(change.key, getattr(change, "value", None), 11, 11) for change in create.changes)
    picture.absorb(Changes(11, created))
    assert not picture.image.topics
    assert not picture.orphans()
    picture.absorb(Changes(12, tuple(Event(event.key, None, 0, 12) for event in created)))
    picture.absorb(Changes(13, tuple(Event(event.key, event.value, 13, 13) for event in created)))
    assert set(picture.image.topics) == {"a"}


def test_changes_older_than_a_snapshot_are_not_taken() -> None:
    known = topic("a", 1)
    picture = picture_of(revision=20)
    picture.absorb(Changes(11, (Event(KEYS.topic("a"), codec.encode_topic(codec.TopicEntry(known.id, 1)), 11, 11),)))
    assert not picture.image.topics
