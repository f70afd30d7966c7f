"""Producer ids for idempotent producers, out of blocks that the controller gives to this broker alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

Block = tuple[int, int]
"""The first id, and how many follow."""


class ProducerIds:
    """Hands out ids; asks for the next block when the last one is used up. Concurrent askers share one request."""

    def __init__(self, allocate: Callable[[], Awaitable[Block]]) -> None:
        self._allocate = allocate
        self._next = 0
        self._end = 0
        self._refill = asyncio.Lock()

    async def next(self) -> int:
        while self._next >= self._end:
            async with self._refill:
                if self._next >= self._end:
                    first, count = await self._allocate()
                    self._next, self._end = first, first + count
        taken = self._next
        self._next += 1
        return taken
