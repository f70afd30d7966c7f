"""The `headrace` command: `main` holds the commands, the other modules what they do."""

from headrace.cli.main import main

__all__ = ["main"]
