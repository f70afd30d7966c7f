import pytest

from headrace.cluster.configs import (
    BROKER_KEYS,
    TOPIC_KEYS,
    Brokers,
    Operation,
    OperationKind,
    Settings,
    Source,
    Synonym,
    alter_broker,
    alter_topic,
    describe_broker,
    describe_broker_default,
    describe_topic,
    topic_values,
)
from headrace.config import InvalidConfig
from headrace.storage.config import LogConfig

PLAIN = Brokers({})


def test_defaults_are_kafkas() -> None:
    expected = {
        "log.retention.hours": "168",
        "log.retention.ms": "",
        "log.roll.hours": "168",
        "message.max.bytes": "1048588",
        "num.partitions": "1",
        "offsets.topic.num.partitions": "50",
        "replica.lag.time.max.ms": "30000",
        "socket.request.max.bytes": "104857600",
        "delete.topic.enable": "true",
        "log.cleanup.policy": "delete",
        "metrics.port": "9404",
    }
    shown = {entry.name: entry.value for entry in describe_broker(PLAIN)}
    assert {name: shown[name] for name in expected} == expected
    assert shown["inter.broker.protocol.version"].startswith("4.")


def test_every_default_is_an_allowed_value_and_has_a_text() -> None:
    for key in BROKER_KEYS:
        assert key.doc
        if key.default is not None:
            assert key.parse(key.render(key.default)) == key.default, key.name


def test_a_topic_with_nothing_given_has_only_defaults() -> None:
    entries = describe_topic({}, PLAIN)
    assert [entry.name for entry in entries] == [key.name for key in TOPIC_KEYS]
    assert {entry.source for entry in entries} == {Source.DEFAULT}
    assert topic_values({}, PLAIN) == {}
    retention = next(entry for entry in entries if entry.name == "retention.ms")
    assert retention.value == "604800000"
    assert not retention.read_only


def test_the_nearest_source_is_in_force_and_all_are_shown() -> None:
    brokers = Brokers({"log.retention.ms": "4"}, {"log.retention.ms": "3"}, {"log.retention.ms": "2"})
    (entry,) = describe_topic({"retention.ms": "1"}, brokers, ["retention.ms", "unknown"])
    assert (entry.value, entry.source) == ("1", Source.TOPIC)
    assert [(s.value, s.source) for s in entry.synonyms] == [
        ("1", Source.TOPIC),
        ("2", Source.DYNAMIC_BROKER),
        ("3", Source.DYNAMIC_DEFAULT_BROKER),
        ("4", Source.STATIC_BROKER),
        ("604800000", Source.DEFAULT),
    ]


@pytest.mark.parametrize(
    ("static", "value"),
    [
        ({"log.retention.hours": "1"}, "3600000"),
        ({"log.retention.hours": "1", "log.retention.minutes": "2"}, "120000"),
        ({"log.retention.hours": "1", "log.retention.minutes": "2", "log.retention.ms": "3"}, "3"),
        ({"log.retention.hours": "-1"}, "-1"),
    ],
)
def test_the_finest_unit_of_retention_wins(static: dict[str, str], value: str) -> None:
    assert topic_values({}, Brokers(static)) == {"retention.ms": value}
    assert LogConfig.of(topic_values({}, Brokers(static))).retention_ms == int(value)


def test_a_broker_shows_where_its_values_come_from() -> None:
    settings = Settings({"num.partitions": "3"})
    brokers = Brokers.of(settings, {"": {"message.max.bytes": "10"}, "1": {"message.max.bytes": "20"}}, 1)
    shown = {entry.name: entry for entry in describe_broker(brokers)}
    assert (shown["num.partitions"].value, shown["num.partitions"].source) == ("3", Source.STATIC_BROKER)
    assert shown["num.partitions"].read_only
    assert (shown["message.max.bytes"].value, shown["message.max.bytes"].source) == ("20", Source.DYNAMIC_BROKER)
    assert not shown["message.max.bytes"].read_only
    assert describe_broker(Brokers.of(settings, {}, 2), ["message.max.bytes"])[0].is_default
    (default,) = describe_broker_default({"message.max.bytes": "10"})
    assert default.synonyms == (Synonym("message.max.bytes", "10", Source.DYNAMIC_DEFAULT_BROKER),)


def test_settings_are_set_deleted_and_replaced() -> None:
    current = {"retention.ms": "1", "segment.bytes": "2000"}
    assert alter_topic(current, [Operation("retention.ms", value=" 5 ")], PLAIN) == current | {"retention.ms": "5"}
    assert alter_topic(current, [Operation("retention.ms", OperationKind.DELETE)], PLAIN) == {"segment.bytes": "2000"}
    assert alter_topic(current, [Operation("flush.ms", value="7")], PLAIN, replace=True) == {"flush.ms": "7"}
    assert current == {"retention.ms": "1", "segment.bytes": "2000"}


def test_lists_grow_and_shrink_from_the_value_in_force() -> None:
    append = Operation("cleanup.policy", OperationKind.APPEND, "compact")
    assert alter_topic({}, [append], PLAIN) == {"cleanup.policy": "delete,compact"}
    assert alter_topic({"cleanup.policy": "compact"}, [append], PLAIN) == {"cleanup.policy": "compact"}
    assert alter_topic({}, [append], Brokers({"log.cleanup.policy": "compact"})) == {"cleanup.policy": "compact"}
    subtract = Operation("cleanup.policy", OperationKind.SUBTRACT, "delete")
    assert alter_topic({"cleanup.policy": "delete,compact"}, [subtract], PLAIN) == {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("operations", "text"),
    [
        ([Operation("retention.msec", value="1")], "did you mean retention.ms?"),
        ([Operation("retention.ms", value="soon")], "give a whole number"),
        ([Operation("retention.ms", value="1"), Operation("retention.ms", value="2")], "changed twice"),
        ([Operation("retention.ms", OperationKind.APPEND, "1")], "not a list: use SET or DELETE, not APPEND"),
        ([Operation("cleanup.policy", OperationKind.APPEND, "burn")], "give any of compact, delete"),
    ],
)
def test_what_is_not_allowed_is_refused_whole(operations: list[Operation], text: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        alter_topic({}, [Operation("flush.ms", value="7"), *operations], PLAIN)
    assert text in caught.value.message


def test_only_live_settings_of_a_broker_can_be_changed() -> None:
    assert alter_broker({}, [Operation("log.retention.ms", value="9")], PLAIN) == {"log.retention.ms": "9"}
    with pytest.raises(InvalidConfig, match="put it into their config file"):
        alter_broker({}, [Operation("num.partitions", value="9")], PLAIN)
    assert alter_broker({"num.partitions": "9"}, [Operation("num.partitions", OperationKind.DELETE)], PLAIN) == {}
