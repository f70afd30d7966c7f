"""What commands print: tables for people, JSON and YAML for scripts, colours only on a terminal."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.cli.options import Format

_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./ -]*")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n", "~"}


def show(rows: Sequence[Mapping[str, Any]], output: Format, columns: Sequence[str] = (), empty: str = "") -> None:
    """Prints rows: a table of `columns` (all keys of the first row without them), or everything for scripts."""
    if output is not Format.TABLE:
        print_data(list(rows), output)
        return
    if not rows:
        if empty:
            print(empty, file=sys.stderr)
        return
    table(columns or list(rows[0]), [[cell(row.get(name)) for name in columns or list(rows[0])] for row in rows])


def print_data(data: Any, output: Format) -> None:
    """Prints data as JSON or YAML."""
    print(json.dumps(data, indent=2, default=str) if output is Format.JSON else "\n".join(yaml_lines(data)))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns that line up; numbers to the right. Without a terminal it is as wide as it needs to be."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    listed = [list(row) for row in rows]
    if not sys.stdout.isatty():
        widths = [max(len(name), *(len(row[i]) for row in listed)) for i, name in enumerate(columns)]
        for row in [[name.upper().replace("_", " ") for name in columns], *listed]:
            print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
        return
    drawn = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for i, name in enumerate(columns):
        numeric = all(row[i].lstrip("-").replace(",", "").isdigit() for row in listed)
        drawn.add_column(name.replace("_", " "), justify="right" if numeric else "left", no_wrap=i == 0)
    for row in listed:
        drawn.add_row(*(Text(text, style="red" if text == "none" else "") for text in row))
    Console().print(drawn)


def cell(value: Any) -> str:
    """A value in a table.

    >>> cell([1, 2]), cell(None), cell(True)
    ('1,2', '-', 'yes')
    """
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "-"
    if isinstance(value, dict):
        return ",".join(f"{name}={text}" for name, text in value.items()) or "-"
    return str(value)


def yaml_lines(data: Any, indent: str = "") -> Iterable[str]:
    """Plain data as YAML, block style.

    >>> list(yaml_lines([{"name": "orders", "isr": [1, 2]}]))
    ['- name: orders', '  isr: [1, 2]']
    """
    if isinstance(data, Mapping) and data:
        for name, value in data.items():
            if isinstance(value, Mapping | list) and value and not _flat(value):
                yield f"{indent}{_scalar(name)}:"
                yield from yaml_lines(value, indent + "  ")
            else:
                yield f"{indent}{_scalar(name)}: {_inline(value)}"
    elif isinstance(data, list) and data:
        for item in data:
            lines = list(yaml_lines(item, indent + "  "))
            lines[0] = f"{indent}- {lines[0].strip()}"
            yield from lines
    else:
        yield indent + _inline(data)


def _flat(value: Any) -> bool:
    return isinstance(value, list) and not any(isinstance(item, Mapping | list) for item in value)


def _inline(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_scalar(item) for item in value)}]"
    if isinstance(value, Mapping):
        return "{}"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    text = str(value)
    plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS and text == text.strip()
    return text if plain else json.dumps(text)
