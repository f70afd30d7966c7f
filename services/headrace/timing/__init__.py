"""Waiting for many things at once: timing wheel, asyncio driver, and the purgatory of delayed requests."""
