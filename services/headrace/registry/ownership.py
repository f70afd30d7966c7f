"""Owning a key under a session's lease, and knowing at once when that ends.

It ends when the session does, or when the key is no longer the one that was created: somebody removed it or put
another in its place. Both the controller's election and the registration of a process are this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from headrace.registry.api import Changes, CreateRevision, Delete, Registry, Session, Snapshot


class Ownership:
    """`key` as it was created at `create_revision` under `session`'s lease."""

    def __init__(self, registry: Registry, session: Session, key: str, create_revision: int) -> None:
        self._registry = registry
        self.session = session
        self.key = key
        self.create_revision = create_revision
        self._fenced = False
        self._ended = asyncio.Event()
        self._task = asyncio.create_task(self._observe(), name=f"ownership of {key}")

    @property
    def guard(self) -> CreateRevision:
        """The condition for every write made as owner: it fails once the key is anybody else's."""
        return CreateRevision(self.key, self.create_revision)

    @property
    def valid(self) -> bool:
        return not self._ended.is_set() and self.session.valid

    @property
    def fenced(self) -> bool:
        """Whether it ended because the key was taken away, and not because the session was lost."""
        return self._fenced

    async def lost(self) -> None:
        """Returns once this is no longer the owner."""
        await self._ended.wait()

    async def release(self) -> None:
        """Gives the key up at once; the session goes on."""
        self._end()
        self._task.cancel()
        await self._registry.txn([self.guard], [Delete(self.key)])

    def _end(self) -> None:
        self._ended.set()

    async def _observe(self) -> None:
        try:
            await first(self._taken_away(), self.session.lost())
        finally:
            self._end()

    async def _taken_away(self) -> None:
        async with self._registry.watch(self.key, after=self.create_revision) as items:
            async for item in items:
                if holder(item, self.key, self.create_revision) != self.create_revision:
                    self._fenced = self.session.valid
                    return


def holder(item: Snapshot | Changes, key: str, before: int) -> int:
    """The create revision of `key` after `item` (0: it is gone), which was `before`."""
    if isinstance(item, Snapshot):
        return next((held.create_revision for held in item.items if held.key == key), 0)
    for event in item.events:
        if event.key == key:
            before = event.create_revision if event.value is not None else 0
    return before


async def first(*waits: Coroutine[Any, Any, None]) -> None:
    """Returns (or raises) with the first of them to end, and ends the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
