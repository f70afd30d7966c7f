"""A topic's settings: Kafka 4.x's names, defaults and bounds, and the frozen form that a `Log` reads.

`TOPIC_KEYS` is what CreateTopics, AlterConfigs and DescribeConfigs know; `LogConfig` is what the storage engine uses of
it, as attributes. Tiered storage is not built, so `remote.storage.enable` can only be false.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.config import InvalidConfig, Key, Keys, Kind
from headrace.records.compression import Codec

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1
_DAY_MS = 24 * 60 * 60 * 1000


def _key(name: str, kind: Kind, default: Any, doc: str, low: float | None = None, **more: Any) -> Key:
    # Every topic setting takes effect on a running broker.
    return Key(name, kind, default, doc, low=low, live=True, **more)


TOPIC_KEYS = Keys(
    [
        _key(
            "cleanup.policy",
            Kind.LIST,
            ("delete",),
            "What happens to old segments: delete drops them by retention, compact keeps the last record of each key; "
            "both may be given.",
            choices=("compact", "delete"),
        ),
        _key(
            "compression.gzip.level",
            Kind.INT,
            -1,
            "Level for gzip: 1 to 9, or -1 for the library's own.",
            -1,
            high=9,
        ),
        _key("compression.lz4.level", Kind.INT, 9, "Level for lz4: 1 to 17.", 1, high=17),
        _key("compression.zstd.level", Kind.INT, 3, "Level for zstd: -131072 to 22.", -131072, high=22),
        _key(
            "compression.type",
            Kind.STRING,
            "producer",
            "The codec of the stored batches; producer keeps what the producer chose.",
            choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        ),
        _key(
            "delete.retention.ms",
            Kind.LONG,
            _DAY_MS,
            "How long a tombstone stays in a compacted topic after the cleaner first met it.",
            0,
        ),
        _key(
            "file.delete.delay.ms",
            Kind.LONG,
            60_000,
            "How long a file renamed to .deleted stays before it is removed.",
            0,
        ),
        _key(
            "flush.messages",
            Kind.LONG,
            MAX_LONG,
            "Sync the log to disk after this many records; by default replication gives durability instead.",
            1,
        ),
        _key("flush.ms", Kind.LONG, MAX_LONG, "Sync the log to disk after this time at the latest.", 0),
        _key(
            "follower.replication.throttled.replicas",
            Kind.LIST,
            (),
            "Replicas (partition:broker, or *) throttled as followers.",
        ),
        _key(
            "index.interval.bytes",
            Kind.INT,
            4096,
            "An index entry is made at least every so many bytes of log.",
            0,
        ),
        _key(
            "leader.replication.throttled.replicas",
            Kind.LIST,
            (),
            "Replicas (partition:broker, or *) throttled as leaders.",
        ),
        _key(
            "local.retention.bytes",
            Kind.LONG,
            -2,
            "With tiered storage: bytes kept locally; -2 is retention.bytes.",
            -2,
        ),
        _key("local.retention.ms", Kind.LONG, -2, "With tiered storage: time kept locally; -2 is retention.ms.", -2),
        _key(
            "max.compaction.lag.ms",
            Kind.LONG,
            MAX_LONG,
            "A record becomes subject to compaction after this time at the latest.",
            1,
        ),
        _key("max.message.bytes", Kind.INT, 1_048_588, "The largest record batch allowed, after compression.", 0),
        _key(
            "message.timestamp.after.max.ms",
            Kind.LONG,
            3_600_000,
            "How far ahead of the broker's clock a record's CreateTime may be.",
            0,
        ),
        _key(
            "message.timestamp.before.max.ms",
            Kind.LONG,
            MAX_LONG,
            "How far behind the broker's clock a record's CreateTime may be.",
            0,
        ),
        _key(
            "message.timestamp.type",
            Kind.STRING,
            "CreateTime",
            "Whose time a record carries: the producer's (CreateTime) or the broker's at append (LogAppendTime).",
            choices=("CreateTime", "LogAppendTime"),
        ),
        _key(
            "min.cleanable.dirty.ratio",
            Kind.DOUBLE,
            0.5,
            "The cleaner takes a log when this share of it is not compacted yet.",
            0,
            high=1,
        ),
        _key(
            "min.compaction.lag.ms",
            Kind.LONG,
            0,
            "A record is not compacted before this time has passed.",
            0,
        ),
        _key(
            "min.insync.replicas",
            Kind.INT,
            1,
            "With acks=all, how many replicas must be in sync for a write to be taken.",
            1,
        ),
        _key(
            "preallocate",
            Kind.BOOLEAN,
            False,
            "Taken for compatibility; files grow as they are written.",
        ),
        _key("remote.log.copy.disable", Kind.BOOLEAN, False, "With tiered storage: stop copying segments to it."),
        _key(
            "remote.log.delete.on.disable",
            Kind.BOOLEAN,
            False,
            "With tiered storage: delete what it holds when it is switched off.",
        ),
        _key("remote.storage.enable", Kind.BOOLEAN, False, "Tiered storage; not available, so only false."),
        _key(
            "retention.bytes",
            Kind.LONG,
            -1,
            "How large a partition may get before its oldest segments go; -1 is no limit.",
            -1,
        ),
        _key(
            "retention.ms",
            Kind.LONG,
            7 * _DAY_MS,
            "How old a segment may get before it goes; -1 is no limit.",
            -1,
        ),
        _key("segment.bytes", Kind.INT, 1_073_741_824, "The size at which a new segment is begun.", 14),
        _key("segment.index.bytes", Kind.INT, 10_485_760, "The largest size of an index file.", 12),
        _key(
            "segment.jitter.ms",
            Kind.LONG,
            0,
            "At most so much is taken off segment.ms, at random, so that partitions do not roll all at once.",
            0,
        ),
        _key(
            "segment.ms",
            Kind.LONG,
            7 * _DAY_MS,
            "The age at which a new segment is begun, even if the last one is not full.",
            1,
        ),
        _key(
            "unclean.leader.election.enable",
            Kind.BOOLEAN,
            False,
            "Whether a replica that is not in sync may lead when no other can; records may be lost.",
        ),
    ]
)
"""Every topic config. segment.bytes may be as small as 14, as in Kafka 3.9 and before: tests roll quickly with it."""


_CODECS = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of one log, typed."""

    segment_bytes: int
    segment_ms: int
    segment_jitter_ms: int
    segment_index_bytes: int
    index_interval_bytes: int
    retention_ms: int
    retention_bytes: int
    compact: bool
    delete: bool
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    max_message_bytes: int
    log_append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    min_insync_replicas: int
    unclean_leader_election: bool
    codec: Codec | None
    """What batches are stored with; None: with what the producer chose."""

    @classmethod
    def of(cls, overrides: Mapping[str, Any] | None = None) -> LogConfig:
        """From a topic's overrides by Kafka's names, as text or typed.

        >>> LogConfig.of({"segment.bytes": "1048576", "cleanup.policy": "compact"}).compact
        True
        """
        values = TOPIC_KEYS.defaults()
        for name, value in (overrides or {}).items():
            key = TOPIC_KEYS[name]
            values[name] = key.parse(value if isinstance(value, str) else key.render(value))
        if values["remote.storage.enable"]:
            raise InvalidConfig("remote.storage.enable=true is not allowed: there is no tiered storage, give false")
        policy = values["cleanup.policy"]
        return cls(
            segment_bytes=values["segment.bytes"],
            segment_ms=values["segment.ms"],
            segment_jitter_ms=values["segment.jitter.ms"],
            segment_index_bytes=values["segment.index.bytes"],
            index_interval_bytes=values["index.interval.bytes"],
            retention_ms=values["retention.ms"],
            retention_bytes=values["retention.bytes"],
            compact="compact" in policy,
            delete="delete" in policy,
            delete_retention_ms=values["delete.retention.ms"],
            min_compaction_lag_ms=values["min.compaction.lag.ms"],
            max_compaction_lag_ms=values["max.compaction.lag.ms"],
            min_cleanable_dirty_ratio=values["min.cleanable.dirty.ratio"],
            file_delete_delay_ms=values["file.delete.delay.ms"],
            flush_messages=values["flush.messages"],
            flush_ms=values["flush.ms"],
            max_message_bytes=values["max.message.bytes"],
            log_append_time=values["message.timestamp.type"] == "LogAppendTime",
            timestamp_before_max_ms=values["message.timestamp.before.max.ms"],
            timestamp_after_max_ms=values["message.timestamp.after.max.ms"],
            min_insync_replicas=values["min.insync.replicas"],
            unclean_leader_election=values["unclean.leader.election.enable"],
            codec=_CODECS[values["compression.type"]],
        )
