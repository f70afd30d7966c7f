"""`headrace configs`: settings of topics and brokers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from headrace.cli.options import Bootstrap, Format, Output, pairs

app = typer.Typer(no_args_is_help=True, help="Show and change settings of topics and brokers.")


class Kind(StrEnum):
    """What has settings."""

    TOPIC = "topic"
    BROKER = "broker"


What = Annotated[Kind, typer.Argument(help="topic or broker.")]
Name = Annotated[str, typer.Argument(help="A topic's name, or a broker's id ('all' for the default of all brokers).")]


@app.command()
def describe(
    kind: What,
    name: Name,
    all_settings: Annotated[bool, typer.Option("--all", "-a", help="Defaults as well.")] = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = None,
) -> None:
    """Show settings, and where each value comes from.

    Example: headrace configs describe topic orders --all
    """
    from headrace.cli import session
    from headrace.cli.output import show

    async def work() -> None:
        async with session.admin(bootstrap) as admin:
            entries = await admin.describe_configs(kind, _name(name))
        rows = [
            {"name": e.name, "value": e.value, "source": e.source, "type": e.type, "documentation": e.documentation}
            for e in entries
            if all_settings or not e.is_default
        ]
        show(rows, output, ["name", "value", "source"], empty="only defaults: see them with --all")

    session.run(work())


@app.command()
def alter(
    kind: What,
    name: Name,
    given: Annotated[list[str] | None, typer.Option("--set", help="A new value.", metavar="KEY=VALUE")] = None,
    delete: Annotated[list[str] | None, typer.Option("--delete", help="Back to the default.", metavar="KEY")] = None,
    append: Annotated[list[str] | None, typer.Option("--append", help="Into a list.", metavar="KEY=VALUE")] = None,
    subtract: Annotated[
        list[str] | None, typer.Option("--subtract", help="Out of a list.", metavar="KEY=VALUE")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, change nothing.")] = False,
    bootstrap: Bootstrap = None,
) -> None:
    """Change settings of one topic or broker: all of them, or none when one is refused.

    Example: headrace configs alter topic orders --set retention.ms=3600000 --delete segment.bytes
    """
    from headrace.cli import session

    changes = {
        "set": pairs(given, "--set"), "append": pairs(append, "--append"), "subtract": pairs(subtract, "--subtract"),
    }  # fmt: skip
    if not any(changes.values()) and not delete:
        raise typer.BadParameter("nothing to change: give --set, --delete, --append or --subtract")

    async def work() -> None:
        async with session.admin(bootstrap) as admin:
            await admin.alter_configs(kind, _name(name), delete=delete or (), validate_only=dry_run, **changes)
        print(f"{'would alter' if dry_run else 'altered'} {kind} {name}")

    session.run(work())


def _name(name: str) -> str:
    return "" if name == "all" else name
