"""The public API is pinned: a change of this list is a change for users, and belongs into the changelog."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest

from headrace import client
from headrace.client import sync
from headrace.client.config import ADMIN_KEYS, CONSUMER_KEYS, PRODUCER_KEYS, Config, consumer_config, producer_config
from headrace.config import InvalidConfig

NAMES = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Admin",
    "BufferFull",
    "ClusterUnreachable",
    "ConfigEntry",
    "Consumer",
    "ConsumerInterceptor",
    "ConsumerRecord",
    "ErrorCode",
    "GroupDescription",
    "GroupMember",
    "KafkaError",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Producer",
    "ProducerInterceptor",
    "RebalanceListener",
    "RecordMetadata",
    "RoundRobin",
    "TimestampType",
    "TopicPartition",
    "partition_for_key",
]

METHODS = {
    "Producer": "close flush partitions_for room send send_nowait start",
    "Consumer": "assign assignment beginning_offsets close commit commit_nowait committed end_offsets lag "
    "offsets_for_times partitions_for pause paused poll position resume seek seek_to_beginning seek_to_end "
    "seek_to_timestamp start subscribe subscription unsubscribe",
    "Admin": "alter_configs alter_group_offsets alter_partition_reassignments alter_replica_log_dirs "
    "alter_topic_configs close connected create_partitions create_topic create_topics "
    "delete_group_offsets delete_groups delete_records delete_topics describe_configs describe_group "
    "describe_log_dirs describe_topics drain_broker elect_leaders image increase_partitions "
    "list_group_offsets list_groups list_offsets list_partition_reassignments list_topics on_change "
    "remove_group_members start",
}


def public(kind: type) -> list[str]:
    return sorted(name for name in dir(kind) if not name.startswith("_"))


def test_names() -> None:
    assert sorted(client.__all__) == sorted(NAMES)


@pytest.mark.parametrize("name", METHODS)
def test_methods(name: str) -> None:
    assert public(getattr(client, name)) == METHODS[name].split()


@pytest.mark.parametrize("name", METHODS)
def test_the_sync_facade_has_the_same_names_and_parameters(name: str) -> None:
    ours, theirs = getattr(sync, name), getattr(client, name)
    # Waiting for room is what every call of the facade does by itself.
    assert public(ours) == [method for method in public(theirs) if method != "room"]
    for method in public(ours):
        if callable(getattr(ours, method)):
            assert list(inspect.signature(getattr(ours, method)).parameters) == list(
                inspect.signature(getattr(theirs, method)).parameters
            ), method


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("EARLIEST", "LATEST", "MAX_TIMESTAMP")])
def test_every_public_name_has_a_docstring_with_an_example(name: str) -> None:
    found = getattr(client, name)
    if found.__module__.startswith("headrace.client"):
        assert ">>>" in (found.__doc__ or ""), name
    for method in METHODS.get(name, "").split():
        assert ">>>" in (inspect.getdoc(inspect.getattr_static(found, method)) or ""), f"{name}.{method}"


@pytest.mark.parametrize("module", [m.name for m in pkgutil.iter_modules(client.__path__)])
def test_examples_say_what_happens(module: str) -> None:
    found = doctest.testmod(importlib.import_module(f"headrace.client.{module}"))
    assert found.failed == 0


def test_settings_have_kafkas_names_and_defaults() -> None:
    producer = Config(PRODUCER_KEYS, {})
    assert (producer["acks"], producer["linger.ms"], producer["batch.size"]) == ("all", 5, 16_384)
    assert producer["enable.idempotence"] is True
    assert Config(CONSUMER_KEYS, {})["session.timeout.ms"] == 45_000
    assert Config(ADMIN_KEYS, {"bootstrap_servers": ["a:1", "b:2"]})["bootstrap.servers"] == ("a:1", "b:2")


def test_a_wrong_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidConfig, match="did you mean enable_auto_commit"):
        consumer_config({"enable_autocommit": False})


def test_a_wrong_value_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(InvalidConfig, match="earliest, latest, none"):
        consumer_config({"auto_offset_reset": "beginning"})


def test_contradictions_are_refused_only_when_they_were_asked_for() -> None:
    assert producer_config({"acks": 1})["enable.idempotence"] is False
    with pytest.raises(InvalidConfig, match="acks=1"):
        producer_config({"acks": 1, "enable_idempotence": True})
    with pytest.raises(InvalidConfig, match="delivery_timeout_ms"):
        producer_config({"delivery_timeout_ms": 100})
    with pytest.raises(InvalidConfig, match="heartbeat_interval_ms"):
        consumer_config({"heartbeat_interval_ms": 45_000})
