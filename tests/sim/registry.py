"""etcd as a simulated process sees it: the in-memory store behind a network, with a notebook of every transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.sim.network import WORLD

from headrace.registry.api import Change, Changes, Condition, Snapshot, TxnResult
from headrace.registry.memory import MemoryRegistry, MemoryStore, _MemoryWatch


class SimStore(MemoryStore):
    """`on_txn` sees every transaction that was carried out, before anybody else hears of it."""

    on_txn: Callable[[Sequence[Condition], Sequence[Change]], None] | None = None

    def txn(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> TxnResult:
        self._expire()
        if self.on_txn is not None and all(self._holds(condition) for condition in conditions):
            self.on_txn(conditions, changes)
        return super().txn(conditions, changes)


class SimRegistry(MemoryRegistry):
    """A request that was sent arrives, whatever becomes of its sender; news takes its time."""

    async def txn(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> TxnResult:
        return await _detached(super().txn(conditions, changes))

    async def revoke(self, lease: int) -> None:
        await _detached(super().revoke(lease))

    @asynccontextmanager
    async def watch(self, prefix: str, after: int | None = None) -> AsyncIterator[AsyncIterator[Snapshot | Changes]]:
        watch = _SlowWatch(self, self._store, prefix, after)
        self._watches[watch] = None
        self._store.subscribe(watch.waker)
        try:
            yield watch
        finally:
            watch.close()
            self._watches.pop(watch, None)
            self._store.unsubscribe(watch.waker)

    def travel(self) -> float:
        return self._delay() if self._delay is not None else 0.0


async def _detached(call: Coroutine[Any, Any, Any]) -> Any:
    task = asyncio.get_running_loop().create_task(call, context=WORLD.copy())
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)


class _SlowWatch(_MemoryWatch):
    async def __anext__(self) -> Snapshot | Changes:
        registry = self._registry
        assert isinstance(registry, SimRegistry)
        while not self._closed:
            self.waker.clear()
            if registry.reachable and self._next() is not None:
                await asyncio.sleep(registry.travel())
                item = self._next()
                if registry.reachable and item is not None and not self._closed:
                    self._after = item.revision
                    return item
            else:
                await self.waker.wait()
        raise StopAsyncIteration

    def _next(self) -> Snapshot | Changes | None:
        if self._after is None:
            return self._store.snapshot(self._prefix)
        if self._after == self._store.revision:
            return None
        found = self._store.next_changes(self._prefix, self._after)
        if found is None:
            self._after = self._store.revision  # nothing up to here was meant for this watch
        return found
