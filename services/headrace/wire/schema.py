"""Readers and writers compiled from kio's message classes.

kio gives every message of every version as a dataclass; this module turns one class into a reader and a writer. kio's
own are not used for bytes from the network: its native reader reserves memory for whatever length an array announces,
and a request of 25 bytes ends the process. Its writer, in Python, wants each version's own classes; ours takes one
version-independent mapping and is several times faster, since neighbouring numbers are packed in one call.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin
from uuid import UUID

from kio.schema.errors import ErrorCode as KioErrorCode

from headrace.wire import primitives as p
from headrace.wire.errors import MalformedRequest

Reader = Callable[[memoryview, int], tuple[Any, int]]
Writer = Callable[[bytearray, Any], None]

FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "float64": "d",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}
MAX_ELEMENTS = 500_000
"""Elements of all arrays of one message: what a small body can grow into is bounded too."""

_MILLISECOND = timedelta(milliseconds=1)
_LONGEST = timedelta.max // _MILLISECOND


class EncodingError(ValueError):
    """A message of our own cannot be written: a field is missing or has a value its type cannot hold."""


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """What a kio field says about its bytes."""

    name: str
    kafka_type: str | None
    entity: type | None
    array: bool
    nullable: bool
    tag: int | None
    default: Any

    @property
    def fixed(self) -> str | None:
        return None if self.array or self.entity else FIXED.get(self.kafka_type or "")


def plan_of(field: Field[Any]) -> FieldPlan:
    """Read one dataclass field; its default is `MISSING` where a writer must be given a value."""
    kind: Any = field.type
    nullable = False
    if get_origin(kind) is UnionType:
        kind = next(arg for arg in get_args(kind) if arg is not NoneType)
        nullable = True
    array = get_origin(kind) is tuple
    if array:
        kind = get_args(kind)[0]
    default: Any = field.default
    kafka_type = field.metadata.get("kafka_type")
    if default is MISSING and field.name == "throttle_time":
        default = 0
    entity = kind if isinstance(kind, type) and is_dataclass(kind) else None
    plan = FieldPlan(field.name, kafka_type, entity, array, nullable, field.metadata.get("tag"), default)
    # A tag that is not sent has a value too: the protocol's zero of its type.
    return replace(plan, default=zero_of(plan)) if plan.tag is not None and default is MISSING else plan


def zero_of(plan: FieldPlan) -> Any:
    """The value of a field that has no default and is not given."""
    if plan.nullable:
        return None
    if plan.array:
        return ()
    if plan.entity is not None:
        inner = [plan_of(field) for field in fields(plan.entity)]
        return plan.entity(**{each.name: zero_of(each) for each in inner if each.default is MISSING})
    if plan.fixed:
        convert = _CONVERT.get(plan.kafka_type or "")
        return convert(0) if convert else False if plan.kafka_type == "bool" else 0
    return {"string": "", "uuid": None}.get(plan.kafka_type or "", b"")


def plans_of(cls: type) -> tuple[list[FieldPlan], dict[int, FieldPlan]]:
    """The fields in order, and the tagged ones by tag."""
    plans = [plan_of(field) for field in fields(cls)]
    tagged = {plan.tag: plan for plan in plans if plan.tag is not None}
    return [plan for plan in plans if plan.tag is None], dict(sorted(tagged.items()))


# --- reading -----------------------------------------------------------------------------------------------------


class _Budget:
    """How many array elements the message being read may still have. Reading is synchronous, so one is enough."""

    left = MAX_ELEMENTS


def reset_budget() -> None:
    """Start counting the elements of another message."""
    _Budget.left = MAX_ELEMENTS


def _spend(count: int) -> None:
    _Budget.left -= count
    if _Budget.left < 0:
        raise MalformedRequest(f"the message has more than {MAX_ELEMENTS} elements: split it")


def _duration(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=max(-_LONGEST, min(_LONGEST, milliseconds)))


def _moment(milliseconds: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds >= 0 else None
    except (OverflowError, ValueError):
        raise MalformedRequest(f"{milliseconds} is no timestamp") from None


def _error_code(code: int) -> Any:
    try:
        return KioErrorCode(code)
    except ValueError:
        return code


_CONVERT: dict[str, Callable[[int], Any]] = {
    "timedelta_i32": _duration,
    "timedelta_i64": _duration,
    "datetime_i64": _moment,
    "error_code": _error_code,
}


@cache
def reader_of(cls: type) -> Reader:
    """A function that reads `cls` at a position of a buffer."""
    flexible: bool = cls.__flexible__  # type: ignore[attr-defined]
    plans, tagged = plans_of(cls)
    steps = [(plan.name, _field_reader(plan, flexible)) for plan in plans]
    by_tag = {tag: (plan.name, _field_reader(plan, flexible)) for tag, plan in tagged.items()}
    unsent = {plan.name: plan.default for plan in tagged.values()}

    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        values = {}
        for name, step in steps:
            values[name], position = step(buffer, position)
        if flexible:
            tags, position = p.read_tags(buffer, position)
            for tag, start, end in tags:
                if tag in by_tag:
                    name, step = by_tag[tag]
                    values[name], _ = step(buffer[:end], start)
        return cls(**{**unsent, **values}) if unsent else cls(**values), position

    return read


def _field_reader(plan: FieldPlan, flexible: bool) -> Reader:
    if plan.array:
        return _array_reader(plan, flexible)
    if plan.entity is not None:
        inner = reader_of(plan.entity)
        return _nullable_entity_reader(inner) if plan.nullable and plan.tag is None else inner
    nullable = plan.nullable or plan.tag is not None
    return _primitive_reader(plan.kafka_type or "", flexible, nullable)


def _primitive_reader(kafka_type: str, flexible: bool, nullable: bool) -> Reader:
    if kafka_type in FIXED:
        return _fixed_reader(kafka_type)
    if kafka_type == "string":
        string = p.read_nullable_string if nullable else p.read_string
        return lambda buffer, position: string(buffer, position, flexible)
    if kafka_type == "uuid":
        return _read_uuid
    if kafka_type in ("bytes", "records"):

        def read_bytes(buffer: memoryview, position: int) -> tuple[bytes | None, int]:
            size, position = p.read_length(buffer, position, flexible)
            if size < 0:
                if not nullable:
                    raise MalformedRequest("bytes are null that may not be")
                return None, position
            return bytes(buffer[position : position + size]), position + size

        return read_bytes
    raise EncodingError(f"unknown type {kafka_type}")


def _fixed_reader(kafka_type: str) -> Reader:
    layout = struct.Struct(">" + FIXED[kafka_type])
    unpack, size, convert = layout.unpack_from, layout.size, _CONVERT.get(kafka_type)

    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        try:
            value = unpack(buffer, position)[0]
        except struct.error:
            raise MalformedRequest(f"the message ends inside an {kafka_type}") from None
        return (convert(value) if convert else value), position + size

    return read


def _read_uuid(buffer: memoryview, position: int) -> tuple[UUID | None, int]:
    value, position = p.read_uuid(buffer, position)
    return (value if value.int else None), position


def _nullable_entity_reader(inner: Reader) -> Reader:
    """A struct that may be null has a byte before it: -1 for null (KIP-893)."""

    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        if position >= len(buffer):
            raise MalformedRequest("the message ends where a struct should be")
        return inner(buffer, position + 1) if buffer[position] < 0x80 else (None, position + 1)

    return read


def _array_reader(plan: FieldPlan, flexible: bool) -> Reader:
    nullable = plan.nullable
    if plan.entity is not None:
        inner = reader_of(plan.entity)
    else:
        inner = _primitive_reader(plan.kafka_type or "", flexible, False)

    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        count, position = p.read_length(buffer, position, flexible)
        if count < 0:
            if not nullable:
                raise MalformedRequest(f"{plan.name} is null, which it may not be")
            return None, position
        _spend(count)
        items = []
        for _ in range(count):
            item, position = inner(buffer, position)
            items.append(item)
        return tuple(items), position

    return read


# --- writing -----------------------------------------------------------------------------------------------------


def _number(value: Any) -> Any:
    """Milliseconds of a duration or a moment, -1 for no moment; numbers as they are."""
    if isinstance(value, timedelta):
        return value // _MILLISECOND
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    return -1 if value is None else value


@cache
def writer_of(cls: type) -> Writer:
    """A function that appends `cls` to a bytearray, from a mapping or from any object with its attributes."""
    flexible: bool = cls.__flexible__  # type: ignore[attr-defined]
    plans, tagged = plans_of(cls)
    steps = _writer_steps(cls.__name__, plans, flexible)
    tags = [(tag, plan.name, plan.default, *_tag_writer(plan, flexible)) for tag, plan in tagged.items()]

    def write(out: bytearray, source: Any) -> None:
        values = source if isinstance(source, Mapping) else _attributes(source, cls)
        for step in steps:
            step(out, values)
        if flexible:
            if not tags:
                out.append(0)
                return
            section = bytearray()
            count = 0
            for tag, name, default, put, unset in tags:
                value = values.get(name, default)
                if value is default or value is None:
                    continue
                encoded = bytearray()
                put(encoded, value)
                if encoded != unset:
                    p.write_tag(section, tag, encoded)
                    count += 1
            p.write_uvarint(out, count)
            out += section

    return write


def _attributes(source: Any, cls: type) -> dict[str, Any]:
    names = (field.name for field in fields(cls))
    return {name: getattr(source, name) for name in names if hasattr(source, name)}


def _tag_writer(plan: FieldPlan, flexible: bool) -> tuple[Writer, bytearray | None]:
    """How a tagged field is written, and its default's bytes: a field that has them is left out."""
    put = _field_writer(plan, flexible)
    if plan.default is MISSING or plan.default is None:
        return put, None
    unset = bytearray()
    put(unset, plan.default)
    return put, unset


def _writer_steps(owner: str, plans: Sequence[FieldPlan], flexible: bool) -> list[Callable[[bytearray, Any], None]]:
    steps: list[Callable[[bytearray, Any], None]] = []
    run: list[FieldPlan] = []
    for plan in plans:
        if plan.fixed:
            run.append(plan)
            continue
        if run:
            steps.append(_run_step(owner, run))
            run = []
        steps.append(_field_step(owner, plan, flexible))
    if run:
        steps.append(_run_step(owner, run))
    return steps


def _run_step(owner: str, run: list[FieldPlan]) -> Callable[[bytearray, Any], None]:
    """Neighbouring numbers in one pack; what is no plain number is converted only when the pack refuses it."""
    pack = struct.Struct(">" + "".join(plan.fixed or "" for plan in run)).pack
    pairs = [(plan.name, plan.default if plan.default is MISSING else _number(plan.default)) for plan in run]

    def write_run(out: bytearray, values: Mapping[str, Any]) -> None:
        get = values.get
        try:
            out += pack(*[get(name, default) for name, default in pairs])
        except struct.error:
            numbers = [_number(get(name, default)) for name, default in pairs]
            for (name, _), number in zip(pairs, numbers, strict=True):
                if number is MISSING:
                    raise EncodingError(f"{owner}.{name} is missing") from None
            try:
                out += pack(*numbers)
            except struct.error as error:
                named = ", ".join(f"{name}={number!r}" for (name, _), number in zip(pairs, numbers, strict=True))
                raise EncodingError(f"{owner}: {error} ({named})") from None

    return write_run


def _field_step(owner: str, plan: FieldPlan, flexible: bool) -> Callable[[bytearray, Any], None]:
    name, default, put = plan.name, plan.default, _field_writer(plan, flexible)
    must = not plan.nullable and plan.kafka_type != "uuid"

    def write_field(out: bytearray, values: Mapping[str, Any]) -> None:
        value = values.get(name, default)
        if value is MISSING:
            raise EncodingError(f"{owner}.{name} is missing")
        if value is None and must:
            raise EncodingError(f"{owner}.{name} may not be null in this version")
        put(out, value)

    return write_field


def _field_writer(plan: FieldPlan, flexible: bool) -> Writer:
    if plan.array:
        return _array_writer(plan, flexible)
    if plan.entity is not None:
        inner = writer_of(plan.entity)
        if not plan.nullable or plan.tag is not None:
            return inner

        def write_nullable(out: bytearray, value: Any) -> None:
            if value is None:
                out.append(0xFF)
            else:
                out.append(1)
                inner(out, value)

        return write_nullable
    return _primitive_writer(plan.kafka_type or "", flexible)


def _primitive_writer(kafka_type: str, flexible: bool) -> Writer:
    if kafka_type in FIXED:
        pack = struct.Struct(">" + FIXED[kafka_type]).pack

        def write_fixed(out: bytearray, value: Any) -> None:
            try:
                out += pack(_number(value))
            except struct.error as error:
                raise EncodingError(f"{value!r}: {error}") from None

        return write_fixed
    if kafka_type == "string":
        return lambda out, value: p.write_string(out, value, flexible)
    if kafka_type == "uuid":
        return lambda out, value: out.extend((value or p.ZERO_UUID).bytes)

    def write_bytes(out: bytearray, value: Any) -> None:
        p.write_length(out, -1 if value is None else len(value), flexible)
        out.extend(value or b"")

    return write_bytes


def _array_writer(plan: FieldPlan, flexible: bool) -> Writer:
    layout = None if plan.entity else FIXED.get(plan.kafka_type or "")
    if plan.entity is not None:
        inner = writer_of(plan.entity)
    else:
        inner = _primitive_writer(plan.kafka_type or "", flexible)

    def write(out: bytearray, items: Any) -> None:
        if items is None:
            p.write_length(out, -1, flexible)
            return
        p.write_length(out, len(items), flexible)
        if layout:
            out += struct.pack(f">{len(items)}{layout}", *items)
            return
        for item in items:
            inner(out, item)

    return write
