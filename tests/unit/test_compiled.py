"""What setup.py has compiled may not wait inside of an `except`, `finally` or `with`.

A coroutine of Python keeps the exception that it handles to itself. One of mypyc leaves it to whatever runs meanwhile,
which chains its own exceptions to it: never freed, and printed with every traceback.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WAITS = (ast.Await, ast.Yield, ast.YieldFrom, ast.AsyncFor, ast.AsyncWith)


def compiled() -> list[str]:
    """The modules on setup.py's list, which cannot be imported without setting up."""
    [listed] = [
        node.value
        for node in ast.parse((ROOT / "setup.py").read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMPILED"
    ]
    return [node.value for node in ast.walk(listed) if isinstance(node, ast.Constant)]


def waits(source: str) -> Iterator[int]:
    """The lines that wait where they must not."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler | ast.With):
            inside = node.body
        elif isinstance(node, ast.Try):
            inside = node.finalbody
        else:
            continue
        for statement in inside:
            yield from (each.lineno for each in ast.walk(statement) if isinstance(each, WAITS))


@pytest.mark.parametrize("module", compiled())
def test_nothing_compiled_waits_while_it_handles_an_exception(module: str) -> None:
    source = (ROOT / "services/headrace" / f"{module}.py").read_text()
    assert list(waits(source)) == [], f"services/headrace/{module}.py"


def test_such_a_wait_is_found() -> None:
    source = "async def f():\n try:\n  await g()\n except OSError:\n  await h()\n finally:\n  with lock:\n   yield 1\n"
    assert sorted(set(waits(source))) == [5, 8]
