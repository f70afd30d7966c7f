"""Plays the text scenarios: commands, then `----`, then what they must say. See model.py for the commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.controller.model import Model

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    assert play(path.read_text()) == path.read_text()


def play(text: str) -> str:
    """The text with what really happened in place of what was expected; a `==` line starts a new cluster."""
    model, out = Model(), []
    for block in text.strip().split("\n\n"):
        if block.startswith("== "):
            title, _, block = block.partition("\n")
            model = Model()
            out.append(title)
        lines = block.split("\n")
        commands = [line for line in (lines[: lines.index("----")] if "----" in lines else lines) if line]
        said = [line for command in commands if not command.startswith("#") for line in model.run(command)]
        if commands:
            out.append("\n".join([*commands, "----", *(said or ["nothing changes"])]))
            out.append("")
    return "\n".join(out)
