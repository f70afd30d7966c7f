"""Control messages: bytes to kio's dataclasses, and version-independent mappings to bytes.

A handler gets kio's dataclass of the version that was sent, and answers with one mapping for all versions: nested dicts
and lists with kio's field names (snake case). `encode` keeps the fields this version has, fills in the defaults the
protocol gives, and refuses a mapping that lacks a field without one. Error codes are ints, times are milliseconds (or
timedelta, datetime), ids are `uuid.UUID`.

Classes are imported when their version is first used: all of them together take seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING
from functools import cache
from importlib import import_module
from typing import Any, Literal

from headrace.wire import schema
from headrace.wire.errors import MalformedRequest, UnsupportedVersion
from headrace.wire.protocol import ApiKey

Direction = Literal["request", "response"]


@cache
def message_class(api_key: int, version: int, direction: Direction) -> type:
    """kio's class of a message; `UnsupportedVersion` when there is none."""
    try:
        name = ApiKey(api_key).name.lower()
        module = import_module(f"kio.schema.{name}.v{version}.{direction}")
    except (ValueError, ImportError):
        raise UnsupportedVersion(f"API key {api_key} has no {direction} of version {version}") from None
    camel = "".join(word.capitalize() for word in name.split("_"))
    found: type = getattr(module, camel + direction.capitalize())
    return found


def decode(api_key: int, version: int, body: memoryview | bytes, direction: Direction = "request") -> Any:
    """kio's dataclass of a message's body. Whatever is wrong with the bytes is a `MalformedRequest`."""
    read = schema.reader_of(message_class(api_key, version, direction))
    schema.reset_budget()
    try:
        return read(memoryview(body), 0)[0]
    except RecursionError:
        raise MalformedRequest("the message is nested too deeply") from None


def encode(api_key: int, version: int, message: Mapping[str, Any] | object, direction: Direction = "response") -> bytes:
    """The bytes of a message's body."""
    out = bytearray()
    schema.writer_of(message_class(api_key, version, direction))(out, message)
    return bytes(out)


@cache
def can_carry_error(api_key: int, version: int) -> bool:
    """Whether a response of this version has one error code for all of it."""
    try:
        plans, _ = schema.plans_of(message_class(api_key, version, "response"))
    except UnsupportedVersion:
        return False
    return any(plan.name == "error_code" for plan in plans)


def error_response(api_key: int, version: int, code: int, message: str | None = None) -> bytes | None:
    """A response that says only `code`, everything else empty; None when this API has no place for it."""
    if not can_carry_error(api_key, version):
        return None
    values = _empty(message_class(api_key, version, "response"))
    values["error_code"] = code
    if "error_message" in values:
        values["error_message"] = message or None
    return encode(api_key, version, values)


def _empty(cls: type) -> dict[str, Any]:
    """The emptiest value of each field without a default, and of `error_message`."""
    values: dict[str, Any] = {}
    for plan in schema.plans_of(cls)[0]:
        if plan.name == "error_message" and plan.nullable:
            values[plan.name] = None
        elif plan.default is MISSING:
            values[plan.name] = _empty_field(plan)
    return values


def _empty_field(plan: schema.FieldPlan) -> Any:
    if plan.nullable:
        return None
    if plan.array:
        return []
    if plan.entity is not None:
        return _empty(plan.entity)
    return {"string": "", "bytes": b"", "records": b"", "uuid": None, "bool": False}.get(plan.kafka_type or "", -1)
