"""The options of the data source: the names of Spark's Kafka source, checked before anything is planned.

Spark hands options over in lower case, so names are compared that way and shown as they are documented. What begins
with `headrace.` is a setting of Headrace's own client, as `kafka.` is one of Kafka's in Spark's source.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.client.config import CODECS, CONSUMER_KEYS, PRODUCER_KEYS
from headrace.config import InvalidConfig, Key, Keys, Kind
from headrace.spark.offsets import (
    EARLIEST,
    LATEST,
    OffsetsByTime,
    OffsetSpec,
    at_time,
    parse_assignment,
    parse_offsets,
    parse_times,
)

SERVERS = "headrace.bootstrap.servers"
PREFIX = "headrace."
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""The columns of a read, in order; `headers` only with `includeHeaders`."""

READ_KEYS = Keys(
    (
        Key("subscribe", Kind.LIST, (), "Topics to read, separated by commas."),
        Key("assign", Kind.STRING, "", 'Partitions to read: {"orders":[0,1]}.'),
        Key("subscribePattern", Kind.STRING, "", "Topics to read: those whose whole name the expression matches."),
        Key("startingOffsets", Kind.STRING, "", "Where to begin: earliest, latest, or offsets as json."),
        Key("startingTimestamp", Kind.LONG, None, "Where to begin: the first record not older, in ms.", low=0),
        Key("startingOffsetsByTimestamp", Kind.STRING, "", 'Where to begin: {"orders":{"0":1700000000000}}.'),
        Key(
            "startingOffsetsByTimestampStrategy",
            Kind.STRING,
            "error",
            "What to do with a partition that has nothing so young.",
            choices=("error", "latest"),
        ),
        Key("endingOffsets", Kind.STRING, "", "Where a batch read ends: latest, or offsets as json."),
        Key("endingTimestamp", Kind.LONG, None, "Where a batch read ends: before the first record not older.", low=0),
        Key("endingOffsetsByTimestamp", Kind.STRING, "", 'Where a batch read ends: {"orders":{"0":1700000000000}}.'),
        Key("maxOffsetsPerTrigger", Kind.LONG, None, "Most offsets of a micro-batch, over all partitions.", low=1),
        Key("minPartitions", Kind.INT, None, "Cut topics' partitions into at least so many tasks.", low=1),
        Key("failOnDataLoss", Kind.BOOLEAN, True, "Fail when what should be read is gone; else go on with a warning."),
        Key("includeHeaders", Kind.BOOLEAN, False, "Add the column headers."),
        Key("groupId", Kind.STRING, "", "Consumer group that gets the offsets of finished micro-batches."),
        Key("columns", Kind.LIST, (), "Only these columns: what is not asked for costs nothing.", choices=COLUMNS),
        Key(
            "filterPushdown",
            Kind.BOOLEAN,
            False,
            "Read only what filters on partition, offset and timestamp leave (spark.sql.python.filterPushdown.enabled "
            "must be true).",
        ),
    )
)

WRITE_KEYS = Keys(
    (
        Key("topic", Kind.STRING, "", "Where to, for rows without a column topic."),
        Key("includeHeaders", Kind.BOOLEAN, False, "Write the column headers."),
        Key("compression", Kind.STRING, "none", "Codec of batches.", choices=CODECS),
        Key(
            "failOnChangedRows",
            Kind.BOOLEAN,
            True,
            "Fail when an earlier attempt of a micro-batch wrote rows that this one does not have.",
        ),
    )
)

_OF_SPARK = frozenset({"checkpointlocation", "queryname", "outputmode"})
"""What Spark itself puts among a stream's options."""

_NOT_FOR_CLIENTS = frozenset({"group.id", "auto.offset.reset", "enable.auto.commit", "enable.idempotence", "acks"})
"""Settings that belong to the source, as in Spark's: it decides where to read and how safely to write."""


class InvalidOption(InvalidConfig):
    """An option that cannot be used; the text says what to write instead."""


@dataclass(frozen=True, slots=True)
class Topics:
    """Which topics are read: one of the three is given."""

    names: tuple[str, ...] = ()
    pattern: str = ""
    partitions: Mapping[str, tuple[int, ...]] | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """A read, as its options ask for it."""

    servers: str
    client: Mapping[str, str]
    topics: Topics
    starting: OffsetSpec
    ending: OffsetSpec
    max_offsets_per_trigger: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    group_id: str
    columns: tuple[str, ...]
    filter_pushdown: bool


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """A write, as its options ask for it."""

    servers: str
    client: Mapping[str, str]
    topic: str
    include_headers: bool
    codec: int
    fail_on_changed_rows: bool = True


def read_options(given: Mapping[str, str], streaming: bool) -> ReadOptions:
    """The options of a read; `InvalidOption` for the first that is wrong."""
    values, servers, client = _typed(given, READ_KEYS, CONSUMER_KEYS)
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if _stated(given, name):
                raise InvalidOption(f"{name} ends a batch read: leave it out of a stream, or use spark.read")
        if values["filterPushdown"]:
            raise InvalidOption("filterPushdown is for batch reads: leave it out of a stream")
    elif values["maxOffsetsPerTrigger"] is not None:
        raise InvalidOption("maxOffsetsPerTrigger is for streams: leave it out of a batch read, or use endingOffsets")
    elif values["groupId"]:
        raise InvalidOption("groupId is for streams, which commit what they finished: leave it out of a batch read")
    starting = _starting(values, streaming)
    ending = _ending(values)
    return ReadOptions(
        servers,
        client,
        _topics(values),
        starting,
        ending,
        values["maxOffsetsPerTrigger"],
        values["minPartitions"],
        values["failOnDataLoss"],
        values["groupId"],
        _columns(values),
        values["filterPushdown"],
    )


def column_names(given: Mapping[str, str]) -> tuple[str, ...]:
    """The columns of a read, batch or stream."""
    return _columns(_typed(given, READ_KEYS, CONSUMER_KEYS)[0])


def _columns(values: Mapping[str, Any]) -> tuple[str, ...]:
    wanted = values["columns"] or (COLUMNS if values["includeHeaders"] else COLUMNS[:-1])
    return tuple(name for name in COLUMNS if name in wanted)


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """The options of a write; `InvalidOption` for the first that is wrong."""
    values, servers, client = _typed(given, WRITE_KEYS, PRODUCER_KEYS)
    codec = CODECS.index(values["compression"])
    return WriteOptions(servers, client, values["topic"], values["includeHeaders"], codec, values["failOnChangedRows"])


def _typed(given: Mapping[str, str], keys: Keys, client_keys: Keys) -> tuple[dict[str, Any], str, dict[str, str]]:
    """Values by documented name, the servers, and the client's own settings."""
    known = {key.name.lower(): key for key in keys}
    settings = {key.name for key in client_keys if key.name not in _NOT_FOR_CLIENTS}
    values = keys.defaults()
    client: dict[str, str] = {}
    for name, text in given.items():
        lowered = name.lower()
        try:
            if lowered in known:
                values[known[lowered].name] = known[lowered].parse(text)
            elif lowered.startswith(PREFIX) and lowered.removeprefix(PREFIX) in settings:
                setting = lowered.removeprefix(PREFIX)
                client_keys[setting].parse(text)
                client[setting] = text
            elif lowered not in _OF_SPARK:
                raise InvalidOption(_unknown(name, [key.name for key in keys], settings))
        except InvalidOption:
            raise
        except InvalidConfig as error:
            raise InvalidOption(error.message) from None
    servers = client.pop("bootstrap.servers", "")
    if not servers:
        raise InvalidOption(
            f"{SERVERS} is missing: give the gRPC addresses of metadata servers, such as 127.0.0.1:9094"
        )
    return values, servers, client


def _unknown(name: str, known: Iterable[str], settings: Iterable[str]) -> str:
    candidates = {each.lower(): each for each in known}
    candidates.update({PREFIX + each: PREFIX + each for each in settings})
    if name.lower().startswith("kafka."):
        name_here = PREFIX + name.lower().removeprefix("kafka.")
        if name_here in candidates:
            return f"unknown option {name}: write {name_here}"
    near = difflib.get_close_matches(name.lower(), candidates, n=1, cutoff=0.5)
    return f"unknown option {name}" + (f": did you mean {candidates[near[0]]}?" if near else "")


def _stated(given: Mapping[str, str], name: str) -> bool:
    return name.lower() in {each.lower() for each in given}


def _topics(values: Mapping[str, Any]) -> Topics:
    stated = [name for name in ("subscribe", "assign", "subscribePattern") if values[name]]
    if len(stated) != 1:
        said = f"not {' and '.join(stated)} together" if stated else "none is there"
        raise InvalidOption(f'give one of subscribe ("orders,bills"), subscribePattern or assign: {said}')
    if values["subscribe"]:
        return Topics(names=tuple(dict.fromkeys(values["subscribe"])))
    if values["assign"]:
        return Topics(partitions=parse_assignment(values["assign"]))
    try:
        re.compile(values["subscribePattern"])
    except re.error as error:
        raise InvalidOption(f"subscribePattern {values['subscribePattern']!r} is no expression: {error}") from None
    return Topics(pattern=values["subscribePattern"])


def _starting(values: Mapping[str, Any], streaming: bool) -> OffsetSpec:
    otherwise = values["startingOffsetsByTimestampStrategy"]
    if values["startingTimestamp"] is not None:
        return at_time(values["startingTimestamp"], otherwise)
    if values["startingOffsetsByTimestamp"]:
        times = parse_times("startingOffsetsByTimestamp", values["startingOffsetsByTimestamp"])
        return OffsetsByTime(times, None, otherwise)
    text = values["startingOffsets"] or ("latest" if streaming else "earliest")
    spec = parse_offsets("startingOffsets", text)
    if spec is LATEST and not streaming:
        raise InvalidOption("startingOffsets latest leaves nothing to a batch read: give earliest or offsets as json")
    return spec


def _ending(values: Mapping[str, Any]) -> OffsetSpec:
    if values["endingTimestamp"] is not None:
        return at_time(values["endingTimestamp"], "latest")
    if values["endingOffsetsByTimestamp"]:
        times = parse_times("endingOffsetsByTimestamp", values["endingOffsetsByTimestamp"])
        return OffsetsByTime(times, None, "latest")
    spec = parse_offsets("endingOffsets", values["endingOffsets"] or "latest")
    if spec is EARLIEST:
        raise InvalidOption("endingOffsets earliest leaves nothing to read: give latest or offsets as json")
    return spec
