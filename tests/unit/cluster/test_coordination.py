import uuid

import pytest

from headrace.cluster.coordination import coordinator_of, java_hash, partition_for
from headrace.cluster.image import Endpoint, Image, Node, OffsetsOwner, Partition, Topic
from headrace.errors import ErrorCode, KafkaError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("\U0001f600", 1772899),
        ("zz-top", -688085688),
    ],
)
def test_the_hash_is_javas(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_a_groups_partition_is_never_negative() -> None:
    assert partition_for("hello", 50) == 22
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("zz-top", 50) == 38


def test_the_coordinator_is_the_live_owner_of_the_groups_partition() -> None:
    node = Node(7, 1, Endpoint("h", 1))
    offsets = Topic("__consumer_offsets", uuid.uuid4(), (Partition(1, 0, (1,), (1,)),) * 50)
    topics = {offsets.name: offsets}
    owners = {22: OffsetsOwner(7, 3)}
    image = Image(topics=topics, offsets_owners=owners, coordinators={7: node})
    assert coordinator_of(image, "hello") is node
    for lacking, text in (
        (Image(offsets_owners=owners, coordinators={7: node}), "does not exist yet"),
        (Image(topics=topics, coordinators={7: node}), "nobody owns partition 22"),
        (Image(topics=topics, offsets_owners=owners), "coordinator 7, which owns partition 22, is not alive"),
    ):
        with pytest.raises(KafkaError, match=text) as caught:
            coordinator_of(lacking, "hello")
        assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
