"""kio's own writers and readers, as the other opinion on what the bytes are."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import Any

from kio.index import load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType


def classes(api_key: int, version: int, direction: str) -> Any:
    """The module with the message's class and those nested in it."""
    return load_payload_module(api_key, version, EntityType[direction])


def write(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def read(cls: type, body: bytes) -> Any:
    return entity_reader(cls)(bytes(body), 0)[0]


def make(cls: type, **values: Any) -> Any:
    """An instance with those of the values that this version has."""
    return cls(**{name: value for name, value in values.items() if name in cls.__dataclass_fields__})


def ms(value: int) -> timedelta:
    return timedelta(milliseconds=value)
