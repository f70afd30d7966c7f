"""`headrace perf`: how fast this cluster is from here."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.options import Bootstrap, Settings, pairs

app = typer.Typer(no_args_is_help=True, help="Measure how fast records go in, come out, and go through.")

Topic = Annotated[str, typer.Argument(help="Topic to use; it must exist.", metavar="TOPIC")]
Records = Annotated[int, typer.Option("--records", "-n", min=1, help="How many.")]
Size = Annotated[int, typer.Option("--size", "-s", min=1, help="Bytes of each.")]


@app.command()
def produce(
    topic: Topic,
    records: Records = 100_000,
    size: Size = 1024,
    rate: Annotated[float, typer.Option("--rate", min=0, help="Records a second; 0: as many as possible.")] = 0.0,
    config: Settings = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Send records as fast as possible, or at a rate, and show throughput and latency.

    Example: headrace perf produce orders -n 100000 -s 1024 -c acks=1
    """
    from headrace.cli import perf_runs

    perf_runs.produce(topic, records, size, rate, _settings(config), bootstrap)


@app.command()
def consume(
    topic: Topic,
    records: Records = 100_000,
    config: Settings = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Read records from the beginning, and show throughput.

    Example: headrace perf consume orders -n 100000
    """
    from headrace.cli import perf_runs

    perf_runs.consume(topic, records, _settings(config), bootstrap)


@app.command()
def latency(
    topic: Topic,
    records: Records = 1_000,
    size: Size = 100,
    rate: Annotated[float, typer.Option("--rate", min=0.1, help="Records a second.")] = 200.0,
    config: Settings = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Send records at a rate and read them at the same time, and show how long each took from end to end.

    Example: headrace perf latency orders --rate 500
    """
    from headrace.cli import perf_runs

    perf_runs.latency(topic, records, size, rate, _settings(config), bootstrap)


def _settings(config: list[str] | None) -> dict[str, str]:
    return {name.replace(".", "_"): value for name, value in pairs(config).items()}
