"""The view on a real (in-memory) registry: what of its keys becomes visible, and when."""

import logging
import uuid
from collections.abc import AsyncIterator

import pytest

from headrace.cluster import codec
from headrace.cluster.codec import TopicEntry
from headrace.cluster.image import (
    NO_LEADER,
    ControllerChanged,
    Delta,
    Endpoint,
    Image,
    Node,
    OffsetsOwner,
    Partition,
    PartitionsChanged,
    TopicChanged,
    TopicGone,
)
from headrace.cluster.view import RegistryView
from headrace.ports import SystemClock
from headrace.registry.api import Changes, Delete, Put, Snapshot
from headrace.registry.election import Candidate
from headrace.registry.keys import Keys
from headrace.registry.memory import MemoryRegistry, MemoryStore
from headrace.registry.registration import Registration

KEYS = Keys("c1")
ORDERS = uuid.UUID(int=1)
STATE = Partition(1, 0, (1, 2), (1, 2))


class Cluster:
    """A registry with a view that has seen everything in it."""

    def __init__(self, registry: MemoryRegistry) -> None:
        self.registry = registry
        self.view = RegistryView(KEYS.root, "c1")

    async def write(self, *changes: Put | Delete) -> Delta:
        before = (await self.registry.snapshot(KEYS.root)).revision
        await self.registry.txn([], changes)
        async with self.registry.watch(KEYS.root, after=before) as items:
            item = await anext(aiter(items))
        assert isinstance(item, Changes)
        delta = self.view.apply(item)
        # However the picture came to be, a fresh look at the store shows the same.
        fresh = RegistryView(KEYS.root, "c1")
        fresh.load(await self.registry.snapshot(KEYS.root))
        assert fresh.image == self.view.image
        assert fresh.revisions == self.view.revisions
        return delta

    @property
    def image(self) -> Image:
        return self.view.image


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    registry = MemoryRegistry(MemoryStore(SystemClock()))
    yield Cluster(registry)
    await registry.close()


def partition(index: int, state: Partition = STATE, topic_id: uuid.UUID = ORDERS) -> Put:
    return Put(KEYS.partition(str(topic_id), index), codec.encode_partition(state))


def topic(count: int, topic_id: uuid.UUID = ORDERS) -> Put:
    return Put(KEYS.topic("orders"), codec.encode_topic(TopicEntry(topic_id, count)))


async def test_a_topic_is_visible_once_its_own_key_is_there(cluster: Cluster) -> None:
    assert (await cluster.write(partition(0))).changes == ()
    assert (await cluster.write(partition(1))).changes == ()
    assert not cluster.image.topics
    assert cluster.view.orphans() == {ORDERS: (0, 1)}
    delta = await cluster.write(topic(2))
    assert delta.changes == (TopicChanged(cluster.image.topics["orders"]),)
    assert cluster.image.topics["orders"].partitions == (STATE, STATE)
    assert cluster.view.orphans() == {}


async def test_added_partitions_are_visible_once_the_count_grows(cluster: Cluster) -> None:
    await cluster.write(partition(0), topic(1))
    assert (await cluster.write(partition(1), partition(2))).changes == ()
    assert len(cluster.image.topics["orders"].partitions) == 1
    assert cluster.view.orphans() == {ORDERS: (1, 2)}
    await cluster.write(topic(3))
    assert len(cluster.image.topics["orders"].partitions) == 3


async def test_a_deleted_topic_is_gone_before_its_partition_keys(cluster: Cluster) -> None:
    await cluster.write(partition(0), partition(1), topic(2))
    assert (await cluster.write(Delete(KEYS.topic("orders")))).changes == (TopicGone(ORDERS),)
    assert cluster.view.orphans() == {ORDERS: (0, 1)}
    assert (await cluster.write(Delete(KEYS.partitions_of(str(ORDERS)), prefix=True))).changes == ()
    assert cluster.view.orphans() == {}


async def test_a_topic_recreated_in_one_step_is_another_topic(cluster: Cluster) -> None:
    await cluster.write(partition(0), partition(1), topic(2))
    again = uuid.UUID(int=2)
    delta = await cluster.write(partition(0, topic_id=again), topic(1, again))
    assert [type(change) for change in delta.changes] == [TopicGone, TopicChanged]
    assert cluster.image.topics["orders"].id == again
    assert cluster.image.topic_by_id(ORDERS) is None


async def test_an_isr_change_says_only_itself(cluster: Cluster) -> None:
    await cluster.write(partition(0), partition(1), topic(2))
    shrunk = Partition(1, 0, (1,), (1, 2), 1)
    assert (await cluster.write(partition(1, shrunk))).changes == (PartitionsChanged(ORDERS, {1: shrunk}),)
    assert cluster.image.topics["orders"].partitions == (STATE, shrunk)


async def test_a_partition_whose_key_is_missing_has_no_leader(cluster: Cluster) -> None:
    await cluster.write(partition(1), topic(2))
    assert [state.leader for state in cluster.image.topics["orders"].partitions] == [NO_LEADER, 1]


async def test_nodes_are_read_as_the_registry_writes_them(cluster: Cluster) -> None:
    directory = uuid.uuid4()
    broker = Registration(
        "3", "k.example", {"kafka": 9092, "grpc": 9094}, str(directory), "i", "r1", {"grpc_host": "g.example"}
    )
    await cluster.write(Put(KEYS.broker(3), broker.to_bytes()))
    revision = cluster.image.revision
    node = Node(3, revision, Endpoint("g.example", 9094), Endpoint("k.example", 9092), "r1", directory, "i")
    assert cluster.image.brokers == {3: node}
    await cluster.write(Put(KEYS.coordinator(1), Registration("1", "h", {"grpc": 1}, "", "i").to_bytes()))
    assert cluster.image.coordinators[1].kafka is None
    await cluster.write(Put(KEYS.controller, Candidate(2, "[::1]:9094").to_bytes()), Put(KEYS.controller_epoch, b"7"))
    assert cluster.image.controller is not None
    assert cluster.image.controller.grpc == Endpoint("::1", 9094)
    assert cluster.image.controller_epoch == 7
    assert (await cluster.write(Delete(KEYS.controller))).changes == (ControllerChanged(None),)
    await cluster.write(Delete(KEYS.broker(3)), Delete(KEYS.coordinator(1)))
    assert not cluster.image.brokers
    assert not cluster.image.coordinators
    assert cluster.image.controller_epoch == 7


async def test_a_registration_that_comes_back_has_a_new_epoch(cluster: Cluster) -> None:
    put = Put(KEYS.broker(1), Registration("1", "h", {"grpc": 1}, "", "i").to_bytes())
    await cluster.write(put)
    first = cluster.image.brokers[1].epoch
    await cluster.write(Delete(KEYS.broker(1)))
    await cluster.write(put)
    assert cluster.image.brokers[1].epoch > first


async def test_configs_and_offsets_owners(cluster: Cluster) -> None:
    await cluster.write(
        Put(KEYS.config("topics", "orders"), codec.encode_configs({"retention.ms": "1"})),
        Put(KEYS.config("brokers", "default"), codec.encode_configs({"log.retention.ms": "2"})),
        Put(KEYS.config("brokers", "1"), codec.encode_configs({"log.retention.ms": "3"})),
        Put(KEYS.offsets_owner(4), codec.encode_offsets_owner(2)),
        Put(KEYS.producer_ids, codec.encode_number(1000)),
    )
    assert cluster.image.topic_config("orders") == {"retention.ms": "1"}
    assert cluster.image.broker_configs == {"": {"log.retention.ms": "2"}, "1": {"log.retention.ms": "3"}}
    assert cluster.image.offsets_owners == {4: OffsetsOwner(2, cluster.image.revision)}
    await cluster.write(Delete(KEYS.configs, prefix=True), Delete(KEYS.offsets_owner(4)))
    assert not cluster.image.topic_configs
    assert not cluster.image.broker_configs
    assert not cluster.image.offsets_owners


@pytest.mark.parametrize("value", [b"{", b"[]", b"{}", b'"x"', b"7", b"\xff", b'{"isr": 1, "replicas": 2}'])
async def test_a_damaged_value_hides_nothing_else(
    cluster: Cluster, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.write(partition(0), partition(1), topic(2))
    damaged = [KEYS.partition(str(ORDERS), 0), KEYS.topic("orders"), KEYS.broker(1), KEYS.controller]
    snapshot = Snapshot(9, ())
    for key in damaged:
        await cluster.registry.txn([], [Put(key, value)])
    snapshot = await cluster.registry.snapshot(KEYS.root)
    events = Changes(snapshot.revision, tuple(item for item in snapshot.items if item.key in damaged))  # type: ignore[arg-type]
    with caplog.at_level(logging.ERROR):
        cluster.view.apply(events)
    assert cluster.image.topics["orders"].partitions == (STATE, STATE)
    assert len(caplog.records) == 4
    assert KEYS.topic("orders") in caplog.text


async def test_loading_again_says_what_is_different(cluster: Cluster) -> None:
    await cluster.write(partition(0), topic(1))
    before = cluster.image
    await cluster.registry.txn([], [Delete(KEYS.topic("orders"))])
    delta = cluster.view.load(await cluster.registry.snapshot(KEYS.root))
    assert delta.changes == (TopicGone(ORDERS),)
    assert before.apply(delta) == cluster.image
