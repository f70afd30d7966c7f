"""What all unit tests share.

Hypothesis judges examples, not the machine: how long one takes says nothing on shared cores.
"""

import gc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("headrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headrace")


@pytest.fixture
def uncollected() -> Iterator[None]:
    """The collector does not come by: what is freed was in no circle of references."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
