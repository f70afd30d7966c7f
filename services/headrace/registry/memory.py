"""The registry of the simulation: etcd's semantics in memory, on an injected clock.

One `MemoryStore` is the etcd cluster; each simulated process reaches it through a `MemoryRegistry` of its own, so one
of them can be cut off alone (`cut`, `heal`), lose answers to writes that did happen (`drop_answers`) or die (`close`).
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from headrace.ports import Clock
from headrace.registry.api import (
    Change,
    Changes,
    Condition,
    Delete,
    Event,
    KeyValue,
    LeaseLost,
    ModRevision,
    RegistryUnavailable,
    Snapshot,
    TxnResult,
    check_txn,
)
from headrace.registry.session import LeaseSession


@dataclass(slots=True)
class _Lease:
    ttl: float
    expires: float
    keys: set[str] = field(default_factory=set)


class MemoryStore:
    """What every client shares: keys, leases, and the history since the last compaction."""

    def __init__(self, clock: Clock, min_ttl: float = 0.0) -> None:
        self.clock = clock
        self.revision = 1
        self.compacted = 0
        self._available = True
        self._min_ttl = min_ttl
        self._items: dict[str, KeyValue] = {}
        self._history: list[Changes] = []
        self._leases: dict[int, _Lease] = {}
        self._last_lease = 0
        self._wakers: dict[asyncio.Event, None] = {}
        """In the order in which they came (as everywhere here): a set of objects has another order in every process."""
        self._expiries: set[asyncio.Task[None]] = set()

    @property
    def available(self) -> bool:
        return self._available

    @available.setter
    def available(self, available: bool) -> None:
        # A new etcd leader gives every lease its whole time again.
        for held in self._leases.values():
            held.expires = self.clock.monotonic() + held.ttl
        self._available = available
        self._wake()

    def get(self, key: str) -> KeyValue | None:
        self._expire()
        return self._items.get(key)

    def snapshot(self, prefix: str) -> Snapshot:
        self._expire()
        keys = sorted((key for key in self._items if key.startswith(prefix)), key=str.encode)
        return Snapshot(self.revision, tuple(self._items[key] for key in keys))

    def txn(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> TxnResult:
        self._expire()
        if not all(self._holds(condition) for condition in conditions):
            return TxnResult(False, self.revision)
        for change in changes:
            if not isinstance(change, Delete) and change.lease and change.lease not in self._leases:
                raise LeaseLost(f"lease {change.lease:x} is gone: {change.key} was not put")
        revision = self.revision + 1
        events: list[Event] = []
        for change in changes:
            if isinstance(change, Delete):
                gone = self.snapshot(change.key).items if change.prefix else (self._items.get(change.key),)
                events += [self._remove(item.key, revision) for item in gone if item is not None]
            else:
                old = self._items.get(change.key)
                created = old.create_revision if old else revision
                self._detach(old)
                self._items[change.key] = KeyValue(change.key, change.value, created, revision, change.lease)
                if change.lease:
                    self._leases[change.lease].keys.add(change.key)
                events.append(Event(change.key, change.value, created, revision))
        self._commit(events)
        return TxnResult(True, self.revision)

    def compact(self, revision: int) -> None:
        """Forgets the history up to `revision`, as etcd's compaction does."""
        if not self.compacted < revision <= self.revision:
            raise ValueError(f"revision {revision} is not between {self.compacted} and {self.revision}")
        self.compacted = revision
        self._history = [changes for changes in self._history if changes.revision > revision]
        self._wake()

    def next_changes(self, prefix: str, after: int) -> Snapshot | Changes | None:
        """What a watch that has seen everything up to `after` gets next; None when it has to wait."""
        self._expire()
        if after < self.compacted:
            return self.snapshot(prefix)
        # The newest entries are at the end and a watch is nearly always near it: search backwards.
        start = len(self._history)
        while start and self._history[start - 1].revision > after:
            start -= 1
        for changes in self._history[start:]:
            events = tuple(event for event in changes.events if event.key.startswith(prefix))
            if events:
                return Changes(changes.revision, events)
        return None

    def grant(self, ttl: float) -> tuple[int, float]:
        self._last_lease += 1
        lease, ttl = self._last_lease, max(ttl, self._min_ttl)
        self._leases[lease] = _Lease(ttl, self.clock.monotonic() + ttl)
        # The store's own, whichever process asked: it must not end with that process.
        task = asyncio.create_task(
            self._expire_later(lease), name=f"expiry of lease {lease}", context=contextvars.Context()
        )
        self._expiries.add(task)
        task.add_done_callback(self._expiries.discard)
        return lease, ttl

    def keep_alive(self, lease: int) -> float:
        self._expire()
        if (held := self._leases.get(lease)) is None:
            return 0.0
        held.expires = self.clock.monotonic() + held.ttl
        return held.ttl

    def revoke(self, lease: int) -> None:
        if (held := self._leases.pop(lease, None)) is not None:
            revision = self.revision + 1
            self._commit([self._remove(key, revision) for key in sorted(held.keys, key=str.encode)])

    def subscribe(self, waker: asyncio.Event) -> None:
        self._wakers[waker] = None

    def unsubscribe(self, waker: asyncio.Event) -> None:
        self._wakers.pop(waker, None)

    def close(self) -> None:
        """Ends the store's own tasks (a lease's expiry is one)."""
        for task in list(self._expiries):
            task.cancel()

    def _holds(self, condition: Condition) -> bool:
        item = self._items.get(condition.key)
        if item is None:
            return condition.revision == 0
        held = item.mod_revision if isinstance(condition, ModRevision) else item.create_revision
        return held == condition.revision

    def _remove(self, key: str, revision: int) -> Event:
        self._detach(self._items.pop(key))
        return Event(key, None, 0, revision)

    def _detach(self, item: KeyValue | None) -> None:
        if item is not None and item.lease in self._leases:
            self._leases[item.lease].keys.discard(item.key)

    def _commit(self, events: list[Event]) -> None:
        if events:
            self.revision += 1
            self._history.append(Changes(self.revision, tuple(events)))
            self._wake()

    def _wake(self) -> None:
        for waker in self._wakers:
            waker.set()

    def _expire(self) -> None:
        # While nobody can reach it etcd has no leader, and without one no lease ends.
        now = self.clock.monotonic()
        if self._available:
            for lease in [lease for lease, held in self._leases.items() if held.expires <= now]:
                self.revoke(lease)

    async def _expire_later(self, lease: int) -> None:
        while (held := self._leases.get(lease)) is not None:
            remaining = held.expires - self.clock.monotonic()
            await self.clock.sleep(remaining if remaining > 0 else held.ttl / 10)
            self._expire()


class MemoryRegistry:
    """One process' client of a `MemoryStore`; implements `api.Registry`."""

    def __init__(
        self,
        store: MemoryStore,
        *,
        request_timeout: float = 5.0,
        max_txn_ops: int = 128,
        delay: Callable[[], float] | None = None,
    ) -> None:
        self._store = store
        self._clock = store.clock
        self._request_timeout = request_timeout
        self._max_txn_ops = max_txn_ops
        self._delay = delay
        self._cut = False
        self._closed = False
        self._drop_answers = 0
        self._sessions: dict[LeaseSession, None] = {}
        self._watches: dict[_MemoryWatch, None] = {}

    @property
    def max_txn_ops(self) -> int:
        return self._max_txn_ops

    @property
    def reachable(self) -> bool:
        return self._store.available and not self._cut

    def cut(self) -> None:
        """From now on nothing of this client reaches the store."""
        self._cut = True

    def heal(self) -> None:
        self._cut = False
        for watch in self._watches:
            watch.waker.set()

    def drop_answers(self, count: int) -> None:
        """The next `count` calls happen, but the caller hears `RegistryUnavailable`."""
        self._drop_answers += count

    async def get(self, key: str) -> KeyValue | None:
        await self._arrive("get")
        item = self._store.get(key)
        await self._answer("get")
        return item

    async def snapshot(self, prefix: str) -> Snapshot:
        await self._arrive("snapshot")
        snapshot = self._store.snapshot(prefix)
        await self._answer("snapshot")
        return snapshot

    async def txn(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> TxnResult:
        check_txn(conditions, changes, self._max_txn_ops)
        await self._arrive("txn")
        result = self._store.txn(conditions, changes)
        await self._answer("txn")
        return result

    @asynccontextmanager
    async def watch(self, prefix: str, after: int | None = None) -> AsyncIterator[AsyncIterator[Snapshot | Changes]]:
        watch = _MemoryWatch(self, self._store, prefix, after)
        self._watches[watch] = None
        self._store.subscribe(watch.waker)
        try:
            yield watch
        finally:
            watch.close()
            self._watches.pop(watch, None)
            self._store.unsubscribe(watch.waker)

    async def session(self, ttl: float) -> LeaseSession:
        sent = self._clock.monotonic()
        await self._arrive("lease grant")
        lease, granted = self._store.grant(ttl)
        await self._answer("lease grant")
        session = LeaseSession(self, self._clock, lease, granted, sent, self._sessions.pop)
        self._sessions[session] = None
        return session

    async def keep_alive(self, lease: int, timeout: float) -> float:
        await self._arrive("keep-alive", timeout)
        ttl = self._store.keep_alive(lease)
        await self._answer("keep-alive", timeout)
        return ttl

    async def revoke(self, lease: int) -> None:
        await self._arrive("lease revoke")
        self._store.revoke(lease)
        await self._answer("lease revoke")

    async def close(self) -> None:
        self._closed = True
        for session in list(self._sessions):
            session.abandon()
        for watch in list(self._watches):
            watch.close()

    async def _arrive(self, what: str, timeout: float | None = None) -> None:
        if self._closed:
            raise RegistryUnavailable(f"{what}: this registry client is closed")
        if self._delay is not None:
            await self._clock.sleep(self._delay())
        if not self.reachable:
            await self._give_up(what, timeout)

    async def _answer(self, what: str, timeout: float | None = None) -> None:
        if self._delay is not None:
            await self._clock.sleep(self._delay())
        if self._drop_answers:
            self._drop_answers -= 1
            await self._give_up(what, timeout)
        if not self.reachable:
            await self._give_up(what, timeout)

    async def _give_up(self, what: str, timeout: float | None) -> None:
        seconds = self._request_timeout if timeout is None else timeout
        await self._clock.sleep(seconds)
        raise RegistryUnavailable(f"{what}: no answer within {seconds:g} s")


class _MemoryWatch:
    """A position in the store's history. It moves only when an item is handed out, so a cancelled wait costs none."""

    def __init__(self, registry: MemoryRegistry, store: MemoryStore, prefix: str, after: int | None) -> None:
        self.waker = asyncio.Event()
        self._registry = registry
        self._store = store
        self._prefix = prefix
        self._after = after
        self._closed = False

    def __aiter__(self) -> AsyncIterator[Snapshot | Changes]:
        return self

    async def __anext__(self) -> Snapshot | Changes:
        while not self._closed:
            self.waker.clear()
            if self._registry.reachable:
                item: Snapshot | Changes | None
                if self._after is None:
                    item = self._store.snapshot(self._prefix)
                else:
                    item = self._store.next_changes(self._prefix, self._after)
                if item is not None:
                    self._after = item.revision
                    return item
            await self.waker.wait()
        raise StopAsyncIteration

    def close(self) -> None:
        self._closed = True
        self.waker.set()
