"""Named settings with Kafka's names, types and defaults: how one is declared, read and refused.

The keys themselves are declared where they are used: a topic's in `storage.config`, a process's in `cluster.configs`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headrace.errors import ErrorCode, KafkaError


class Kind(StrEnum):
    """What a value is, as Kafka's DescribeConfigs names it."""

    BOOLEAN = "BOOLEAN"
    STRING = "STRING"
    INT = "INT"
    LONG = "LONG"
    DOUBLE = "DOUBLE"
    LIST = "LIST"


class InvalidConfig(KafkaError):
    """A name nobody knows, or a value that is not allowed; the text says what is."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_CONFIG, message)


@dataclass(frozen=True, slots=True)
class Key:
    """One setting. `low` and `high` are inclusive; `choices` are the only words allowed (in a LIST: for each part)."""

    name: str
    kind: Kind
    default: Any
    doc: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    live: bool = False
    """Whether a running process takes a new value without a restart."""

    def parse(self, text: str) -> Any:
        """The typed value of `text`.

        >>> Key("acks.max", Kind.INT, 1, "", low=0).parse("7")
        7
        """
        value = self._convert(text.strip())
        if (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
            raise self._refusal(text)
        if self.choices:
            for word in value if self.kind is Kind.LIST else (value,):
                if word not in self.choices:
                    raise self._refusal(text)
        return value

    def render(self, value: Any) -> str:
        """The text of a typed value, as DescribeConfigs shows it."""
        if value is None:
            return ""
        if self.kind is Kind.BOOLEAN:
            return "true" if value else "false"
        if self.kind is Kind.LIST:
            return ",".join(value)
        return str(value)

    def _convert(self, text: str) -> Any:
        try:
            match self.kind:
                case Kind.BOOLEAN:
                    return {"true": True, "false": False}[text.lower()]
                case Kind.INT | Kind.LONG:
                    return int(text)
                case Kind.DOUBLE:
                    return float(text)
                case Kind.LIST:
                    return tuple(part.strip() for part in text.split(",") if part.strip())
                case _:
                    return text
        except (KeyError, ValueError):
            raise self._refusal(text) from None

    def _refusal(self, text: str) -> InvalidConfig:
        return InvalidConfig(f"{self.name}={text!r} is not allowed: {self.allowed()}")

    def allowed(self) -> str:
        """What a value may be, in words."""
        if self.choices:
            words = ", ".join(self.choices)
            return f"give any of {words}, separated by commas" if self.kind is Kind.LIST else f"give one of {words}"
        if self.kind is Kind.BOOLEAN:
            return "give true or false"
        noun = {Kind.INT: "a whole number", Kind.LONG: "a whole number", Kind.DOUBLE: "a number"}.get(self.kind, "text")
        bounds = [f"at least {self.low:g}"] if self.low is not None else []
        bounds += [f"at most {self.high:g}"] if self.high is not None else []
        return f"give {noun}" + (f" of {' and '.join(bounds)}" if bounds else "")


class Keys:
    """A set of settings that belong together: parses overrides and names the nearest known key for a wrong one."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = {key.name: key for key in keys}

    def __iter__(self) -> Any:
        return iter(self._keys.values())

    def __contains__(self, name: str) -> bool:
        return name in self._keys

    def __getitem__(self, name: str) -> Key:
        try:
            return self._keys[name]
        except KeyError:
            raise InvalidConfig(self.unknown(name)) from None

    def unknown(self, name: str) -> str:
        """The sentence for a name that is not here.

        >>> Keys([Key("retention.ms", Kind.LONG, 1, "")]).unknown("retention.msec")
        'unknown config retention.msec: did you mean retention.ms?'
        """
        near = difflib.get_close_matches(name, self._keys, n=1)
        return f"unknown config {name}" + (f": did you mean {near[0]}?" if near else "")

    def defaults(self) -> dict[str, Any]:
        return {key.name: key.default for key in self}

    def parse(self, overrides: Mapping[str, str]) -> dict[str, Any]:
        """Typed values of `overrides` alone; an unknown name or a wrong value raises `InvalidConfig`."""
        return {name: self[name].parse(text) for name, text in overrides.items()}
