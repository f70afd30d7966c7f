"""Hypothesis judges examples, not the machine: how long one takes says nothing on shared cores."""

from hypothesis import HealthCheck, settings

settings.register_profile("headrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headrace")
