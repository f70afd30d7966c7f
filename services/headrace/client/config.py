"""The settings of producers, consumers and admins: Kafka's names (dots as underscores), defaults and limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.config import InvalidConfig, Key, Keys, Kind

_MAX_INT = 2**31 - 1
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

_COMMON = (
    Key("bootstrap.servers", Kind.LIST, ("127.0.0.1:9094",), "Metadata servers to begin with, host:port each."),
    Key("client.id", Kind.STRING, "headrace-python", "Name of the program, for the servers' logs and quotas."),
    Key("request.timeout.ms", Kind.INT, 30_000, "How long a server may take to answer.", low=1, high=_MAX_INT),
    Key("retry.backoff.ms", Kind.LONG, 100, "Pause before the first repetition of a request.", low=0),
    Key("retry.backoff.max.ms", Kind.LONG, 1_000, "Longest pause between repetitions.", low=0),
    Key("connect.timeout.ms", Kind.INT, 10_000, "How long the first contact with the cluster may take.", low=1),
)

ADMIN_KEYS = Keys(
    (
        *_COMMON,
        Key("default.api.timeout.ms", Kind.INT, 60_000, "How long a call may take, repetitions included.", low=1),
    )
)

PRODUCER_KEYS = Keys(
    (
        *_COMMON,
        Key("acks", Kind.STRING, "all", "Who must have a record before it counts.", choices=("0", "1", "-1", "all")),
        Key(
            "batch.size",
            Kind.INT,
            16_384,
            "Bytes of a batch; with idempotence more while others wait before it.",
            low=0,
        ),
        Key("linger.ms", Kind.LONG, 5, "How long a batch waits for more records.", low=0),
        Key("compression.type", Kind.STRING, "none", "Codec of batches.", choices=CODECS),
        Key("buffer.memory", Kind.LONG, 33_554_432, "Bytes of records that wait or are on their way.", low=1),
        Key("max.block.ms", Kind.LONG, 60_000, "How long send waits for room in the buffer, or for a topic.", low=0),
        Key("max.request.size", Kind.INT, 1_048_576, "Largest record, and bytes of one request.", low=1),
        Key("max.in.flight.requests.per.connection", Kind.INT, 5, "Unanswered requests to one broker.", low=1),
        Key("enable.idempotence", Kind.BOOLEAN, True, "Repetitions never make duplicates or change the order."),
        Key("retries", Kind.INT, _MAX_INT, "How often a batch is sent again.", low=0, high=_MAX_INT),
        Key("delivery.timeout.ms", Kind.INT, 120_000, "From send to success or failure.", low=0, high=_MAX_INT),
        Key("partitioner.adaptive.partitioning.enable", Kind.BOOLEAN, True, "Slow partitions get fewer records."),
    )
)

CONSUMER_KEYS = Keys(
    (
        *_COMMON,
        Key("group.id", Kind.STRING, "", "The consumer group; needed to subscribe and to commit."),
        Key("group.instance.id", Kind.STRING, "", "Makes the consumer a static member of its group."),
        Key(
            "auto.offset.reset",
            Kind.STRING,
            "latest",
            "Where to begin without a usable offset.",
            choices=("earliest", "latest", "none"),
        ),
        Key("enable.auto.commit", Kind.BOOLEAN, True, "Commit what was handed out, now and then, while polling."),
        Key("auto.commit.interval.ms", Kind.INT, 5_000, "How often to commit automatically.", low=0),
        Key("fetch.min.bytes", Kind.INT, 1, "A fetch waits for this much.", low=0),
        Key(
            "fetch.max.bytes", Kind.INT, 52_428_800, "Most of one answer, and of everything that is prefetched.", low=1
        ),
        Key("fetch.max.wait.ms", Kind.INT, 500, "How long a fetch waits.", low=0),
        Key("max.partition.fetch.bytes", Kind.INT, 1_048_576, "Most of one answer from one partition.", low=1),
        Key("max.poll.records", Kind.INT, 500, "Most records of one poll.", low=1),
        Key("max.poll.interval.ms", Kind.INT, 300_000, "Longest time between polls for a member of a group.", low=1),
        Key("session.timeout.ms", Kind.INT, 45_000, "Without a heartbeat for this long, a member is out.", low=1),
        Key("heartbeat.interval.ms", Kind.INT, 3_000, "Time between heartbeats.", low=1),
        Key(
            "isolation.level",
            Kind.STRING,
            "read_uncommitted",
            "What of transactions to see.",
            choices=("read_uncommitted", "read_committed"),
        ),
        Key(
            "partition.assignment.strategy",
            Kind.LIST,
            ("range", "cooperative-sticky"),
            "Assignors, the favourite first.",
            choices=("range", "roundrobin", "sticky", "cooperative-sticky"),
        ),
        Key("check.crcs", Kind.BOOLEAN, True, "Check the checksum of every batch."),
        Key("client.rack", Kind.STRING, "", "Where this program runs, to read from a near replica."),
        Key("default.api.timeout.ms", Kind.INT, 60_000, "How long a call may take, repetitions included.", low=1),
        Key("metadata.max.age.ms", Kind.LONG, 300_000, "How often patterns are matched again at the latest.", low=0),
    )
)


class Config(Mapping[str, Any]):
    """Typed settings by Kafka's names. Given names have underscores for dots; a wrong one is refused with the nearest.

    >>> Config(PRODUCER_KEYS, {"linger_ms": 20})["linger.ms"]
    20
    >>> Config(PRODUCER_KEYS, {"linger": 20})
    Traceback (most recent call last):
    ...
    headrace.config.InvalidConfig: INVALID_CONFIG: unknown config linger: did you mean linger_ms?
    """

    def __init__(self, keys: Keys, given: Mapping[str, Any]) -> None:
        names = {key.name.replace(".", "_"): key for key in keys}
        self._values: dict[str, Any] = keys.defaults()
        for name, value in given.items():
            key = names.get(name.replace(".", "_"))
            if key is None:
                raise InvalidConfig(keys.unknown(name.replace("_", ".")).replace(".", "_"))
            self._values[key.name] = key.parse(_text(value))

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def seconds(self, name: str) -> float:
        """A setting in milliseconds, as seconds."""
        return float(self._values[name]) / 1000


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(str(part) for part in value)
    return str(value)


def producer_config(given: Mapping[str, Any]) -> Config:
    """The settings of a producer; those that contradict each other are refused as Kafka does."""
    config = Config(PRODUCER_KEYS, given)
    stated = {name.replace(".", "_") for name in given}
    if config["enable.idempotence"]:
        conflict = ""
        if config["acks"] not in ("all", "-1"):
            conflict = f"acks={config['acks']}"
        elif config["max.in.flight.requests.per.connection"] > 5:
            conflict = "more than 5 requests in flight"
        elif config["retries"] == 0:
            conflict = "retries=0"
        if conflict and "enable_idempotence" in stated:
            raise InvalidConfig(f"enable_idempotence needs acks=all, retries and at most 5 in flight, not {conflict}")
        if conflict:
            config._values["enable.idempotence"] = False
    needed = config["linger.ms"] + config["request.timeout.ms"]
    if config["delivery.timeout.ms"] < needed:
        if "delivery_timeout_ms" in stated:
            raise InvalidConfig(
                f"delivery_timeout_ms={config['delivery.timeout.ms']} is not allowed: give at least linger_ms + "
                f"request_timeout_ms, which is {needed}"
            )
        config._values["delivery.timeout.ms"] = needed
    return config


def consumer_config(given: Mapping[str, Any]) -> Config:
    """The settings of a consumer; those that contradict each other are refused as Kafka does."""
    config = Config(CONSUMER_KEYS, given)
    if config["heartbeat.interval.ms"] >= config["session.timeout.ms"]:
        raise InvalidConfig("heartbeat_interval_ms must be less than session_timeout_ms: a third of it is usual")
    if config["fetch.max.wait.ms"] >= config["request.timeout.ms"]:
        raise InvalidConfig("fetch_max_wait_ms must be less than request_timeout_ms")
    return config
