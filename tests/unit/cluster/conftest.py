"""Examples take as long as they take: a busy machine is not a failure."""

from hypothesis import settings

settings.register_profile("headrace")
settings.load_profile("headrace")
