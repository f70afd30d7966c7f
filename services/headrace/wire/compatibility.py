"""COMPATIBILITY.md, written from the handlers' own docstrings: a table of the APIs served, then what each says.

`python -m headrace.wire.compatibility headrace.broker.handlers ... > COMPATIBILITY.md`
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable

from headrace.wire.api import Handler, handlers_in

SHARED = "headrace.wire.handlers"


def render(handlers: Iterable[Handler]) -> str:
    """The page: one row and one section for each handler, by API key.

    A handler's docstring opens with a line `Name: summary`; the text after it becomes its section.
    """
    ordered = sorted(handlers, key=lambda handler: handler.api_key)
    lines = [
        "# Compatibility",
        "",
        "Which of Kafka's APIs are served, in which versions. Written from the handlers' docstrings; do not edit.",
        "",
        "| key | API | versions | what it does |",
        "| ---: | --- | --- | --- |",
    ]
    sections: list[str] = []
    for handler in ordered:
        opening, _, rest = inspect.cleandoc(handler.doc).partition("\n")
        name, _, summary = opening.partition(": ")
        name, summary = name.partition(" (")[0], summary.rstrip(".")
        lines.append(f"| {int(handler.api_key)} | {name} | {_versions(handler)} | {summary} |")
        if rest.strip():
            sections += ["", f"## {name}", "", *rest.strip().splitlines()]
    return "\n".join(lines + sections) + "\n"


def _versions(handler: Handler) -> str:
    span = f"{handler.low}–{handler.high}" if handler.high > handler.low else str(handler.low)
    if handler.advertised_low < handler.low:
        return f"{span} (advertised from {handler.advertised_low})"
    return span


def main(packages: list[str]) -> None:
    """Print the page of these packages' handlers and the shared ones."""
    sys.stdout.write(render(handler for package in [SHARED, *packages] for handler in handlers_in(package)))


if __name__ == "__main__":
    main(sys.argv[1:])
