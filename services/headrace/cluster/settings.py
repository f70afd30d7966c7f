"""What a process was started with: a file in Java's properties format, and the environment over it.

A name nobody knows is a warning that names the nearest one (a file written for Apache Kafka just starts); a value that
is not allowed stops the start with a sentence that says where it stands and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.cluster.broker_keys import BROKER_KEYS
from headrace.cluster.image import Endpoint
from headrace.config import InvalidConfig

ENVIRONMENT_PREFIX = "HEADRACE_"

# Kubernetes tells pods about services in variables of their own: a service called headrace-metrics makes
# HEADRACE_METRICS_PORT=tcp://10.0.0.1:9404, which is nobody's setting.
_SERVICE_VARIABLE = re.compile(r"(^|_)SERVICE_(HOST|PORT)(_\w+)?$|(^|_)PORT(_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?$")
_SERVICE_VALUE = re.compile(r"(tcp|udp)://")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_PAIR = re.compile(r"((?:\\.|[^\\\s=:])+)\s*[=:]?\s*(.*)", re.DOTALL)
_LISTENER = re.compile(r"([A-Za-z][A-Za-z0-9_.-]*)://(.*)")


@dataclass(frozen=True, slots=True)
class Listener:
    """A named place where Kafka clients connect."""

    name: str
    endpoint: Endpoint

    @classmethod
    def parse(cls, key: str, text: str) -> Listener:
        match = _LISTENER.fullmatch(text)
        try:
            if match:
                return cls(match[1], Endpoint.parse(match[2]))
        except ValueError:
            pass
        raise InvalidConfig(f"{key}={text!r} is not allowed: give NAME://host:port, as in PLAINTEXT://0.0.0.0:9092")


class Settings:
    """The settings of a process by Kafka's names. `given` holds the texts that were not left to the defaults."""

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self.given = dict(given or {})
        self._values = BROKER_KEYS.defaults() | BROKER_KEYS.parse(self.given)
        self.listeners = tuple(Listener.parse("listeners", text) for text in self["listeners"])
        self.advertised_listeners = (
            tuple(Listener.parse("advertised.listeners", text) for text in self["advertised.listeners"])
            or self.listeners
        )
        self.grpc = self._endpoint("grpc.listener")
        self.advertised_grpc = (
            self._endpoint("advertised.grpc.listener") if self["advertised.grpc.listener"] else self.grpc
        )
        self._check()

    def __getitem__(self, name: str) -> Any:
        """The typed value; InvalidConfig for a name nobody knows."""
        try:
            return self._values[name]
        except KeyError:
            raise InvalidConfig(BROKER_KEYS.unknown(name)) from None

    @property
    def node_id(self) -> int:
        """`node.id`, or `broker.id` when only that was given; -1 when neither was."""
        node_id: int = self["node.id"] if self["node.id"] >= 0 else self["broker.id"]
        return node_id

    def advertised(self, bound: Mapping[str, int]) -> tuple[Listener, ...]:
        """Where each listener is told to be, the one that brokers use first; `bound` has the port where 0 was given."""
        told = {listener.name: listener for listener in self.advertised_listeners}
        told |= {listener.name: listener for listener in self.listeners if listener.name not in told}
        return tuple(
            Listener(each.name, Endpoint(each.endpoint.host or "127.0.0.1", each.endpoint.port or bound[each.name]))
            for each in told.values()
        )

    @property
    def log_dirs(self) -> tuple[str, ...]:
        return self["log.dirs"] or (self["log.dir"],)

    def _endpoint(self, name: str) -> Endpoint:
        try:
            return Endpoint.parse(self[name])
        except ValueError:
            raise InvalidConfig(f"{name}={self[name]!r} is not allowed: give host:port") from None

    def _check(self) -> None:
        if self["node.id"] >= 0 and self["broker.id"] >= 0 and self["node.id"] != self["broker.id"]:
            raise InvalidConfig(f"node.id={self['node.id']} and broker.id={self['broker.id']} differ: give one of them")
        names = [listener.name for listener in self.listeners]
        if not names or len(set(names)) != len(names):
            raise InvalidConfig("listeners must name at least one listener, and none twice")
        for listener in self.advertised_listeners:
            if listener.name not in names:
                raise InvalidConfig(
                    f"advertised.listeners names {listener.name}, listeners does not: give one of {', '.join(names)}"
                )
        for low, high in _ORDERED:
            if self[low] > self[high]:
                raise InvalidConfig(f"{low}={self[low]} is more than {high}={self[high]}: give at most that")


_ORDERED = (
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    ("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms"),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.session.timeout.ms"),
    ("group.consumer.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
)
"""Pairs of which the first may not be more than the second."""


def load(file: Path | None, environ: Mapping[str, str], overrides: Iterable[str] = ()) -> tuple[Settings, list[str]]:
    """The settings, and a warning for each name nobody knows. Later sources win: file, environment, `overrides`.

    `overrides` are `name=value` texts, as a command line gives them.
    """
    given: dict[str, str] = {}
    warnings: list[str] = []
    for place, name, text in (*_from_file(file), *_from_environment(environ), *_from_overrides(overrides)):
        if name not in BROKER_KEYS:
            warnings.append(f"{place}: {BROKER_KEYS.unknown(name)}")
            continue
        try:
            BROKER_KEYS[name].parse(text)
        except InvalidConfig as error:
            raise InvalidConfig(f"{place}: {error.message}") from None
        given[name] = text
    return Settings(given), warnings


def _from_file(file: Path | None) -> Iterator[tuple[str, str, str]]:
    if file is None:
        return
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"the config file {file} cannot be read: {error}") from None
    for line, name, value in parse_properties(text):
        yield f"{file.name} line {line}", name, value


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    known = {key.name.replace(".", "_").upper(): key.name for key in BROKER_KEYS}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        words = variable.removeprefix(ENVIRONMENT_PREFIX)
        if _SERVICE_VARIABLE.search(words) and (words not in known or _SERVICE_VALUE.match(text)):
            continue
        yield f"environment {variable}", known.get(words, words.replace("_", ".").lower()), text


def _from_overrides(overrides: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals:
            raise InvalidConfig(f"{override!r} is not a setting: give name=value")
        yield "command line", name.strip(), text


def parse_properties(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, name and value of each entry of a Java properties file.

    >>> list(parse_properties("# mine\\nnode.id = 1\\nlisteners: A://:1,\\\\\\n  B://:2"))
    [(2, 'node.id', '1'), (3, 'listeners', 'A://:1,B://:2')]
    """
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        entry = line.lstrip()
        if not entry or entry[0] in "#!":
            continue
        # An odd number of backslashes at the end: the entry goes on in the next line.
        while (len(entry) - len(entry.rstrip("\\"))) % 2:
            entry = entry[:-1] + next(lines, (0, ""))[1].lstrip()
        match = _PAIR.fullmatch(entry)
        if match:
            yield number, _unescape(match[1]), _unescape(match[2]).strip()


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else _ESCAPED.get(m[2], m[2]), text)
