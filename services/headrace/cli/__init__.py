"""The `headrace` command."""

from __future__ import annotations

import typer

app = typer.Typer(
    name="headrace",
    help="Headrace: a durable log for Kubernetes with Kafka's protocol.",
    no_args_is_help=True,
)


@app.callback()
def root() -> None:
    """Headrace: a durable log for Kubernetes with Kafka's protocol."""


def main() -> None:
    app()
