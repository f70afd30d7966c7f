"""The checks can fail: deliberate bugs are found. The quick ones run here, all with `python -m tests.sim.hunt`."""

from __future__ import annotations

import pytest
from tests.sim.hunt import hunt

QUICK = {
    "shrink_without_consent": 6,
    "duplicates_accepted": 6,
    "election_outside_isr": 6,
}
"""With the seed that finds each: a few more are tried, should the code around it have changed what happens."""


@pytest.mark.parametrize("name", QUICK)
def test_a_deliberate_bug_is_found(name: str) -> None:
    assert hunt(name, QUICK[name], 20) is not None
