"""Custom resources from typed dataclasses: one declaration gives the OpenAPI schema, the parser and the reference page.

A field is declared with `spec_field`, which carries its sentence of documentation, its bounds and its CEL rules. Names
are snake_case in Python and camelCase in Kubernetes.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar, Union

T = TypeVar("T")

Json = dict[str, Any]
"""A piece of a manifest or of a schema."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A CEL rule and the sentence a person reads when it is broken; `self` is the value it stands at."""

    cel: str
    message: str

    def schema(self) -> Json:
        return {"rule": self.cel, "message": self.message}


@dataclass(frozen=True, slots=True)
class Declared:
    """What a field says about itself beside its type."""

    doc: str
    rules: tuple[Rule, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    whole: Mapping[str, Any] | None = None
    """A schema to use as it is, for what Kubernetes itself defines."""


def spec_field(
    doc: str,
    *,
    default: Any = MISSING,
    factory: Any = MISSING,
    rules: tuple[Rule, ...] = (),
    whole: Mapping[str, Any] | None = None,
    key: str | None = None,
    **extra: Any,
) -> Any:
    """A field of a resource; `extra` goes into its schema as it is (minimum, enum, maxItems, …).

    `key` names what tells the items of a list apart, so that rules can compare each with what it was.
    """
    if key is not None:
        extra |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
    metadata = {"declared": Declared(doc, rules, extra, whole)}
    if factory is not MISSING:
        return field(default_factory=factory, metadata=metadata, kw_only=True)
    return field(default=default, metadata=metadata, kw_only=True)


FREE_OBJECT: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
CONFIG_MAP: Json = {
    "type": "object",
    "maxProperties": 256,
    "additionalProperties": {"x-kubernetes-int-or-string": True, "maxLength": 4096},
}
"""Kafka's settings by name; numbers may be written without quotes."""


def camel(name: str) -> str:
    """
    >>> camel("storage_class")
    'storageClass'
    """
    head, *rest = name.rstrip("_").split("_")
    return head + "".join(word.capitalize() for word in rest)


Fields = tuple[tuple[str, Any, Declared, Any], ...]
_known: dict[type, Fields] = {}


def declared(cls: type) -> Fields:
    """Name in Python, type, declaration and default (MISSING: it must be given) of each field.

    Looked up once a class: a thousand resources are parsed at every look.
    """
    if cls not in _known:
        _known[cls] = _look_up(cls)
    return _known[cls]


def _look_up(cls: type) -> Fields:
    hints = typing.get_type_hints(cls)
    return tuple(
        (
            each.name,
            hints[each.name],
            each.metadata["declared"],
            each.default_factory() if each.default_factory is not MISSING else each.default,
        )
        for each in fields(cls)
    )


def schema_of(cls: type) -> Json:
    """The OpenAPI schema of a dataclass."""
    properties: Json = {}
    required: list[str] = []
    for name, hint, about, default in declared(cls):
        properties[camel(name)] = _field_schema(hint, about, default)
        if default is MISSING:
            required.append(camel(name))
    found: Json = {"type": "object", "properties": properties}
    if doc := _doc(cls):
        found["description"] = doc
    if required:
        found["required"] = required
    if rules := getattr(cls, "RULES", ()):
        found["x-kubernetes-validations"] = [rule.schema() for rule in rules]
    return found


def _field_schema(hint: Any, about: Declared, default: Any) -> Json:
    found = dict(about.whole) if about.whole is not None else _type_schema(hint)
    found |= about.extra
    found["description"] = about.doc
    if about.rules:
        found["x-kubernetes-validations"] = [rule.schema() for rule in about.rules]
    if default is not MISSING and default is not None and (is_dataclass(default) or default not in ("", {}, ())):
        found["default"] = _default(default)
    return found


def _default(value: Any) -> Any:
    """A default as the schema says it: what is the default inside an object anyway is left to the API server."""
    if isinstance(value, tuple):
        # Rules see a default list before the defaults inside it: its items are complete.
        return [to_dict(each) if is_dataclass(each) else each for each in value]
    if not is_dataclass(value):
        return value
    given = ((name, getattr(value, name), default) for name, _, _, default in declared(type(value)))
    return {camel(name): _default(one) for name, one, default in given if one != default}


def _type_schema(hint: Any) -> Json:
    hint = _bare(hint)
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    if is_dataclass(hint):
        return schema_of(typing.cast(type, hint))
    if typing.get_origin(hint) is tuple:
        return {"type": "array", "items": _type_schema(typing.get_args(hint)[0])}
    raise TypeError(f"no schema for {hint}: give `whole`")


_SCALARS: dict[Any, str] = {str: "string", int: "integer", bool: "boolean"}


def _bare(hint: Any) -> Any:
    """The type without `| None`."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        return next(part for part in typing.get_args(hint) if part is not type(None))
    return hint


def _doc(cls: type) -> str:
    return re.sub(r"\s+", " ", (cls.__doc__ or "").strip())


def parse(cls: type[T], given: Mapping[str, Any] | None) -> T:
    """A dataclass from an object of the API server; what the class does not know is left out."""
    values: Json = {}
    given = given or {}
    for name, hint, _, _ in declared(cls):
        value = given.get(camel(name))
        if value is not None:
            values[name] = _parse_value(_bare(hint), value)
    return cls(**values)


def _parse_value(hint: Any, value: Any) -> Any:
    if is_dataclass(hint):
        return parse(typing.cast(type, hint), value)
    if typing.get_origin(hint) is tuple:
        return tuple(_parse_value(typing.get_args(hint)[0], each) for each in value)
    return value


def to_dict(value: Any) -> Json:
    """What `parse` reads back: camelCase, without what is None."""
    found: Json = {}
    for name, _, _, _ in declared(type(value)):
        one = getattr(value, name)
        if one is None:
            continue
        if is_dataclass(one):
            found[camel(name)] = to_dict(one)
        elif isinstance(one, tuple):
            found[camel(name)] = [to_dict(each) if is_dataclass(each) else each for each in one]
        else:
            found[camel(name)] = one
    return found


def to_patch(value: Any) -> Json:
    """As `to_dict`, with null for what is None, so that a merge takes it away; lists it replaces as a whole."""
    found = to_dict(value)
    for name, _, _, _ in declared(type(value)):
        one = getattr(value, name)
        if one is None or is_dataclass(one):
            found[camel(name)] = None if one is None else to_patch(one)
    return found
