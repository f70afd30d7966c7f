r"""Format strings for records, as kcat and rpk have them.

%t topic       %k key              %h headers, name=value by commas
%p partition   %K bytes of the key (-1: none)      %T timestamp in milliseconds
%o offset      %v or %s value      %S bytes of the value (-1: none)
%% a percent sign; \n \r \t \0 \\ \xHH as in other languages
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from headrace.client import ConsumerRecord
from headrace.config import InvalidConfig

_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)|(.)", re.DOTALL)


def _text(number: int) -> bytes:
    return b"%d" % number


def _headers(record: ConsumerRecord) -> bytes:
    return b",".join(
        name.encode("utf-8", "surrogateescape") + b"=" + (value if value is not None else b"NULL")
        for name, value in record.headers
    )


_FIELDS: dict[str, Callable[[ConsumerRecord], bytes]] = {
    "t": lambda r: r.topic.encode(),
    "p": lambda r: _text(r.partition),
    "o": lambda r: _text(r.offset),
    "T": lambda r: _text(r.timestamp),
    "k": lambda r: r.key or b"",
    "K": lambda r: _text(-1 if r.key is None else len(r.key)),
    "v": lambda r: r.value or b"",
    "s": lambda r: r.value or b"",
    "S": lambda r: _text(-1 if r.value is None else len(r.value)),
    "h": _headers,
    "%": lambda r: b"%",
}


def compile_format(text: str) -> Callable[[ConsumerRecord], bytes]:
    r"""What prints a record; a letter nobody knows is refused with the list of those there are.

    >>> show = compile_format(r"%t/%p@%o: %k=%v\n")
    >>> show(ConsumerRecord("orders", 1, 42, 0, 0, b"k", b"v", (), 0))
    b'orders/1@42: k=v\n'
    """
    parts: list[bytes | Callable[[ConsumerRecord], bytes]] = []
    for found in _TOKEN.finditer(text):
        field, code, escape, plain, stray = found.groups()
        if field is not None:
            if field not in _FIELDS:
                raise InvalidConfig(f"%{field} is not known: use {' '.join('%' + name for name in _FIELDS)}")
            parts.append(_FIELDS[field])
        elif code is not None:
            parts.append(bytes.fromhex(code))
        elif escape is not None:
            if escape not in _ESCAPES:
                raise InvalidConfig(rf"\{escape} is not known: use \n \r \t \0 \\ or \xHH")
            parts.append(_ESCAPES[escape])
        elif stray == "%":
            raise InvalidConfig("a single % at the end: write %% for a percent sign")
        else:
            parts.append((plain or stray).encode())
    return lambda record: b"".join(part if isinstance(part, bytes) else part(record) for part in parts)


def as_json(record: ConsumerRecord) -> bytes:
    """One line of JSON for a record; bytes that are not UTF-8 come as {"hex": ...}."""
    return json.dumps(fields(record), ensure_ascii=False).encode() + b"\n"


def fields(record: ConsumerRecord) -> dict[str, Any]:
    """A record as plain data."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _data(record.key),
        "value": _data(record.value),
        "headers": {name: _data(value) for name, value in record.headers},
    }


def _data(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"hex": value.hex()}
