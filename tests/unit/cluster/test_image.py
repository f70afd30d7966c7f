import uuid

from hypothesis import given
from tests.unit.cluster.pictures import DELTAS, IMAGES, topic_of

from headrace.cluster.image import (
    NO_LEADER,
    Delta,
    Image,
    Partition,
    PartitionsChanged,
    Topic,
    TopicChanged,
    TopicGone,
    changes_between,
)

ISR_SHRUNK = Partition(1, 0, (1,), (1, 2), 1)


def holding(*topics: Topic) -> Image:
    return Image().apply(Delta(1, tuple(TopicChanged(topic) for topic in topics)))


def test_one_isr_change_shares_everything_else() -> None:
    before = holding(topic_of("orders", 3, 1), topic_of("payments", 3, 2))
    after = before.apply(Delta(2, (PartitionsChanged(uuid.UUID(int=1), {1: ISR_SHRUNK}),)))
    assert after.partition("orders", 1) == ISR_SHRUNK
    assert before.partition("orders", 1) != ISR_SHRUNK
    assert after.partition("orders", 0) is before.partition("orders", 0)
    assert after.topics["payments"] is before.topics["payments"]
    assert after.brokers is before.brokers
    assert after.topic_names is before.topic_names
    assert (before.revision, after.revision) == (1, 2)


def test_a_recreated_topic_is_found_by_its_new_id_only() -> None:
    before = holding(topic_of("orders", 3, 1))
    after = before.apply(Delta(2, (TopicChanged(topic_of("orders", 1, 2)),)))
    assert after.topic_by_id(uuid.UUID(int=1)) is None
    assert after.topic_by_id(uuid.UUID(int=2)) is after.topics["orders"]


def test_changes_of_one_delta_see_each_other() -> None:
    delta = Delta(2, (TopicChanged(topic_of("orders", 2)), PartitionsChanged(uuid.UUID(int=1), {0: ISR_SHRUNK})))
    assert Image().apply(delta).partition("orders", 0) == ISR_SHRUNK


def test_partitions_of_an_unknown_topic_or_index_are_ignored() -> None:
    before = holding(topic_of("orders", 1))
    changes = (
        PartitionsChanged(uuid.UUID(int=9), {0: ISR_SHRUNK}),
        PartitionsChanged(uuid.UUID(int=1), {5: ISR_SHRUNK}),
    )
    assert before.apply(Delta(2, changes)).topics == before.topics


def test_a_deleted_topic_leaves_nothing() -> None:
    after = holding(topic_of("orders", 1)).apply(Delta(2, (TopicGone(uuid.UUID(int=1)),)))
    assert not after.topics
    assert not after.topic_names
    assert after.partition("orders", 0) is None


def test_only_headraces_own_topics_are_internal() -> None:
    assert topic_of("__consumer_offsets", 1).internal
    assert not topic_of("__mine", 1).internal
    assert Partition(NO_LEADER, 0, (), ()).preferred_leader == NO_LEADER


@given(IMAGES, DELTAS)
def test_changes_between_two_pictures_lead_from_one_to_the_other(old: Image, delta: Delta) -> None:
    new = old.apply(delta)
    found = tuple(changes_between(old, new))
    assert old.apply(Delta(delta.revision, found)) == new
    assert new.topic_names == {topic.id: name for name, topic in new.topics.items()}


@given(IMAGES, IMAGES)
def test_changes_between_strangers_lead_there_too(old: Image, new: Image) -> None:
    assert old.apply(Delta(new.revision, tuple(changes_between(old, new)))) == new


@given(IMAGES)
def test_nothing_changed_means_no_changes(image: Image) -> None:
    assert not list(changes_between(image, image))
