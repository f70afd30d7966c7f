"""The doors through which logic reaches the outside: time and chance here, files in `storage.files`, etcd in
`registry.api`, other processes in the services' own `Peers`.

Logic takes these as arguments and does no I/O of its own, so that a simulation can stand behind each of them.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for records, monotonic time for deadlines."""

    def time_ms(self) -> int:
        """Milliseconds since 1970, as stored in records. May jump."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow, for deadlines and intervals."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clock, and the running loop's sleep."""

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


# Chance is the standard library's own class: seeded in the simulation, from the OS elsewhere.
Random = random.Random
