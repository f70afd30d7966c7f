"""The registry port: what Headrace asks of etcd, and nothing more.

Two things implement it and one contract suite runs on both (tests/unit/registry): `etcd.EtcdRegistry`, and
`memory.MemoryRegistry` for the simulation. Keys are text, values are bytes; every change of the store has a revision
that only grows, and a key's `mod_revision` is what compare-and-swap compares.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as the store holds it."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key; with a lease it disappears with that lease."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key, or every key that starts with it."""

    key: str
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class ModRevision:
    """Holds while the key was last changed at `revision` (0: while it does not exist)."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class CreateRevision:
    """Holds while the key was created at `revision` (0: while it does not exist); survives updates of the key."""

    key: str
    revision: int


Condition = ModRevision | CreateRevision
Change = Put | Delete


@dataclass(frozen=True, slots=True)
class TxnResult:
    """Whether the conditions held (and the changes were made), and the store's revision after it."""

    succeeded: bool
    revision: int


@dataclass(frozen=True, slots=True)
class Event:
    """One change of one key; `value` is None when it was removed."""

    key: str
    value: bytes | None
    create_revision: int
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Every key under a prefix at one revision."""

    revision: int
    items: tuple[KeyValue, ...]


@dataclass(frozen=True, slots=True)
class Changes:
    """All changes of one revision under a prefix, never split and never repeated."""

    revision: int
    events: tuple[Event, ...]


class RegistryUnavailable(Exception):
    """The store did not answer in time. Whether a write happened is unknown: read again before repeating it."""


class LeaseLost(Exception):
    """The session's lease is gone: whatever it owned may belong to someone else by now."""


def check_txn(conditions: Sequence[Condition], changes: Sequence[Change], max_ops: int) -> None:
    """Refuses, before it is sent, what etcd would refuse: too many operations, or a key changed twice in one txn."""
    if len(conditions) > max_ops or len(changes) > max_ops:
        raise ValueError(
            f"{len(conditions)} conditions and {len(changes)} changes: at most {max_ops} of each fit one txn"
        )
    puts = [change.key for change in changes if isinstance(change, Put)]
    if len(set(puts)) < len(puts):
        raise ValueError("a key is put twice in one txn")
    for change in changes:
        if isinstance(change, Delete):
            clash = next(
                (key for key in puts if key == change.key or (change.prefix and key.startswith(change.key))), None
            )
            if clash is not None:
                raise ValueError(f"{clash} is put and deleted in one txn: its order would be unclear")


class Session(Protocol):
    """A lease kept alive from the running loop. Ephemeral keys are put with `lease`.

    `valid` turns False as soon as the lease cannot be proved alive: when etcd says it is gone, or when the time to live
    has passed since the last keep-alive that was *sent* and answered. An owner checks it before it acts as owner.
    """

    @property
    def lease(self) -> int: ...

    @property
    def ttl(self) -> float:
        """The time to live the store granted, in seconds (it may be more than was asked for)."""
        ...

    @property
    def valid(self) -> bool: ...

    async def lost(self) -> None:
        """Returns once the session is no longer valid."""
        ...

    async def close(self) -> None:
        """Revokes the lease: its keys are gone for everyone at once."""
        ...


class Registry(Protocol):
    """The store. Every call may raise `RegistryUnavailable`; none retries a write by itself."""

    async def get(self, key: str) -> KeyValue | None: ...

    async def snapshot(self, prefix: str) -> Snapshot: ...

    async def txn(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> TxnResult:
        """Makes all changes at one revision if all conditions hold, else none.

        At most `max_txn_ops` changes and as many conditions (etcd's own limit is 128 unless it was started with more).
        """
        ...

    @property
    def max_txn_ops(self) -> int: ...

    def watch(
        self, prefix: str, after: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[Snapshot | Changes]]:
        """Every change under `prefix` after revision `after`, in order, none missed and none repeated.

        Without `after` the first item is a `Snapshot`. It resumes by itself after a disconnect; when the history it
        needs was compacted away it yields a fresh `Snapshot` and goes on from there.
        """
        ...

    async def session(self, ttl: float) -> Session:
        """Grants a lease of `ttl` seconds (whole seconds in etcd) and keeps it alive."""
        ...

    async def close(self) -> None: ...
