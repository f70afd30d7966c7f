"""etcd as a simulated process sees it: the in-memory store behind a network, with a notebook of every transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.sim.loop import PROCESS
from tests.sim.network import WORLD

from headrace.ports import Clock
from headrace.registry.api import Change, Changes, Condition, Event, Snapshot, TxnResult
from headrace.registry.memory import MemoryRegistry, MemoryStore, _MemoryWatch


class SimStore(MemoryStore):
    """`on_txn` sees every transaction that was carried out, before anybody else hears of it."""

    on_txn: Callable[[Sequence[Condition], Sequence[Change]], None] | None = None

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.watches: dict[_SlowWatch, None] = {}

    def txn(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> TxnResult:
        self._expire()
        if self.on_txn is not None and all(self._holds(condition) for condition in conditions):
            self.on_txn(conditions, changes)
        return super().txn(conditions, changes)

    def _commit(self, events: list[Event]) -> None:
        """Wakes only those whom it concerns; whoever had seen everything else has seen this too."""
        if not events:
            return
        before = self.revision
        self.revision += 1
        self._history.append(Changes(self.revision, tuple(events)))
        for watch in list(self.watches):
            if watch.process is not None and not watch.process.alive:
                del self.watches[watch]
            elif any(event.key.startswith(watch.prefix) for event in events):
                watch.waker.set()
            else:
                watch.passes(before, self.revision)


class SimRegistry(MemoryRegistry):
    """A request that was sent arrives, whatever becomes of its sender; news takes its time."""

    async def txn(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> TxnResult:
        return await _detached(super().txn(conditions, changes))

    async def revoke(self, lease: int) -> None:
        await _detached(super().revoke(lease))

    @asynccontextmanager
    async def watch(self, prefix: str, after: int | None = None) -> AsyncIterator[AsyncIterator[Snapshot | Changes]]:
        store = self._store
        assert isinstance(store, SimStore)
        watch = _SlowWatch(self, store, prefix, after)
        self._watches[watch] = store.watches[watch] = None
        self._store.subscribe(watch.waker)
        try:
            yield watch
        finally:
            watch.close()
            store.watches.pop(watch, None)
            self._watches.pop(watch, None)
            self._store.unsubscribe(watch.waker)

    def travel(self) -> float:
        return self._delay() if self._delay is not None else 0.0


async def _detached(call: Coroutine[Any, Any, Any]) -> Any:
    task = asyncio.get_running_loop().create_task(call, context=WORLD.copy())
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)


class _SlowWatch(_MemoryWatch):
    def __init__(self, registry: MemoryRegistry, store: MemoryStore, prefix: str, after: int | None) -> None:
        super().__init__(registry, store, prefix, after)
        self.process = PROCESS.get()

    @property
    def prefix(self) -> str:
        return self._prefix

    def passes(self, before: int, revision: int) -> None:
        """Nothing of `revision` is meant for this watch."""
        if self._after == before:
            self._after = revision

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
