"""The `headrace` command. Each command imports what it needs when it runs, so that `--help` is instant."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import cluster, configs, groups, logs, partitions, perf, profile, records, spark, topics

app = typer.Typer(
    name="headrace",
    help="Headrace: a partitioned, replicated, durable log that speaks Kafka's protocol.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(topics.app, name="topics")
app.add_typer(partitions.app, name="partitions")
app.add_typer(groups.app, name="groups")
app.add_typer(configs.app, name="configs")
app.add_typer(cluster.app, name="cluster")
app.add_typer(logs.app, name="log")
app.add_typer(perf.app, name="perf")
app.add_typer(profile.app, name="profile")
app.add_typer(spark.app, name="spark")
app.command()(records.produce)
app.command()(records.consume)

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="Settings in Java's properties format.", metavar="FILE")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="A setting over file and environment.", metavar="KEY=VALUE")
]
ReadyFile = Annotated[Path | None, typer.Option(hidden=True)]


@app.command()
def dev(
    brokers: Annotated[int, typer.Option(help="How many brokers; with more than one, each service is a process.")] = 1,
    port: Annotated[int, typer.Option(help="Kafka port of the first broker; the others follow.")] = 9092,
    data: Annotated[Path, typer.Option(help="Where everything is kept.", metavar="DIR")] = Path("data"),
    etcd: Annotated[
        str | None,
        typer.Option(help="Your own etcd, host:port by commas, instead of one of ours.", metavar="ENDPOINTS"),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Start a whole cluster on loopback. Ctrl-C stops it; the same DIR brings everything back.

    Examples:

      headrace dev

      headrace dev --brokers 3 --data /tmp/three --set log.segment.bytes=1048576
    """
    _without_test_tools()
    from headrace.cli import dev as command

    command.run(data, port, brokers, etcd, overrides or [])


def _without_test_tools() -> None:
    """kio loads Hypothesis when it is installed, to offer strategies: in a server that is 20 MB and a slow start."""
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]


def _service(role: str, config: Path | None, overrides: list[str] | None, ready_file: Path | None) -> None:
    _without_test_tools()
    from headrace.cli import process

    process.run(role, process.settings_of(config, overrides or [], os.environ), ready_file)


@app.command()
def broker(config: ConfigFile = None, overrides: Overrides = None, ready_file: ReadyFile = None) -> None:
    """Run one broker (data plane).

    Settings come from FILE, then from HEADRACE_<NAME> (dots as underscores), then from --set; the names are Kafka's.

    Example: headrace broker --config broker.properties --set node.id=0
    """
    _service("broker", config, overrides, ready_file)


@app.command()
def controller(config: ConfigFile = None, overrides: Overrides = None, ready_file: ReadyFile = None) -> None:
    """Run one controller. Several may run: one is active, the others stand by.

    Example: headrace controller --set node.id=0 --set etcd.endpoints=127.0.0.1:2379
    """
    _service("controller", config, overrides, ready_file)


@app.command()
def coordinator(config: ConfigFile = None, overrides: Overrides = None, ready_file: ReadyFile = None) -> None:
    """Run one group coordinator. Several share the consumer groups; when one goes, the others take its share.

    Example: headrace coordinator --set node.id=0 --set listeners=PLAINTEXT://127.0.0.1:9096
    """
    _service("coordinator", config, overrides, ready_file)


@app.command()
def metadata(config: ConfigFile = None, overrides: Overrides = None, ready_file: ReadyFile = None) -> None:
    """Run one replica of the metadata service.

    Example: headrace metadata --set node.id=0 --set grpc.listener=127.0.0.1:9094
    """
    _service("metadata", config, overrides, ready_file)


def main() -> None:
    app()
