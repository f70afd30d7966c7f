"""Options that many commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Format(StrEnum):
    """How a command prints what it found."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="HEADRACE_BOOTSTRAP",
        help="Where to reach the cluster: metadata servers, host:port by commas. [default: the profile's, or "
        "127.0.0.1:9094]",
        metavar="SERVERS",
    ),
]
Output = Annotated[Format, typer.Option("--output", "-o", help="Table for people, json or yaml for scripts.")]
Settings = Annotated[
    list[str] | None, typer.Option("--config", "-c", help="A setting by Kafka's name.", metavar="KEY=VALUE")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def pairs(given: list[str] | None, option: str = "--config") -> dict[str, str]:
    """KEY=VALUE words as a mapping; a word without = is a mistake in the command line.

    >>> pairs(["retention.ms=1000"])
    {'retention.ms': '1000'}
    """
    found = {}
    for word in given or []:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{word!r} is not KEY=VALUE", param_hint=option)
        found[name.strip()] = value.strip()
    return found
