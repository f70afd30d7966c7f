"""Every scenario file says what the groups do; see `group_script` for how they are written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.coordinator.group_script import run_file

_FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    wrong = run_file(path, rewrite=bool(os.environ.get("HEADRACE_REWRITE")))
    report = "\n".join(
        f"{path.name}:{line}: {command}\n  expected:\n{expected}\n  came out:\n{actual}"
        for line, command, expected, actual in wrong
    )
    assert not wrong, f"\n{report}\nIf this is right: HEADRACE_REWRITE=1 pytest {__file__}"


def test_there_are_scenarios() -> None:
    assert len(_FILES) >= 20
