"""Small facts about shards that are no scenario: hashing, embedded protocols, timers, settings."""

from __future__ import annotations

import pytest
from tests.unit.coordinator.group_world import World

from headrace.config import InvalidConfig
from headrace.coordinator.calls import (
    Heartbeat,
    JoinGroup,
    OffsetCommit,
    PartitionToCommit,
    SyncGroup,
    TopicToCommit,
)
from headrace.coordinator.config import KEYS, GroupConfig
from headrace.coordinator.effects import Effects, Reply, StartTimer, TimerKey
from headrace.coordinator.groups import partition_for
from headrace.coordinator.subscription import (
    MalformedProtocol,
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from headrace.errors import ErrorCode


@pytest.mark.parametrize(
    ("group_id", "code"),
    [("", 0), ("a", 97), ("group", 98629247), ("polygenelubricants", -(2**31)), ("ä€", 15432), ("😀", 1772899)],
)
def test_a_groups_partition_is_java_s_hash(group_id: str, code: int) -> None:
    expected = 0 if code == -(2**31) else abs(code) % 50
    assert partition_for(group_id, 50) == expected


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_subscriptions_are_read_in_every_version(version: int) -> None:
    sent = Subscription(version, ("a", "b"), (("a", 0), ("a", 1), ("b", 3)), "rack")
    read = read_subscription(write_subscription(sent) + b"fields of a newer version")
    assert read.topics == sent.topics
    assert read.owned == (sent.owned if version >= 1 else ())
    assert read.rack_id == ("rack" if version >= 3 else None)


def test_malformed_protocols_are_refused_at_every_length() -> None:
    whole = write_subscription(Subscription(3, ("a",), (("a", 0),), "rack"))
    for size in range(len(whole)):
        with pytest.raises(MalformedProtocol):
            read_subscription(whole[:size])
    assignment = write_assignment(1, [("a", 0), ("a", 1)])
    assert read_assignment(assignment) == (("a", 0), ("a", 1))
    with pytest.raises(MalformedProtocol):
        read_assignment(assignment[:12])
    with pytest.raises(MalformedProtocol):
        read_subscription(b"\x00\x00\x7f\xff\xff\xff")


def test_a_timer_that_moves_later_costs_nothing_until_it_fires() -> None:
    fx, key = Effects(), TimerKey("session", "g", "m")
    fx.schedule(key, 100)
    assert fx.take() == [StartTimer(key, 100)]
    fx.schedule(key, 200)
    assert fx.take() == []
    assert not fx.due(key, 100)
    assert fx.take() == [StartTimer(key, 200)]
    fx.schedule(key, 150)
    assert fx.take() == [StartTimer(key, 150)]
    assert fx.due(key, 150)
    assert not fx.due(key, 200)


def _stable() -> World:
    world = World(GroupConfig(group_initial_rebalance_delay_ms=0), {"t": 2})
    metadata = write_subscription(Subscription(1, ("t",)))
    world.call(JoinGroup("g", "", None, 10_000, 10_000, "consumer", (("range", metadata),), "c", version=3, token=1))
    world.advance(0)
    world.call(SyncGroup("g", 1, "c-1", assignments={"c-1": write_assignment(1, [("t", 0)])}, token=2))
    return world


def test_a_heartbeat_has_its_answer_as_only_effect() -> None:
    world = _stable()
    [reply] = world.shard.handle(Heartbeat("g", 1, "c-1", token=3), 5)
    assert isinstance(reply, Reply)
    assert reply.response.error is ErrorCode.NONE


def test_counters_and_gauges() -> None:
    world = _stable()
    assert world.shard.gauges() == {("classic", "Stable"): 1}
    commit = OffsetCommit("g", [TopicToCommit("t", [PartitionToCommit(0, 5)])], 1, "c-1", token=3)
    world.call(commit)
    world.advance(10_000)
    metrics = world.shard.metrics
    assert (metrics.classic_rebalances, metrics.offset_commits, metrics.members_expired) == (1, 1, 1)
    assert world.shard.gauges() == {("classic", "Empty"): 1}
    assert world.shard.offsets_count() == 1


def test_settings_have_kafkas_names_and_the_same_defaults_in_both_places() -> None:
    assert GroupConfig.of({}) == GroupConfig()
    for key in KEYS:
        field = key.name.replace(".", "_")
        if hasattr(GroupConfig(), field):
            assert getattr(GroupConfig(), field) == key.default, key.name
    assert GroupConfig.of({"group.max.size": "3", "log.dirs": "/x"}).group_max_size == 3
    with pytest.raises(InvalidConfig):
        GroupConfig.of({"group.consumer.assignors": "mine"})
