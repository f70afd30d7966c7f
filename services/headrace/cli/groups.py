"""`headrace groups`: consumer groups, how far they are, and where they shall go on."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import Bootstrap, Format, Output, Yes

if TYPE_CHECKING:
    from headrace.client import Admin

app = typer.Typer(no_args_is_help=True, help="List, describe, rewind and delete consumer groups.")

Group = Annotated[str, typer.Argument(help="The group's id.", metavar="GROUP")]


@app.command("list")
def list_groups(
    state: Annotated[list[str] | None, typer.Option("--state", help="Only Stable, Empty, ...")] = None,
    kind: Annotated[list[str] | None, typer.Option("--type", help="Only classic or consumer.")] = None,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = None,
) -> None:
    """List groups.

    Example: headrace groups list --state Stable
    """
    from headrace.cli import session
    from headrace.cli.output import show

    async def work() -> None:
        async with session.admin(bootstrap) as admin:
            found = await admin.list_groups(state or (), kind or ())
        show([{"group": group, "state": where} for group, where in found.items()], output, empty="no groups yet")

    session.run(work())


@app.command()
def describe(group: Group, output: Output = Format.TABLE, bootstrap: Bootstrap = None) -> None:
    """Show members, what they read, what is committed, and how far that is behind.

    Example: headrace groups describe billing
    """
    from headrace.cli import session
    from headrace.cli.output import print_data, show

    async def work() -> None:
        async with session.admin(bootstrap) as admin:
            found = await _describe(admin, group)
        if output is not Format.TABLE:
            print_data(found, output)
            return
        lag = sum(row["lag"] or 0 for row in found["partitions"])
        print(f"{group}  {found['state']}  generation {found['generation']}  {found['assignor']}  lag {lag}")
        show(found["partitions"], output, empty="nothing is committed or assigned")

    session.run(work())


async def _describe(admin: Admin, group: str) -> dict[str, Any]:
    from headrace.client import LATEST

    described = await admin.describe_group(group)
    offsets = await admin.list_group_offsets(group)
    owner = {partition: member for member in described.members for partition in member.assignment}
    known = [p for p in sorted({*offsets, *owner}) if admin.image.partition(*p) is not None]
    ends = await admin.list_offsets(dict.fromkeys(known, LATEST))
    rows = []
    for partition in known:
        at, member = offsets.get(partition), owner.get(partition)
        rows.append(
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "committed": at.offset if at else None,
                "end": ends[partition].offset,
                "lag": max(0, ends[partition].offset - at.offset) if at else None,
                "member": member.member_id if member else None,
                "client": member.client_id if member else None,
                "host": member.client_host if member else None,
            }
        )
    return {
        "group": group,
        "state": described.state,
        "assignor": described.assignor,
        "generation": described.generation,
        "members": len(described.members),
        "partitions": rows,
    }


@app.command("reset-offsets")
def reset_offsets(
    group: Group,
    topics: Annotated[list[str] | None, typer.Option("--topic", "-t", help="Only these; all it has without.")] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", help="beginning, end, an offset, @MS, 2026-01-31T12:00 or -15m.", metavar="PLACE"),
    ] = None,
    shift: Annotated[
        int | None, typer.Option("--shift", help="So many records on (or back) from where it is now.", metavar="N")
    ] = None,
    yes: Yes = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = None,
) -> None:
    """Set where a group without members goes on; without --yes only shows what would change.

    Example: headrace groups reset-offsets billing --topic orders --to -1h --yes
    Example: headrace groups reset-offsets billing --shift -100
    """
    from headrace.cli import session
    from headrace.cli.output import show
    from headrace.cli.places import parse_place
    from headrace.client import OffsetAndMetadata
    from headrace.config import InvalidConfig

    if (to is None) == (shift is None):
        session.fail("where to? Give either --to PLACE or --shift N", session.USAGE)
    try:
        place = parse_place(to, time.time_ns() // 1_000_000) if to is not None else None
    except InvalidConfig as error:
        session.fail(error.message, session.USAGE)

    async def work() -> None:
        async with session.admin(bootstrap) as admin:
            before = await admin.list_group_offsets(group)
            wanted = await _partitions(admin, topics, before)
            shifted = {p: before[p].offset + (shift or 0) for p in wanted if p in before}
            after = await _place(admin, wanted, place) if place else await _within(admin, shifted)
            if yes and after:
                await admin.alter_group_offsets(group, {p: OffsetAndMetadata(offset) for p, offset in after.items()})
        rows = [
            {
                "topic": p.topic,
                "partition": p.partition,
                "before": before[p].offset if p in before else None,
                "after": offset,
            }
            for p, offset in after.items()
        ]
        show(rows, output, empty=f"{group} has no offsets: name topics with --topic")
        if not yes and rows:
            print("nothing was changed: give --yes to do it", file=sys.stderr)

    session.run(work())


async def _partitions(admin: Any, topics: list[str] | None, before: Any) -> list[Any]:
    from headrace.client import TopicPartition

    if not topics:
        return sorted(before)
    described = await admin.describe_topics(topics)
    return [TopicPartition(name, i) for name in topics for i in range(len(described[name].partitions))]


async def _within(admin: Any, wanted: dict[Any, int]) -> dict[Any, int]:
    """The offsets, or the nearest ones that there are."""
    from headrace.client import EARLIEST, LATEST

    starts = await admin.list_offsets(dict.fromkeys(wanted, EARLIEST))
    ends = await admin.list_offsets(dict.fromkeys(wanted, LATEST))
    return {p: min(max(offset, starts[p].offset), ends[p].offset) for p, offset in wanted.items()}


async def _place(admin: Any, wanted: list[Any], place: Any) -> dict[Any, int]:
    from headrace.client import LATEST

    if place.offset is not None:
        return await _within(admin, dict.fromkeys(wanted, place.offset))
    ends = {p: at.offset for p, at in (await admin.list_offsets(dict.fromkeys(wanted, LATEST))).items()}
    if place.last is not None:
        return await _within(admin, {p: ends[p] - place.last for p in wanted})
    found = await admin.list_offsets(dict.fromkeys(wanted, place.time))
    return {p: at.offset if at.offset >= 0 else ends[p] for p, at in found.items()}


@app.command()
def delete(
    groups: Annotated[list[str], typer.Argument(help="Ids of groups.", metavar="GROUP")],
    yes: Yes = False,
    bootstrap: Bootstrap = None,
) -> None:
    """Delete groups that have no members, with their offsets.

    Example: headrace groups delete billing --yes
    """
    from headrace.cli import session

    if not yes:
        if not sys.stdin.isatty():
            session.fail("this forgets offsets for good: give --yes to say that you mean it", session.USAGE)
        typer.confirm(f"Delete {', '.join(groups)} with all offsets?", abort=True)

    async def work() -> None:
        async with session.admin(bootstrap) as admin:
            results = await admin.delete_groups(groups)
        for name, error in results.items():
            if error is None:
                print(f"deleted {name}")
        session.complain(results)

    session.run(work())
