"""The settings of a process: Kafka 4.x's names, defaults and bounds, and Headrace's own where Kafka has none.

A topic setting that brokers can set for all topics has another name there (`retention.ms` is `log.retention.ms`);
`TOPIC_SYNONYMS` says which, in the order in which they are asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from headrace.config import Key, Keys, Kind
from headrace.storage.config import MAX_INT, MAX_LONG, TOPIC_KEYS

PROTOCOL_VERSION = "4.0-IV3"
"""What `inter.broker.protocol.version` says: tools read from it which features there are."""


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker's name for a topic setting. A coarser unit is turned into milliseconds with `scale`."""

    name: str
    scale: int = 1

    def convert(self, value: Any) -> Any:
        return value if self.scale == 1 or value is None else -1 if value < 0 else value * self.scale


_MINUTES, _HOURS = 60_000, 3_600_000

TOPIC_SYNONYMS: dict[str, tuple[Synonym, ...]] = {
    "cleanup.policy": (Synonym("log.cleanup.policy"),),
    "compression.gzip.level": (Synonym("compression.gzip.level"),),
    "compression.lz4.level": (Synonym("compression.lz4.level"),),
    "compression.type": (Synonym("compression.type"),),
    "compression.zstd.level": (Synonym("compression.zstd.level"),),
    "delete.retention.ms": (Synonym("log.cleaner.delete.retention.ms"),),
    "file.delete.delay.ms": (Synonym("log.segment.delete.delay.ms"),),
    "flush.messages": (Synonym("log.flush.interval.messages"),),
    "flush.ms": (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
    "index.interval.bytes": (Synonym("log.index.interval.bytes"),),
    "local.retention.bytes": (Synonym("log.local.retention.bytes"),),
    "local.retention.ms": (Synonym("log.local.retention.ms"),),
    "max.compaction.lag.ms": (Synonym("log.cleaner.max.compaction.lag.ms"),),
    "max.message.bytes": (Synonym("message.max.bytes"),),
    "message.timestamp.after.max.ms": (Synonym("log.message.timestamp.after.max.ms"),),
    "message.timestamp.before.max.ms": (Synonym("log.message.timestamp.before.max.ms"),),
    "message.timestamp.type": (Synonym("log.message.timestamp.type"),),
    "min.cleanable.dirty.ratio": (Synonym("log.cleaner.min.cleanable.ratio"),),
    "min.compaction.lag.ms": (Synonym("log.cleaner.min.compaction.lag.ms"),),
    "min.insync.replicas": (Synonym("min.insync.replicas"),),
    "preallocate": (Synonym("log.preallocate"),),
    "retention.bytes": (Synonym("log.retention.bytes"),),
    "retention.ms": (
        Synonym("log.retention.ms"),
        Synonym("log.retention.minutes", _MINUTES),
        Synonym("log.retention.hours", _HOURS),
    ),
    "segment.bytes": (Synonym("log.segment.bytes"),),
    "segment.index.bytes": (Synonym("log.index.size.max.bytes"),),
    "segment.jitter.ms": (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", _HOURS)),
    "segment.ms": (Synonym("log.roll.ms"), Synonym("log.roll.hours", _HOURS)),
    "unclean.leader.election.enable": (Synonym("unclean.leader.election.enable"),),
}


def _topic_synonyms() -> Iterator[Key]:
    """Each broker name of a topic setting, with that setting's type, bounds and words."""
    for topic_name, synonyms in TOPIC_SYNONYMS.items():
        key = TOPIC_KEYS[topic_name]
        last = synonyms[-1]
        for synonym in synonyms:
            # Of several names only the last has a default: the others say nothing unless they are given.
            default = key.default if synonym is last else None
            if synonym is last and synonym.scale != 1:
                default = key.default // synonym.scale
            doc = f"For topics without their own {topic_name}. {key.doc}"
            if synonym is not synonyms[0]:
                doc = f"As {synonyms[0].name}, which goes before it. " + doc
            # Hours and minutes are for whoever starts the process; what runs is changed in milliseconds.
            live = synonym.scale == 1 and synonym.name != "log.flush.scheduler.interval.ms"
            yield replace(key, name=synonym.name, default=default, doc=doc, live=live)


def _text(name: str, default: str | None, doc: str, *choices: str) -> Key:
    return Key(name, Kind.STRING, default, doc, choices=choices)


def _list(name: str, default: tuple[str, ...], doc: str, *choices: str) -> Key:
    return Key(name, Kind.LIST, default, doc, choices=choices)


def _flag(name: str, default: bool, doc: str, *, live: bool = False) -> Key:
    return Key(name, Kind.BOOLEAN, default, doc, live=live)


def _int(name: str, default: int, doc: str, low: int | None = 1, high: int | None = None, live: bool = False) -> Key:
    return Key(name, Kind.INT, default, doc, low=low, high=high, live=live)


def _long(name: str, default: int, doc: str, low: int = 1, *, live: bool = False) -> Key:
    return Key(name, Kind.LONG, default, doc, low=low, live=live)


def _ratio(name: str, default: float, doc: str, high: float | None = 1) -> Key:
    return Key(name, Kind.DOUBLE, default, doc, low=0, high=high)


_PROCESS = (
    _int("node.id", -1, "Id of this process among those of its role; a broker's replicas are known by it.", -1),
    _int("broker.id", -1, "The older name of node.id.", -1),
    _text("cluster.id", "headrace", "Name of the cluster: where its keys are in etcd, and what clients see."),
    _text("broker.rack", None, "Failure domain of this broker; replicas of a partition are spread over racks."),
    _list("listeners", ("PLAINTEXT://:9092",), "Where Kafka clients are listened for: NAME://host:port."),
    _list("advertised.listeners", (), "Where clients are told to connect; empty: as listeners."),
    _text("grpc.listener", "127.0.0.1:9094", "Where gRPC is listened for: host:port."),
    _text("advertised.grpc.listener", None, "Where other processes are told to connect; empty: as grpc.listener."),
    _int("metrics.port", 9404, "Where Prometheus metrics are served; 0: nowhere.", 0, 65535),
    _list("etcd.endpoints", ("127.0.0.1:2379",), "The etcd members, host:port each."),
    _text("etcd.ssl.ca.file", None, "Certificate authority of etcd, in PEM; given: connections to etcd use TLS."),
    _text("etcd.ssl.certificate.file", None, "Certificate for etcd to know this process by; used when it is there."),
    _text("etcd.ssl.key.file", None, "Key of that certificate."),
    _int("etcd.request.timeout.ms", 5_000, "How long one call to etcd may take."),
    _list("metadata.servers", ("127.0.0.1:9094",), "The metadata replicas to follow, host:port each."),
    _int(
        "metadata.history.max.changes",
        100_000,
        "Changes (a topic counts as its partitions) that a metadata replica remembers for readers that come back.",
    ),
    _int(
        "metadata.watch.max.pending.changes",
        10_000,
        "Changes that wait for a slow reader of the metadata before it gets a snapshot instead.",
    ),
    _text("log.dir", "headrace-data", "Directory of the logs when log.dirs is not given."),
    _list("log.dirs", (), "Directories of the logs; partitions are spread over them. Empty: log.dir."),
    _text("inter.broker.protocol.version", PROTOCOL_VERSION, "Level of Kafka's protocol.", PROTOCOL_VERSION),
    _int("broker.session.timeout.ms", 9_000, "A process that cannot reach etcd for so long is taken for dead."),
    _int("broker.heartbeat.interval.ms", 2_000, "Kept for compatibility: leases are kept alive by their own rhythm."),
    _flag("controlled.shutdown.enable", True, "Hand leaderships away before stopping."),
    _int("controlled.shutdown.max.retries", 3, "How often a stopping broker asks to hand leaderships away.", 0),
    _long("controlled.shutdown.retry.backoff.ms", 5_000, "Pause between those."),
)

_NETWORK = (
    _int("num.network.threads", 3, "Kept for compatibility: one event loop serves the network.", live=True),
    _int("num.io.threads", 8, "Threads for disk work that would block the event loop.", live=True),
    _int("background.threads", 10, "Kept for compatibility: background work shares num.io.threads.", live=True),
    _int("num.recovery.threads.per.data.dir", 2, "Threads that recover one log directory at the start.", live=True),
    _int("queued.max.requests", 500, "Requests that wait to be handled before connections are no longer read."),
    _long("queued.max.request.bytes", -1, "Bytes of such requests; -1: no limit.", -1),
    _int("socket.send.buffer.bytes", 102_400, "SO_SNDBUF of a connection; -1: the system's.", -1),
    # Kafka's 102400 is less than a request of three large batches: each would come in pieces, at a fifth more CPU.
    _int("socket.receive.buffer.bytes", -1, "SO_RCVBUF of a connection; -1: the system's.", -1),
    _int("socket.request.max.bytes", 104_857_600, "The largest request that is read."),
    _int("socket.listen.backlog.size", 50, "Connections that may wait to be accepted."),
    _long("connections.max.idle.ms", 600_000, "A connection without a request for so long is closed."),
    _int("max.connections", MAX_INT, "Connections at any time.", 0, live=True),
    _int("max.connections.per.ip", MAX_INT, "Connections from one address.", 0, live=True),
    Key("max.connections.per.ip.overrides", Kind.STRING, "", "Exceptions: host:count, separated by commas.", live=True),
    _int("max.connection.creation.rate", MAX_INT, "New connections in a second.", 0, live=True),
    _int("connection.failed.authentication.delay.ms", 100, "Pause before a failed login is answered.", 0),
    _int("request.timeout.ms", 30_000, "How long a request to another process may take."),
    _int("fetch.max.bytes", 57_671_680, "The most one fetch answer holds, whatever was asked for.", 1024),
    _int("max.incremental.fetch.session.cache.slots", 1_000, "Fetch sessions that are remembered.", 0),
    _int("fetch.purgatory.purge.interval.requests", 1_000, "Completed fetches between two purges of the waiting."),
    _int("producer.purgatory.purge.interval.requests", 1_000, "Completed produces between two purges of the waiting."),
    _int("delete.records.purgatory.purge.interval.requests", 1, "Completed deletions between two purges."),
)

_TOPICS = (
    _int("num.partitions", 1, "Partitions of a topic created without a number."),
    _int("default.replication.factor", 1, "Replicas of a topic created without a number."),
    _flag("auto.create.topics.enable", True, "Create a topic when a client asks for one that does not exist."),
    _flag("delete.topic.enable", True, "Whether topics can be deleted."),
    _int("replica.lag.time.max.ms", 30_000, "A follower that has not caught up for so long leaves the ISR."),
    _int("replica.fetch.max.bytes", 1_048_576, "Bytes a follower asks for of one partition.", 0),
    _int("replica.fetch.min.bytes", 1, "Bytes a follower's fetch waits for."),
    _int("replica.fetch.wait.max.ms", 500, "How long a follower's fetch waits; less than replica.lag.time.max.ms."),
    _int("replica.fetch.backoff.ms", 1_000, "Pause of a follower after a failed fetch.", 0),
    _int("replica.fetch.response.max.bytes", 10_485_760, "Bytes a follower asks for at once.", 0),
    _int("replica.socket.timeout.ms", 30_000, "How long a follower waits for an answer."),
    _int("replica.socket.receive.buffer.bytes", 65_536, "SO_RCVBUF of a follower's connection.", -1),
    _long("replica.high.watermark.checkpoint.interval.ms", 5_000, "How often high watermarks are written to disk."),
    _int("num.replica.fetchers", 1, "Connections a follower keeps to each leader.", live=True),
    _text("replica.selector.class", None, "Who chooses the replica a consumer reads from; empty: the leader."),
    _flag("auto.leader.rebalance.enable", True, "Give leaderships back to preferred leaders from time to time."),
    _long("leader.imbalance.check.interval.seconds", 300, "How often that is looked at."),
    _int("leader.imbalance.per.broker.percentage", 10, "Share of a broker's leaderships that may be elsewhere.", 0),
    _int("quota.window.num", 11, "Windows that a quota is measured over."),
    _int("quota.window.size.seconds", 1, "Length of each."),
    _int("replication.quota.window.num", 11, "Windows that replication throttling is measured over."),
    _int("replication.quota.window.size.seconds", 1, "Length of each."),
    _long(
        "leader.replication.throttled.rate",
        MAX_LONG,
        "Bytes a second that leaders of throttled replicas send.",
        0,
        live=True,
    ),
    _long(
        "follower.replication.throttled.rate", MAX_LONG, "Bytes a second that throttled followers take.", 0, live=True
    ),
)

_LOGS = (
    _long("log.retention.check.interval.ms", 300_000, "How often retention is looked at."),
    _int("log.flush.offset.checkpoint.interval.ms", 60_000, "How often recovery points are written to disk.", 0),
    _int("log.flush.start.offset.checkpoint.interval.ms", 60_000, "How often log starts are written to disk.", 0),
    _flag("log.cleaner.enable", True, "Whether compacted topics are compacted."),
    _int("log.cleaner.threads", 1, "Threads that compact.", 0, live=True),
    _long("log.cleaner.dedupe.buffer.size", 134_217_728, "Memory for keys while compacting.", live=True),
    _int("log.cleaner.io.buffer.size", 524_288, "Buffer for records while compacting.", 0, live=True),
    _ratio("log.cleaner.io.buffer.load.factor", 0.9, "How full the memory for keys may get."),
    _ratio("log.cleaner.io.max.bytes.per.second", 1.7976931348623157e308, "Disk traffic of compaction.", None),
    _long("log.cleaner.backoff.ms", 15_000, "Pause when there is nothing to compact.", 0, live=True),
)

_GROUPS = (
    _int("offsets.topic.num.partitions", 50, "Partitions of the offsets topic; not to be changed later."),
    _int("offsets.topic.replication.factor", 3, "Replicas of the offsets topic; it waits for so many brokers."),
    _int("offsets.topic.segment.bytes", 104_857_600, "Segment size of the offsets topic."),
    _int(
        "offsets.topic.compression.codec",
        0,
        "Codec of the offsets topic: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        0,
        4,
    ),
    _int("offsets.retention.minutes", 10_080, "How long offsets of a group without members are kept."),
    _long("offsets.retention.check.interval.ms", 600_000, "How often that is looked at."),
    _int("offsets.load.buffer.size", 5_242_880, "Bytes read at once while offsets are loaded."),
    _int("offsets.commit.timeout.ms", 5_000, "How long a commit may wait for replicas."),
    _int(
        "group.coordinator.append.linger.ms",
        5,
        "How long appends to the offsets topic gather behind an earlier one.",
        0,
        20,
    ),
    _int("offset.metadata.max.bytes", 4_096, "The longest text stored with an offset.", 0),
    _int("group.initial.rebalance.delay.ms", 3_000, "How long a new group waits for more members.", 0),
    _int("group.min.session.timeout.ms", 6_000, "The shortest session a member may ask for."),
    _int("group.max.session.timeout.ms", 1_800_000, "The longest session a member may ask for."),
    _int("group.max.size", MAX_INT, "Members of one group."),
    _list(
        "group.coordinator.rebalance.protocols", ("classic", "consumer"), "Protocols of groups.", "classic", "consumer"
    ),
    _int("group.consumer.heartbeat.interval.ms", 5_000, "Heartbeat of members, consumer protocol."),
    _int("group.consumer.min.heartbeat.interval.ms", 5_000, "The shortest heartbeat, consumer protocol."),
    _int("group.consumer.max.heartbeat.interval.ms", 15_000, "The longest heartbeat, consumer protocol."),
    _int("group.consumer.session.timeout.ms", 45_000, "Session of members, consumer protocol."),
    _int("group.consumer.min.session.timeout.ms", 45_000, "The shortest session, consumer protocol."),
    _int("group.consumer.max.session.timeout.ms", 60_000, "The longest session, consumer protocol."),
    _int("group.consumer.max.size", MAX_INT, "Members of one group, consumer protocol."),
    _list("group.consumer.assignors", ("uniform", "range"), "Assignors, the default first.", "uniform", "range"),
    _text(
        "group.consumer.migration.policy",
        "bidirectional",
        "Which conversions between the protocols happen by themselves.",
        "disabled",
        "downgrade",
        "upgrade",
        "bidirectional",
    ),
    _int("transactional.id.expiration.ms", 604_800_000, "How long an unused transactional id is remembered."),
    _int("transaction.max.timeout.ms", 900_000, "The longest transaction a producer may ask for."),
    _int("transaction.state.log.num.partitions", 50, "Partitions of the transactions topic; not to be changed later."),
    _int("transaction.state.log.replication.factor", 3, "Replicas of the transactions topic."),
    _int("transaction.state.log.min.isr", 2, "min.insync.replicas of the transactions topic."),
    _int("transaction.state.log.segment.bytes", 104_857_600, "Segment size of the transactions topic."),
    _int(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10_000,
        "How often expired transactions are sought.",
    ),
    _int("transaction.remove.expired.transaction.cleanup.interval.ms", 3_600_000, "How often expired ids are sought."),
    _int("producer.id.expiration.ms", 86_400_000, "How long an idle producer id is remembered.", live=True),
    _int("producer.id.expiration.check.interval.ms", 600_000, "How often that is looked at."),
)

BROKER_KEYS = Keys([*_PROCESS, *_NETWORK, *_TOPICS, *_LOGS, *_topic_synonyms(), *_GROUPS])
"""Every setting of a process, whatever its role: one file can serve all of a cluster's processes."""
