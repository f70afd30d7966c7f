"""`headrace produce` and `headrace consume`: their command lines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.options import Bootstrap, Settings, pairs


def produce(
    topic: Annotated[str, typer.Argument(help="Where to.", metavar="TOPIC")],
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", exists=True, dir_okay=False, help="Read this instead of standard input."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of every record.")] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", help="A line is a key, this, and a value.", metavar="TEXT")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", help="A header of every record.", metavar="NAME=VALUE")
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only into this one.")] = None,
    json: Annotated[
        bool, typer.Option("--json", help='A line is {"value": ..., "key": ..., "headers": {...}, "timestamp": ...}.')
    ] = False,
    null: Annotated[bool, typer.Option("--null", "-Z", help="An empty value is a tombstone.")] = False,
    rate: Annotated[float, typer.Option("--rate", min=0, help="At most this many records a second.")] = 0.0,
    acks: Annotated[str | None, typer.Option("--acks", help="0, 1 or all.")] = None,
    compression: Annotated[
        str | None, typer.Option("--compression", "-z", help="none, gzip, snappy, lz4 or zstd.")
    ] = None,
    config: Settings = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print partition and offset of each.")] = False,
    bootstrap: Bootstrap = None,
) -> None:
    """Send records: a line each, from standard input or a file.

    Examples:

      echo hello | headrace produce orders

      headrace produce orders --key-separator : --file orders.txt --rate 100
    """
    from headrace.cli import producing

    settings: dict[str, Any] = {name.replace(".", "_"): value for name, value in pairs(config).items()}
    if acks is not None:
        settings["acks"] = acks
    if compression is not None:
        settings["compression_type"] = compression
    headers = [(name, value.encode()) for name, value in pairs(header, "--header").items()]
    producing.run(
        producing.Wanted(
            topic, file, key, key_separator, headers, partition, json, null, rate, verbose, settings, bootstrap
        )
    )


def consume(
    topics: Annotated[list[str], typer.Argument(help="What to read.", metavar="TOPIC")],
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            "-F",
            help="beginning, end, an offset, -N (the last N), @MS, 2026-01-31T12:00 or -15m.",
            metavar="PLACE",
        ),
    ] = "end",
    to: Annotated[str | None, typer.Option("--to", help="Stop before this place.", metavar="PLACE")] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many.")] = None,
    exit: Annotated[bool, typer.Option("--exit", "-e", help="Stop at what is the end now.")] = False,
    partition: Annotated[list[int] | None, typer.Option("--partition", "-p", min=0, help="Only these.")] = None,
    format: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help=r"%t topic %p partition %o offset %k key %v value %h headers %T time; %K %S sizes.",
        ),
    ] = r"%v\n",
    json: Annotated[bool, typer.Option("--json", help="A line of JSON for each record.")] = False,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="Read as a member of this group, and commit.", metavar="GROUP")
    ] = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Print records.

    Examples:

      headrace consume orders --from beginning --exit

      headrace consume orders --from -15m --format '%p/%o %k=%v\\n'
    """  # fmt: skip
    from headrace.cli import consuming, session
    from headrace.config import InvalidConfig

    try:
        consuming.run(consuming.Wanted(topics, partition or [], begin, to, count, exit, format, json, group, bootstrap))
    except InvalidConfig as error:
        session.fail(error.message, session.USAGE)
