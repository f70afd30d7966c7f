"""`headrace log`: what lies in a partition's files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Look into log files, Headrace's or Apache Kafka's.")


@app.callback()
def log() -> None:
    """Look into log files, Headrace's or Apache Kafka's."""


@app.command()
def dump(
    paths: Annotated[
        list[Path], typer.Argument(exists=True, help="Files, or folders of partitions.", metavar="FILE|DIR")
    ],
    deep: Annotated[bool, typer.Option("--deep", "-d", help="Records, not batches alone.")] = False,
    data: Annotated[bool, typer.Option("--data", help="Records with keys and values.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only check indexes, do not print them.")] = False,
    faults: Annotated[bool, typer.Option("--faults", help="Print damage only.")] = False,
) -> None:
    """Print batches, records, indexes, producer snapshots and leader epochs; ends with 1 when something is damaged.

    Example: headrace log dump data/broker-0/orders-0 --deep
    """
    from headrace.cli import session
    from headrace.storage.dump import NotALogFile
    from headrace.storage.dump import dump as lines_of
    from headrace.storage.files import OsFiles

    files, damaged = OsFiles(), False
    for path in _files(paths):
        try:
            for line in lines_of(files, str(path), deep=deep, print_data=data, sanity_check=check):
                damaged |= line.fault
                if line.fault or not faults:
                    print(line.text, file=sys.stdout)
        except NotALogFile as error:
            session.fail(str(error), session.USAGE)
        except BrokenPipeError:
            session.end_quietly()
        except OSError as error:
            session.fail(f"{path}: {error.strerror}")
    if damaged:
        raise SystemExit(session.FAILED)


def _files(paths: list[Path]) -> list[Path]:
    """The files themselves, and those of a partition in each folder, segment by segment."""
    known = (".log", ".index", ".timeindex", ".snapshot")
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = [p for p in path.iterdir() if p.suffix in known or p.name == "leader-epoch-checkpoint"]
        if not inside:
            raise typer.BadParameter(f"{path} has no files of a partition: give one like data/broker-0/orders-0")
        found += sorted(inside, key=lambda p: (p.stem, known.index(p.suffix) if p.suffix in known else 9))
    return found
