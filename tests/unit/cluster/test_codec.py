import json
import uuid

import pytest
from hypothesis import given
from tests.unit.cluster.pictures import CONFIGS, NODES, OWNERS, PARTITIONS

from headrace.cluster import codec
from headrace.cluster.image import Endpoint, Node, OffsetsOwner, Partition


@given(PARTITIONS)
def test_partitions_come_back(partition: Partition) -> None:
    assert codec.decode_partition(codec.encode_partition(partition)) == partition


@given(NODES)
def test_nodes_come_back_with_the_epoch_of_their_key(node: Node) -> None:
    assert codec.decode_node(codec.encode_node(node), node.epoch) == node


@given(NODES)
def test_controllers_come_back(node: Node) -> None:
    plain = Node(node.id, node.epoch, node.grpc)
    assert codec.decode_controller(codec.encode_controller(plain), node.epoch) == plain


@given(OWNERS, CONFIGS)
def test_owners_and_configs_come_back(owner: OffsetsOwner, configs: dict[str, str]) -> None:
    assert codec.decode_offsets_owner(codec.encode_offsets_owner(owner.coordinator), owner.epoch) == owner
    assert codec.decode_configs(codec.encode_configs(configs)) == configs


def test_values_can_be_read_by_people() -> None:
    entry = codec.TopicEntry(uuid.UUID(int=1), 3)
    assert codec.encode_topic(entry) == b'{"id":"00000000-0000-0000-0000-000000000001","partitions":3}'
    assert codec.decode_topic(codec.encode_topic(entry)) == entry
    assert json.loads(codec.encode_partition(Partition(1, 2, (1,), (1, 2), 3))) == {
        "leader": 1,
        "leader_epoch": 2,
        "isr": [1],
        "replicas": [1, 2],
        "partition_epoch": 3,
    }
    assert codec.decode_number(codec.encode_number(42)) == 42


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"null", b"{}", b"\xff"])
def test_a_value_that_is_something_else_says_so(value: bytes) -> None:
    for decode in (codec.decode_partition, codec.decode_topic, codec.decode_number):
        with pytest.raises(codec.BadValue, match="cannot be read"):
            decode(value)
    with pytest.raises(codec.BadValue, match="cannot be read"):
        codec.decode_node(value, 1)
    with pytest.raises(codec.BadValue, match="cannot be read"):
        codec.decode_offsets_owner(value, 1)


@pytest.mark.parametrize("text", ["", "9092", "host", "host:", "host:x", "host:70000", "::1:9092"])
def test_what_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        Endpoint.parse(text)


@pytest.mark.parametrize("text", ["a.example:1", "[::1]:65535", ":9092"])
def test_addresses_come_back(text: str) -> None:
    assert str(Endpoint.parse(text)) == text
