"""`headrace partitions`: where partitions live, who leads them, and moving them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import Bootstrap, Format, Output

if TYPE_CHECKING:
    from headrace.client import Admin, TopicPartition

app = typer.Typer(no_args_is_help=True, help="List partitions, elect leaders, move replicas.")

Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Stay until the move is done, and show how far it is.")]


def parse_partition(text: str) -> TopicPartition:
    """`topic:0` or `topic-0`.

    >>> parse_partition("my-orders:3")
    TopicPartition(topic='my-orders', partition=3)
    """
    from headrace.client import TopicPartition

    topic, separator, index = text.rpartition(":" if ":" in text else "-")
    if not separator or not topic or not index.isdecimal():
        raise typer.BadParameter(f"{text!r} is no partition: write TOPIC:NUMBER")
    return TopicPartition(topic, int(index))


@app.command("list")
def list_partitions(
    topics: Annotated[list[str] | None, typer.Argument(help="Only these topics.", metavar="TOPIC")] = None,
    unhealthy: Annotated[bool, typer.Option("--unhealthy", help="Only those that miss replicas or a leader.")] = False,
    moving: Annotated[bool, typer.Option("--moving", help="Only those that move.")] = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = None,
) -> None:
    """List partitions with leader, replicas and in-sync replicas.

    Example: headrace partitions list --unhealthy
    """
    from headrace.cli import session
    from headrace.cli.output import show

    async def work() -> None:
        async with session.admin(bootstrap) as admin:
            found = await admin.describe_topics(topics or ())
        rows = []
        for name, topic in sorted(found.items()):
            for index, p in enumerate(topic.partitions):
                if unhealthy and p.leader >= 0 and len(p.isr) == len(p.replicas):
                    continue
                if moving and not (p.adding or p.removing):
                    continue
                row: dict[str, Any] = {"topic": name, "partition": index}
                row["leader"] = p.leader if p.leader >= 0 else "none"
                row |= {"epoch": p.leader_epoch, "replicas": list(p.replicas), "isr": list(p.isr)}
                row |= {"adding": list(p.adding), "removing": list(p.removing)}
                rows.append(row)
        show(rows, output, empty="none")

    session.run(work())


@app.command()
def elect(
    partitions: Annotated[list[str] | None, typer.Argument(help="Which; all without.", metavar="TOPIC:NUMBER")] = None,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Also a replica that is not in sync: RECORDS MAY BE LOST.")
    ] = False,
    bootstrap: Bootstrap = None,
) -> None:
    """Make the preferred replicas leaders again.

    Example: headrace partitions elect orders:0
    """
    from headrace.cli import session
    from headrace.client import ErrorCode

    wanted = [parse_partition(text) for text in partitions or []]

    async def work() -> None:
        async with session.admin(bootstrap) as admin:
            results = await admin.elect_leaders(wanted, unclean=unclean)
        for partition, error in results.items():
            if error is None:
                print(f"elected a leader of {partition}")
        needed: dict[Any, Any] = {p: e for p, e in results.items() if e and e.code is not ErrorCode.ELECTION_NOT_NEEDED}
        if all(error is not None for error in results.values()) and not needed:
            print("nothing to do: the preferred replicas lead")
        session.complain(needed)

    session.run(work())


@app.command()
def move(
    partition: Annotated[str, typer.Argument(help="Which.", metavar="TOPIC:NUMBER")],
    replicas: Annotated[str, typer.Argument(help="Where to: broker ids, the preferred leader first.", metavar="IDS")],
    wait: Wait = True,
    bootstrap: Bootstrap = None,
) -> None:
    """Move one partition to other brokers.

    Example: headrace partitions move orders:0 2,1
    """
    if not all(word.strip().isdecimal() for word in replicas.split(",")):
        raise typer.BadParameter(f"{replicas!r} are no broker ids: write 2,1")
    _reassign({parse_partition(partition): [int(word) for word in replicas.split(",")]}, wait, bootstrap)


@app.command()
def reassign(
    file: Annotated[
        Path | None,
        typer.Argument(exists=True, dir_okay=False, help="A plan in the JSON of kafka-reassign-partitions."),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Undo the moves that are under way.")] = False,
    wait: Wait = True,
    bootstrap: Bootstrap = None,
) -> None:
    """Move many partitions as a file says, or cancel what moves.

    Example: headrace partitions reassign plan.json
    """
    if cancel:
        _cancel(bootstrap)
        return
    if file is None:
        raise typer.BadParameter("give a plan, or --cancel")
    _reassign(read_plan(file.read_text()), wait, bootstrap)


def read_plan(text: str) -> dict[TopicPartition, list[int]]:
    """The moves in `{"partitions": [{"topic": ..., "partition": 0, "replicas": [1, 2]}]}`."""
    from headrace.client import TopicPartition

    try:
        listed = json.loads(text)["partitions"]
        return {TopicPartition(p["topic"], int(p["partition"])): [int(r) for r in p["replicas"]] for p in listed}
    except (ValueError, KeyError, TypeError) as error:
        raise typer.BadParameter(
            f'the plan cannot be read ({error}): write {{"partitions": [{{"topic": "orders", "partition": 0, '
            '"replicas": [1, 2]}]}'
        ) from None


def _cancel(bootstrap: str | None) -> None:
    from headrace.cli import session

    async def work() -> None:
        async with session.admin(bootstrap) as admin:
            moving = await admin.list_partition_reassignments()
            results = await admin.alter_partition_reassignments({p: [] for p in moving}) if moving else {}
        print(f"cancelled {sum(error is None for error in results.values())} moves")
        session.complain(results)

    session.run(work())


def _reassign(moves: dict[TopicPartition, list[int]], wait: bool, bootstrap: str | None) -> None:
    from headrace.cli import session

    async def work() -> None:
        async with session.admin(bootstrap) as admin:
            results = await admin.alter_partition_reassignments(moves)
            begun = [partition for partition, error in results.items() if error is None]
            if wait and begun:
                await _watch(admin, begun)
            else:
                print(f"began {len(begun)} moves")
            session.complain(results)

    session.run(work())


async def _watch(admin: Admin, partitions: list[TopicPartition]) -> None:
    """A progress bar until none of the partitions moves any more."""
    import asyncio

    from rich.console import Console
    from rich.progress import Progress

    console = Console(file=sys.stderr)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("moving", total=len(partitions))
        while True:
            moving = await admin.list_partition_reassignments()
            left = sum(partition in moving for partition in partitions)
            progress.update(task, completed=len(partitions) - left)
            if not left:
                break
            await asyncio.sleep(0.5)
    print(f"moved {len(partitions)}")
