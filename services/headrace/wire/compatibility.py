"""COMPATIBILITY.md, written from the handlers' own docstrings: a table of the APIs served, then what each says.

`python -m headrace.wire.compatibility headrace.broker.handlers ... > COMPATIBILITY.md`
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Iterable

from headrace.wire.api import Handler, handlers_in

SHARED = "headrace.wire.handlers"


def render(handlers: Iterable[Handler]) -> str:
    """The page: one row and one section for each handler, by API key.

    A handler's docstring opens with a line `Name: summary`; the text after it becomes its section.
    """
    ordered = sorted(handlers, key=lambda handler: handler.api_key)
    counts = Counter(handler.api_key for handler in ordered)
    lines = [
        "# Compatibility",
        "",
        "Which of Kafka's APIs are served, in which versions. Written from the handlers' docstrings; do not edit.",
        "",
        "A coordinator passes on to a broker what it does not answer itself and any broker could.",
        "",
        "| key | API | versions | by | what it does |",
        "| ---: | --- | --- | --- | --- |",
    ]
    sections: list[str] = []
    for handler in ordered:
        opening, _, rest = inspect.cleandoc(handler.doc).partition("\n")
        name, _, summary = opening.partition(": ")
        name, summary = name.partition(" (")[0], summary.rstrip(".")
        by = _server(handler)
        lines.append(f"| {int(handler.api_key)} | {name} | {_versions(handler)} | {by} | {summary} |")
        if rest.strip():
            title = name if counts[handler.api_key] == 1 else f"{name} ({by})"
            sections += ["", f"## {title}", "", *rest.strip().splitlines()]
    return "\n".join(lines + sections) + "\n"


def _server(handler: Handler) -> str:
    """Which service a handler belongs to: `headrace.broker.handlers.k00_produce` is the broker's."""
    service = handler.call.__module__.split(".")[1]
    return "all" if service == "wire" else service


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
