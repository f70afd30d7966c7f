from hypothesis import given
from tests.unit.cluster.pictures import DELTAS, IMAGES, topic_of

from headrace.cluster.image import Delta, Image, TopicChanged, TopicConfigChanged
from headrace.cluster.protos import delta_from_proto, delta_to_proto, image_from_proto, snapshot_to_proto
from headrace.v1 import metadata_pb2


@given(IMAGES)
def test_a_picture_survives_the_wire(image: Image) -> None:
    message = metadata_pb2.Snapshot.FromString(snapshot_to_proto(image).SerializeToString())
    assert image_from_proto(message) == image


@given(DELTAS)
def test_every_change_survives_the_wire(delta: Delta) -> None:
    message = metadata_pb2.Delta.FromString(delta_to_proto(delta).SerializeToString())
    assert delta_from_proto(message) == delta


def test_a_change_of_a_later_version_is_left_out() -> None:
    message = metadata_pb2.Delta(revision=3, changes=[metadata_pb2.Change()])
    assert delta_from_proto(message) == Delta(3, ())


def test_a_snapshot_of_some_topics_has_only_those() -> None:
    changes = (
        TopicChanged(topic_of("orders", 1, 1)),
        TopicChanged(topic_of("payments", 1, 2)),
        TopicConfigChanged("orders", {"retention.ms": "1"}),
        TopicConfigChanged("payments", {"retention.ms": "2"}),
    )
    message = snapshot_to_proto(Image().apply(Delta(1, changes)), ["payments", "unknown"])
    assert [topic.name for topic in message.topics] == ["payments"]
    assert [config.resource.name for config in message.configs] == ["payments"]
