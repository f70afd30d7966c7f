"""Which value of a setting is in force, where it comes from, and which changes of it are allowed.

A topic's setting is looked for in the topic's own overrides, then in the dynamic settings of the broker, in those of
all brokers, in what the broker was started with, and last in the built-in defaults: Kafka's order, so that
DescribeConfigs tells the same story to the same tools.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from headrace.cluster.broker_keys import BROKER_KEYS, TOPIC_SYNONYMS
from headrace.cluster.broker_keys import Synonym as BrokerName
from headrace.cluster.settings import Settings, load
from headrace.config import InvalidConfig, Key, Keys, Kind
from headrace.storage.config import TOPIC_KEYS, LogConfig

__all__ = [
    "BROKER_KEYS",
    "TOPIC_KEYS",
    "Brokers",
    "Entry",
    "Operation",
    "OperationKind",
    "Settings",
    "Source",
    "Synonym",
    "alter_broker",
    "alter_topic",
    "describe_broker",
    "describe_broker_default",
    "describe_topic",
    "load",
    "topic_values",
]

_NOTHING: Mapping[str, str] = {}


class Source(IntEnum):
    """Where a value comes from; Kafka's numbers."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class OperationKind(IntEnum):
    """What IncrementalAlterConfigs can do with a setting; Kafka's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class Operation:
    """One change of one setting."""

    name: str
    kind: OperationKind = OperationKind.SET
    value: str = ""


@dataclass(frozen=True, slots=True)
class Synonym:
    """A place that has a value for a setting; the first of them is in force."""

    name: str
    value: str
    source: Source


@dataclass(frozen=True, slots=True)
class Entry:
    """A setting as DescribeConfigs shows it."""

    key: Key
    value: str
    source: Source
    synonyms: tuple[Synonym, ...]

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def read_only(self) -> bool:
        return not self.key.live

    @property
    def is_default(self) -> bool:
        return self.source is Source.DEFAULT


@dataclass(frozen=True, slots=True)
class Brokers:
    """The broker's part in a setting: what it was started with and what was changed while it runs."""

    static: Mapping[str, str]
    dynamic_default: Mapping[str, str] = field(default_factory=dict)
    dynamic: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings, broker_configs: Mapping[str, Mapping[str, str]], broker: int) -> Brokers:
        """From a process's settings and an image's `broker_configs`."""
        return cls(settings.given, broker_configs.get("", _NOTHING), broker_configs.get(str(broker), _NOTHING))

    def layers(self) -> tuple[tuple[Source, Mapping[str, str]], ...]:
        return (
            (Source.DYNAMIC_BROKER, self.dynamic),
            (Source.DYNAMIC_DEFAULT_BROKER, self.dynamic_default),
            (Source.STATIC_BROKER, self.static),
        )


def describe_topic(overrides: Mapping[str, str], brokers: Brokers, names: Iterable[str] | None = None) -> list[Entry]:
    """Every setting of a topic (or those in `names`), as Kafka's tools show it."""
    return [_entry(key, _topic_synonyms(key, overrides, brokers)) for key in _chosen(TOPIC_KEYS, names)]


def describe_broker(brokers: Brokers, names: Iterable[str] | None = None) -> list[Entry]:
    """Every setting of a broker (or those in `names`)."""
    return [_entry(key, _broker_synonyms(key, brokers)) for key in _chosen(BROKER_KEYS, names)]


def describe_broker_default(dynamic_default: Mapping[str, str]) -> list[Entry]:
    """The dynamic settings of all brokers: only what was given, as Kafka shows the empty broker name."""
    source = Source.DYNAMIC_DEFAULT_BROKER
    return [
        Entry(BROKER_KEYS[name], text, source, (Synonym(name, text, source),))
        for name, text in sorted(dynamic_default.items())
        if name in BROKER_KEYS
    ]


def topic_values(overrides: Mapping[str, str], brokers: Brokers) -> dict[str, str]:
    """What a topic's log is run with, for `LogConfig.of`: each setting that does not have its built-in default."""
    found: dict[str, str] = {}
    for key in TOPIC_KEYS:
        first = next(_topic_synonyms(key, overrides, brokers))
        if first.source is not Source.DEFAULT:
            found[key.name] = first.value
    return found


def alter_topic(
    current: Mapping[str, str], operations: Iterable[Operation], brokers: Brokers, *, replace: bool = False
) -> dict[str, str]:
    """The overrides of a topic after `operations`; `replace` forgets the present ones first (the old AlterConfigs)."""
    altered = _alter(
        TOPIC_KEYS, current, operations, replace, lambda key: next(_topic_synonyms(key, _NOTHING, brokers)).value
    )
    # Settings that are right one by one can still be wrong together.
    LogConfig.of(topic_values(altered, brokers))
    return altered


def alter_broker(
    current: Mapping[str, str], operations: Iterable[Operation], brokers: Brokers, *, replace: bool = False
) -> dict[str, str]:
    """The dynamic settings of a broker (or of all brokers) after `operations`."""
    listed = list(operations)
    for operation in listed:
        if not BROKER_KEYS[operation.name].live and operation.kind is not OperationKind.DELETE:
            raise InvalidConfig(
                f"{operation.name} cannot be changed while brokers run: put it into their config file and restart them"
            )
    return _alter(
        BROKER_KEYS, current, listed, replace, lambda key: next(_broker_synonyms(key, Brokers(brokers.static))).value
    )


def _alter(
    keys: Keys,
    current: Mapping[str, str],
    operations: Iterable[Operation],
    replace: bool,
    inherited: Callable[[Key], str],
) -> dict[str, str]:
    altered = {} if replace else dict(current)
    seen: set[str] = set()
    for operation in operations:
        key = keys[operation.name]
        if key.name in seen:
            raise InvalidConfig(f"{key.name} is changed twice in one request: send one change of it")
        seen.add(key.name)
        if operation.kind is OperationKind.DELETE:
            altered.pop(key.name, None)
            continue
        value = operation.value
        if operation.kind is not OperationKind.SET:
            value = _edit_list(key, altered.get(key.name) or inherited(key), operation)
        # Stored in one spelling, whatever the client wrote.
        altered[key.name] = key.render(key.parse(value))
    return altered


def _edit_list(key: Key, present: str, operation: Operation) -> str:
    if key.kind is not Kind.LIST:
        raise InvalidConfig(f"{key.name} is not a list: use SET or DELETE, not {operation.kind.name}")
    words: list[str] = list(key.parse(present))
    given: tuple[str, ...] = key.parse(operation.value)
    if operation.kind is OperationKind.APPEND:
        words += [word for word in given if word not in words]
    else:
        words = [word for word in words if word not in given]
    return ",".join(words)


def _chosen(keys: Keys, names: Iterable[str] | None) -> Iterator[Key]:
    # Kafka leaves names it does not know out of the answer.
    wanted = None if names is None else set(names)
    return (key for key in keys if wanted is None or key.name in wanted)


def _entry(key: Key, synonyms: Iterator[Synonym]) -> Entry:
    listed = tuple(synonyms)
    return Entry(key, listed[0].value, listed[0].source, listed)


def _topic_synonyms(key: Key, overrides: Mapping[str, str], brokers: Brokers) -> Iterator[Synonym]:
    if key.name in overrides:
        yield Synonym(key.name, overrides[key.name], Source.TOPIC)
    names = TOPIC_SYNONYMS.get(key.name, ())
    for source, layer in brokers.layers():
        for name in names:
            if name.name in layer:
                yield Synonym(name.name, _converted(key, name, layer[name.name]), source)
    yield Synonym(names[-1].name if names else key.name, key.render(key.default), Source.DEFAULT)


def _broker_synonyms(key: Key, brokers: Brokers) -> Iterator[Synonym]:
    for source, layer in brokers.layers():
        if key.name in layer:
            yield Synonym(key.name, layer[key.name], source)
    yield Synonym(key.name, key.render(key.default), Source.DEFAULT)


def _converted(key: Key, name: BrokerName, text: str) -> str:
    return text if name.scale == 1 else key.render(name.convert(BROKER_KEYS[name.name].parse(text)))
