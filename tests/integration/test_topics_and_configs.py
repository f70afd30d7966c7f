"""Topics and configs from creation to deletion, with the admin clients of confluent-kafka and kafka-python."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import kafka
import kafka.errors
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from kafka import KafkaAdminClient
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from tests.integration.cluster import Cluster, wait_until
from tests.integration.kafka_clients import Confluent, Rec, Send, Want, confluent_producer
from tests.integration.raw import METADATA, Wire
from tests.integration.topics import create_topic


def error_of(future: Any) -> int:
    """The code an admin call was refused with."""
    with pytest.raises(KafkaException) as refused:
        future.result(30)
    error: KafkaError = refused.value.args[0]
    assert error.str(), "a refusal says why"
    return int(error.code())


def create(admin: AdminClient, name: str, partitions: int = 1, **options: Any) -> Any:
    return admin.create_topics([NewTopic(name, partitions, 1, **options)])[name]


def topic_config(admin: AdminClient, topic: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    entries: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource].result(30)
    return entries


def change(admin: AdminClient, topic: str, kind: AlterConfigOpType, name: str, value: str | None) -> Any:
    entry = ConfigEntry(name, value, incremental_operation=kind)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    return admin.incremental_alter_configs([resource])[resource]


def test_a_topic_is_created_described_grown_and_deleted(admin: AdminClient) -> None:
    topic = create_topic(admin, f"life-{uuid.uuid4().hex}", 2, retention_ms="123456")
    assert topic in admin.list_topics(timeout=10).topics
    assert topic_config(admin, topic)["retention.ms"].value == "123456"

    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(30)
    wait_until(lambda: len(admin.list_topics(topic, 10).topics[topic].partitions) == 5, "five partitions")

    admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, "the topic to be gone")


def test_what_a_topic_may_not_be(admin: AdminClient, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    assert error_of(create(admin, topic)) == KafkaError.TOPIC_ALREADY_EXISTS
    assert error_of(create(admin, "no spaces")) == KafkaError.TOPIC_EXCEPTION
    assert error_of(create(admin, "x" * 250)) == KafkaError.TOPIC_EXCEPTION
    assert error_of(create(admin, "..")) == KafkaError.TOPIC_EXCEPTION
    assert error_of(create(admin, "none", partitions=0)) == KafkaError.INVALID_PARTITIONS
    too_many = admin.create_topics([NewTopic("copies", 1, 99)])["copies"]
    assert error_of(too_many) == KafkaError.INVALID_REPLICATION_FACTOR
    assert error_of(create(admin, "odd", config={"retention.mss": "1"})) == KafkaError.INVALID_CONFIG
    assert error_of(create(admin, "odd", config={"retention.ms": "soon"})) == KafkaError.INVALID_CONFIG
    assert error_of(admin.delete_topics(["never-was"])["never-was"]) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_partitions_never_become_fewer(admin: AdminClient, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=3)
    for count in (2, 3):
        assert error_of(admin.create_partitions([NewPartitions(topic, count)])[topic]) == KafkaError.INVALID_PARTITIONS
    assert len(admin.list_topics(topic, 10).topics[topic].partitions) == 3


def test_validate_only_creates_nothing(admin: AdminClient) -> None:
    name = f"maybe-{uuid.uuid4().hex}"
    admin.create_topics([NewTopic(name, 1, 1)], validate_only=True)[name].result(30)
    assert name not in admin.list_topics(timeout=10).topics


def test_a_deleted_topic_comes_back_empty_with_a_new_id(bootstrap: str, admin: AdminClient) -> None:
    topic = create_topic(admin, f"again-{uuid.uuid4().hex}")
    Confluent().produce(bootstrap, [Send(topic, 0, [Rec(b"old")])])
    with Wire(bootstrap) as wire:
        before = topic_id(wire, topic)
        admin.delete_topics([topic])[topic].result(30)
        wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, "the topic to be gone")
        create_topic(admin, topic)
        after = wait_until(lambda: topic_id(wire, topic), "an id of the new topic")
    assert before is not None
    assert after not in (None, before)
    Confluent().produce(bootstrap, [Send(topic, 0, [Rec(b"new")])])
    assert [record.value for record in Confluent().consume(bootstrap, [Want(topic, 0, 1)])[topic, 0]] == [b"new"]


def metadata_of(wire: Wire, topic: str) -> Any:
    """What Metadata says about one topic, without leave to create it."""
    kind = load_request_schema(METADATA, 12)
    part = vars(__import__(kind.__module__, fromlist=["_"]))["MetadataRequestTopic"]
    request = kind(
        topics=(part(name=topic, topic_id=None),),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    return wire.call(request).topics[0]


def topic_id(wire: Wire, topic: str) -> uuid.UUID | None:
    found: uuid.UUID | None = metadata_of(wire, topic).topic_id
    return found


def test_configs_are_set_removed_appended_to_and_subtracted_from(
    admin: AdminClient, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    kind = AlterConfigOpType
    default = topic_config(admin, topic)["retention.ms"]
    assert (default.value, default.is_default) == ("604800000", True)

    change(admin, topic, kind.SET, "retention.ms", "5000").result(30)
    wait_until(lambda: topic_config(admin, topic)["retention.ms"].value == "5000", "retention.ms to be set")
    assert not topic_config(admin, topic)["retention.ms"].is_default

    change(admin, topic, kind.DELETE, "retention.ms", None).result(30)
    wait_until(lambda: topic_config(admin, topic)["retention.ms"].value == "604800000", "retention.ms to be default")

    change(admin, topic, kind.APPEND, "cleanup.policy", "compact").result(30)
    wait_until(lambda: topic_config(admin, topic)["cleanup.policy"].value == "delete,compact", "both policies")
    change(admin, topic, kind.SUBTRACT, "cleanup.policy", "delete").result(30)
    wait_until(lambda: topic_config(admin, topic)["cleanup.policy"].value == "compact", "one policy")

    assert error_of(change(admin, topic, kind.SET, "retention.ms", "soon")) == KafkaError.INVALID_CONFIG
    assert error_of(change(admin, topic, kind.SET, "retention.mss", "1")) == KafkaError.INVALID_CONFIG
    assert error_of(change(admin, topic, kind.APPEND, "retention.ms", "1")) == KafkaError.INVALID_CONFIG
    assert error_of(change(admin, "never-was", kind.SET, "retention.ms", "1")) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_broker_configs_tell_what_tools_look_for(admin: AdminClient) -> None:
    broker = next(iter(admin.list_topics(timeout=10).brokers))
    resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
    entries = admin.describe_configs([resource])[resource].result(30)
    assert entries["auto.create.topics.enable"].value in ("true", "false")
    assert entries["delete.topic.enable"].value == "true"
    assert int(entries["num.partitions"].value) >= 1
    assert "log.retention.hours" in entries or "log.retention.ms" in entries
    assert entries["log.dirs"].is_read_only


def test_the_whole_config_of_a_topic_can_be_replaced(admin: AdminClient, new_topic: Callable[..., str]) -> None:
    topic = new_topic(retention_ms="5000")
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, set_config={"segment.bytes": "2000000"})
    admin.alter_configs([resource])[resource].result(30)
    wait_until(lambda: topic_config(admin, topic)["segment.bytes"].value == "2000000", "the new segment.bytes")
    assert topic_config(admin, topic)["retention.ms"].is_default, "AlterConfigs forgets what it does not name"


def test_records_before_an_offset_are_deleted(
    bootstrap: str, admin: AdminClient, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    Confluent().produce(bootstrap, [Send(topic, 0, [Rec(b"%d" % number) for number in range(10)])])
    deleted = admin.delete_records([TopicPartition(topic, 0, 4)])
    assert next(iter(deleted.values())).result(30).low_watermark == 4
    read = Confluent().consume(bootstrap, [Want(topic, 0, 6)])[topic, 0]
    assert [record.value for record in read] == [b"%d" % number for number in range(4, 10)]

    past_the_end = admin.delete_records([TopicPartition(topic, 0, 11)])
    assert error_of(next(iter(past_the_end.values()))) == KafkaError.OFFSET_OUT_OF_RANGE
    everything = admin.delete_records([TopicPartition(topic, 0, -1)])
    assert next(iter(everything.values())).result(30).low_watermark == 10


def test_the_cluster_is_described(admin: AdminClient, bootstrap: str) -> None:
    found = admin.describe_cluster().result(30)
    addresses = [f"{node.host}:{node.port}" for node in found.nodes]
    assert bootstrap in addresses
    assert found.cluster_id
    assert found.controller.id in [node.id for node in found.nodes]


def test_offsets_are_listed_by_the_admin_client(
    bootstrap: str, admin: AdminClient, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    start = int(time.time() * 1000) - 60_000
    times = [start, start + 9000, start + 5000]
    Confluent().produce(bootstrap, [Send(topic, 0, [Rec(b"x", timestamp=time) for time in times])])

    def offset(spec: OffsetSpec) -> int:
        return int(next(iter(admin.list_offsets({TopicPartition(topic, 0): spec}).values())).result(30).offset)

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 3
    assert offset(OffsetSpec.max_timestamp()) == 1
    assert offset(OffsetSpec.for_timestamp(start + 1)) == 1


@pytest.fixture
def python_admin(bootstrap: str) -> Any:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


def test_kafka_python_manages_topics_too(python_admin: KafkaAdminClient, bootstrap: str) -> None:
    topic = f"python-{uuid.uuid4().hex}"
    python_admin.create_topics({topic: {"num_partitions": 2, "configs": {"retention.ms": "777"}}})
    python_admin.wait_for_topics([topic])
    with pytest.raises(kafka.errors.TopicAlreadyExistsError):
        python_admin.create_topics([topic])
    with pytest.raises(kafka.errors.InvalidPartitionsError):
        python_admin.create_partitions({topic: 1})
    python_admin.create_partitions({topic: 3})

    def partitions() -> int:
        (described,) = python_admin.describe_topics([topic])
        return len(described["partitions"])

    wait_until(lambda: partitions() == 3, "three partitions")
    described = python_admin.describe_topic_partitions([topic])
    assert len(described["topics"][0]["partitions"]) == 3
    assert python_admin.describe_cluster()["brokers"]
    python_admin.delete_topics([topic])
    wait_until(lambda: topic not in python_admin.list_topics(), "the topic to be gone")


def test_log_dirs_show_how_much_a_partition_holds(
    python_admin: KafkaAdminClient, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=2)
    Confluent().produce(bootstrap, [Send(topic, 1, [Rec(b"x" * 50_000)])])
    sizes = {}
    for broker in python_admin.describe_log_dirs():
        for folder in broker["log_dirs"]:
            assert folder["error_code"] == 0
            for each in folder["topics"]:
                if each["name"] == topic:
                    sizes |= {part["partition_index"]: part["partition_size"] for part in each["partitions"]}
    assert sizes[0] < 50_000 <= sizes[1] < 60_000


def test_producers_of_a_partition_are_listed(
    python_admin: KafkaAdminClient, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    producer = confluent_producer(bootstrap, **{"enable.idempotence": True})
    for _ in range(3):
        producer.produce(topic, b"x", partition=0)
    assert producer.flush(30) == 0
    partition = kafka.TopicPartition(topic, 0)
    found = python_admin.describe_producers([partition])
    assert "last_sequence" in str(found), found


def test_producing_to_a_new_name_creates_the_topic(bootstrap: str) -> None:
    topic = f"auto-{uuid.uuid4().hex}"
    Confluent().produce(bootstrap, [Send(topic, 0, [Rec(b"first")])])
    assert Confluent().consume(bootstrap, [Want(topic, 0, 1)])[topic, 0][0].value == b"first"


def test_asking_about_a_name_creates_nothing_unless_asked_to(bootstrap: str, admin: AdminClient) -> None:
    topic = f"unknown-{uuid.uuid4().hex}"
    with Wire(bootstrap) as wire:
        assert metadata_of(wire, topic).error_code == ErrorCode.unknown_topic_or_partition
    assert topic not in admin.list_topics(timeout=10).topics


def test_auto_creation_can_be_off(proxied: tuple[Cluster, Any]) -> None:
    cluster, _ = proxied
    topic = "auto-off"
    errors: list[KafkaError] = []
    producer = confluent_producer(cluster.bootstrap, **{"message.timeout.ms": 3000})
    producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    assert errors[0].code() in (
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._MSG_TIMED_OUT,
    )
    assert topic not in AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=10).topics
