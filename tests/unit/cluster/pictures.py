"""Random pictures of a cluster, and random steps from one to the next, for the tests of this folder."""

import uuid

from hypothesis import strategies as st

from headrace.cluster.image import (
    BrokerChanged,
    BrokerConfigChanged,
    BrokerGone,
    ControllerChanged,
    ControllerEpochChanged,
    CoordinatorChanged,
    CoordinatorGone,
    Delta,
    Endpoint,
    Image,
    Node,
    OffsetsOwner,
    OffsetsOwnerChanged,
    Partition,
    PartitionsChanged,
    Topic,
    TopicChanged,
    TopicConfigChanged,
    TopicGone,
)

IDS = st.integers(0, 3)
NAMES = st.sampled_from(["orders", "payments", "__consumer_offsets"])
TOPIC_IDS = st.integers(1, 5).map(lambda n: uuid.UUID(int=n))
BROKERS = st.lists(IDS, unique=True, min_size=1).map(tuple)
ENDPOINTS = st.builds(Endpoint, st.sampled_from(["a.example", "::1"]), st.integers(1, 65535))
NODES = st.builds(
    Node,
    id=IDS,
    epoch=st.integers(1, 9),
    grpc=ENDPOINTS,
    kafka=st.none() | ENDPOINTS,
    rack=st.sampled_from(["", "r1"]),
    directory_id=st.none() | st.uuids(),
    listeners=st.dictionaries(st.sampled_from(["IN", "OUT"]), ENDPOINTS).map(lambda held: tuple(sorted(held.items()))),
)
PARTITIONS = st.builds(
    Partition,
    leader=st.integers(-1, 3),
    leader_epoch=st.integers(0, 9),
    isr=BROKERS,
    replicas=BROKERS,
    partition_epoch=st.integers(0, 9),
    adding=st.just(()) | BROKERS,
    removing=st.just(()) | BROKERS,
    elr=st.just(()) | BROKERS,
    last_known_leader=st.integers(-1, 3),
)
CONFIGS = st.dictionaries(st.sampled_from(["retention.ms", "segment.bytes"]), st.sampled_from(["1", "2"]))
OWNERS = st.builds(OffsetsOwner, IDS, st.integers(0, 9))


@st.composite
def topics(draw: st.DrawFn) -> Topic:
    # A topic's id belongs to one name, as in life.
    topic_id = draw(TOPIC_IDS)
    name = "orders" if topic_id.int <= 2 else "payments" if topic_id.int <= 4 else "__consumer_offsets"
    return Topic(name, topic_id, tuple(draw(st.lists(PARTITIONS, min_size=1, max_size=4))))


CHANGES = st.one_of(
    st.builds(BrokerChanged, NODES),
    st.builds(BrokerGone, IDS),
    st.builds(CoordinatorChanged, NODES),
    st.builds(CoordinatorGone, IDS),
    st.builds(ControllerChanged, st.none() | NODES),
    st.builds(ControllerEpochChanged, st.integers(0, 9)),
    st.builds(TopicChanged, topics()),
    st.builds(TopicGone, TOPIC_IDS),
    st.builds(PartitionsChanged, TOPIC_IDS, st.dictionaries(st.integers(0, 3), PARTITIONS)),
    st.builds(TopicConfigChanged, NAMES, CONFIGS),
    st.builds(BrokerConfigChanged, st.sampled_from(["", "1"]), CONFIGS),
    st.builds(OffsetsOwnerChanged, IDS, st.none() | OWNERS),
)
DELTAS = st.lists(CHANGES, max_size=12).map(lambda changes: Delta(7, tuple(changes)))
IMAGES = DELTAS.map(lambda delta: Image(cluster_id="c1").apply(delta))


def topic_of(name: str, count: int, number: int = 1, leader: int = 1) -> Topic:
    """A topic whose partitions all have the same leader and two replicas."""
    return Topic(name, uuid.UUID(int=number), (Partition(leader, 0, (leader, 2), (leader, 2)),) * count)
