"""`headrace topics`: create, list, describe, alter and delete topics."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from headrace.cli.options import Bootstrap, Format, Output, Settings, Yes, pairs

app = typer.Typer(no_args_is_help=True, help="Create, list, describe, alter and delete topics.")

Names = Annotated[list[str], typer.Argument(help="Names of topics.", metavar="TOPIC")]


@app.command()
def create(
    names: Names,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="How many; the cluster's num.partitions without.")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option("--replicas", "-r", min=1, help="How many of each; the cluster's default without.")
    ] = None,
    config: Settings = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="A topic that is there is fine.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, create nothing.")] = False,
    bootstrap: Bootstrap = None,
) -> None:
    """Create topics.

    Example: headrace topics create orders --partitions 3 -c retention.ms=86400000
    """
    from headrace.cli import session
    from headrace.client import ErrorCode, NewTopic

    configs = pairs(config)

    async def work() -> None:
        async with session.admin(bootstrap) as admin:
            topics = [NewTopic(name, partitions, replicas, configs) for name in names]
            results = await admin.create_topics(topics, validate_only=dry_run)
        for name, error in results.items():
            exists = error is not None and error.code is ErrorCode.TOPIC_ALREADY_EXISTS
            if error is None:
                print(f"{'would create' if dry_run else 'created'} {name}")
            elif exists and if_not_exists:
                print(f"{name} exists")
        ignored = ErrorCode.TOPIC_ALREADY_EXISTS if if_not_exists else None
        session.complain({n: e for n, e in results.items() if e is not None and e.code is not ignored})

    session.run(work())


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Also those that belong to Headrace itself.")] = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = None,
) -> None:
    """List topics.

    Example: headrace topics list -o json
    """
    from headrace.cli import session
    from headrace.cli.output import show

    async def work() -> None:
        async with session.admin(bootstrap) as admin:
            topics = await admin.describe_topics()
        rows = [
            {
                "name": name,
                "partitions": len(topic.partitions),
                "replicas": max((len(p.replicas) for p in topic.partitions), default=0),
                "under_replicated": sum(len(p.isr) < len(p.replicas) for p in topic.partitions),
                "offline": sum(p.leader < 0 for p in topic.partitions),
            }
            for name, topic in sorted(topics.items())
            if internal or not topic.internal
        ]
        show(rows, output, empty="no topics yet: `headrace topics create NAME` makes one")

    session.run(work())


@app.command()
def describe(names: Names, output: Output = Format.TABLE, bootstrap: Bootstrap = None) -> None:
    """Show partitions with their leaders, replicas, in-sync replicas and offsets, and the settings that were given.

    Example: headrace topics describe orders
    """
    from headrace.cli import session
    from headrace.cli.output import print_data, table

    async def work() -> None:
        async with session.admin(bootstrap) as admin:
            described = [await _describe(admin, name) for name in names]
        if output is not Format.TABLE:
            print_data(described, output)
            return
        for topic in described:
            settings = " ".join(f"{name}={value}" for name, value in topic["configs"].items())
            print(f"{topic['name']}  id {topic['id']}  partitions {len(topic['partitions'])}  {settings}".rstrip())
            rows = [[_cell(row[name]) for name in row] for row in topic["partitions"]]
            table(list(topic["partitions"][0]), rows)

    session.run(work())


def _cell(value: Any) -> str:
    from headrace.cli.output import cell

    return "none" if value == -1 else cell(value)


async def _describe(admin: Any, name: str) -> dict[str, Any]:
    from headrace.client import EARLIEST, LATEST, TopicPartition

    topic = (await admin.describe_topics([name]))[name]
    entries = await admin.describe_configs("topic", name)
    led = [TopicPartition(name, i) for i, p in enumerate(topic.partitions) if p.leader in admin.image.brokers]
    starts = await admin.list_offsets(dict.fromkeys(led, EARLIEST))
    ends = await admin.list_offsets(dict.fromkeys(led, LATEST))
    partitions = []
    for index, state in enumerate(topic.partitions):
        where = TopicPartition(name, index)
        partitions.append(
            {
                "partition": index,
                "leader": state.leader,
                "epoch": state.leader_epoch,
                "replicas": list(state.replicas),
                "isr": list(state.isr),
                "start": starts[where].offset if where in starts else None,
                "end": ends[where].offset if where in ends else None,
            }
        )
    given = {entry.name: entry.value for entry in entries if entry.source == "topic"}
    return {"name": name, "id": str(topic.id), "configs": given, "partitions": partitions}


@app.command()
def alter(
    name: Annotated[str, typer.Argument(help="Name of the topic.", metavar="TOPIC")],
    partitions: Annotated[int | None, typer.Option("--partitions", "-p", min=1, help="More than there are.")] = None,
    config: Settings = None,
    delete_config: Annotated[
        list[str] | None, typer.Option("--delete-config", help="Back to its default.", metavar="KEY")
    ] = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Add partitions to a topic, or change its settings.

    Example: headrace topics alter orders --partitions 6 -c retention.ms=3600000
    """
    from headrace.cli import session

    configs = pairs(config)
    if partitions is None and not configs and not delete_config:
        raise typer.BadParameter("nothing to change: give --partitions, --config or --delete-config")

    async def work() -> None:
        async with session.admin(bootstrap) as admin:
            if configs or delete_config:
                await admin.alter_configs("topic", name, set=configs, delete=delete_config or ())
            if partitions is not None:
                await admin.create_partitions(name, partitions)
        print(f"altered {name}")

    session.run(work())


@app.command()
def delete(
    names: Names,
    yes: Yes = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="A topic that is not there is fine.")] = False,
    bootstrap: Bootstrap = None,
) -> None:
    """Delete topics with all their records.

    Example: headrace topics delete orders --yes
    """
    from headrace.cli import session
    from headrace.client import ErrorCode

    if not yes:
        if not sys.stdin.isatty():
            session.fail("this deletes records for good: give --yes to say that you mean it", session.USAGE)
        typer.confirm(f"Delete {', '.join(names)} with all records?", abort=True)

    async def work() -> None:
        async with session.admin(bootstrap) as admin:
            results = await admin.delete_topics(names)
        for name, error in results.items():
            if error is None:
                print(f"deleted {name}")
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if if_exists else None
        session.complain({n: e for n, e in results.items() if e is not None and e.code is not missing})

    session.run(work())
