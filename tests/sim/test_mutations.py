"""The checks can fail: deliberate bugs are found. HEADRACE_SIM_HUNT=1 looks for all, not just for the quick ones."""

from __future__ import annotations

import os

import pytest
from tests.sim.hunt import hunt
from tests.sim.mutations import MUTATIONS

QUICK = ("shrink_without_consent", "duplicates_accepted", "election_outside_isr")
HUNTED = MUTATIONS if os.environ.get("HEADRACE_SIM_HUNT") else QUICK
"""HEADRACE_SIM_HUNT=1 looks for all of them, which takes minutes."""


@pytest.mark.parametrize("name", HUNTED)
def test_a_deliberate_bug_is_found(name: str) -> None:
    assert hunt(name) is not None
