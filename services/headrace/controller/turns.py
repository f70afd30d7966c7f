"""Turns: one change at a time, in order of arrival, except that what cannot wait goes first.

An election after a broker died must not stand in line behind a thousand requests of clients.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.errors import ErrorCode, KafkaError


class Turns:
    """A lock with a line of at most `limit` that wait; urgent ones are not counted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = False
        self._line: deque[asyncio.Future[None]] = deque()
        self._urgent: deque[asyncio.Future[None]] = deque()

    @property
    def taken(self) -> bool:
        """Whether somebody has the turn."""
        return self._taken

    @property
    def waiting(self) -> int:
        """How many stand in line."""
        return len(self._line) + len(self._urgent)

    @asynccontextmanager
    async def turn(self, *, urgent: bool = False) -> AsyncIterator[None]:
        """Waits for its turn; THROTTLING_QUOTA_EXCEEDED when too many wait already."""
        await self._acquire(urgent)
        try:
            yield
        finally:
            self._pass_on()

    async def _acquire(self, urgent: bool) -> None:
        if not self._taken:
            self._taken = True
            return
        if not urgent and len(self._line) >= self._limit:
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"{self._limit} changes wait already: try again in a moment"
            )
        line = self._urgent if urgent else self._line
        ours: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(ours)
        try:
            await ours
        except asyncio.CancelledError:
            if ours.done() and not ours.cancelled():
                self._pass_on()
            elif ours in line:
                line.remove(ours)
            raise

    def _pass_on(self) -> None:
        for line in (self._urgent, self._line):
            while line:
                waiter = line.popleft()
                if not waiter.done():
                    waiter.set_result(None)
                    return
        self._taken = False
