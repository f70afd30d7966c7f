"""The settings of groups and offsets, with Kafka's names and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from headrace.config import Key, Keys, Kind

_INT_MAX = 2**31 - 1

KEYS = Keys(
    [
        Key("group.min.session.timeout.ms", Kind.INT, 6_000, "Shortest session a classic member may ask for.", low=1),
        Key(
            "group.max.session.timeout.ms", Kind.INT, 1_800_000, "Longest session a classic member may ask for.", low=1
        ),
        Key("group.initial.rebalance.delay.ms", Kind.INT, 3_000, "How long a new group waits for more members.", low=0),
        Key("group.max.size", Kind.INT, _INT_MAX, "Most members of a classic group.", low=1),
        Key("group.consumer.session.timeout.ms", Kind.INT, 45_000, "Session of members of consumer groups.", low=1),
        Key("group.consumer.heartbeat.interval.ms", Kind.INT, 5_000, "How often such members send heartbeats.", low=1),
        Key("group.consumer.max.size", Kind.INT, _INT_MAX, "Most members of a consumer group.", low=1),
        Key(
            "group.consumer.assignors",
            Kind.LIST,
            ("uniform", "range"),
            "Server-side assignors; the first is the default.",
            choices=("uniform", "range"),
        ),
        Key(
            "group.consumer.migration.policy",
            Kind.STRING,
            "bidirectional",
            "Which conversions between the classic and the consumer protocol happen by themselves.",
            choices=("disabled", "downgrade", "upgrade", "bidirectional"),
        ),
        Key("offset.metadata.max.bytes", Kind.INT, 4_096, "Most bytes of metadata with a committed offset.", low=0),
        Key("offsets.retention.minutes", Kind.INT, 7 * 24 * 60, "How long offsets outlive their group.", low=1),
        Key("offsets.retention.check.interval.ms", Kind.LONG, 600_000, "How often expired offsets are removed.", low=1),
        Key("offsets.topic.num.partitions", Kind.INT, 50, "Partitions of the offsets topic.", low=1),
        Key("offsets.commit.timeout.ms", Kind.INT, 5_000, "How long a commit may take to be stored.", low=1),
    ]
)


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The settings the logic uses, typed. A field's name is the key with underscores."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = _INT_MAX
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_max_size: int = _INT_MAX
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    group_consumer_migration_policy: str = "bidirectional"
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_minutes: int = 7 * 24 * 60
    new_member_join_timeout_ms: int = 300_000
    """How long the JoinGroup of a member that does not know its id yet may wait; Kafka has no setting for it."""

    @classmethod
    def of(cls, overrides: Mapping[str, str]) -> GroupConfig:
        """From settings by Kafka's names; those that belong to other parts of the process are left alone."""
        known = {field.name for field in fields(cls)}
        named = {name.replace(".", "_"): name for name in overrides if name in KEYS}
        return cls(**{field: KEYS[name].parse(overrides[name]) for field, name in named.items() if field in known})

    @property
    def upgrades(self) -> bool:
        return self.group_consumer_migration_policy in ("upgrade", "bidirectional")

    @property
    def downgrades(self) -> bool:
        return self.group_consumer_migration_policy in ("downgrade", "bidirectional")
