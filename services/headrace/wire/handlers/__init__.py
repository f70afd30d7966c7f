"""Handlers that every service shares, one module for each API; a service keeps its own in its `handlers` package."""
