"""Electing one owner of a key, with an epoch that only grows.

The winner creates the election key under its lease and adds one to the epoch key in the same transaction. Whoever has
been replaced cannot write any more: its `guard` names the create revision of a key that is gone.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass

from headrace.ports import Clock
from headrace.registry.api import CreateRevision, LeaseLost, ModRevision, Put, Registry, RegistryUnavailable, Session
from headrace.registry.ownership import Ownership, first, holder

logger = logging.getLogger(__name__)

_FIRST_BACKOFF, _MAX_BACKOFF = 0.05, 1.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """Who runs for election; what the election key holds while it is elected."""

    id: int
    address: str

    def to_bytes(self) -> bytes:
        return json.dumps({"id": self.id, "address": self.address}).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Candidate:
        held = json.loads(value)
        return cls(int(held["id"]), str(held["address"]))


class Leadership(Ownership):
    """The election key while it is ours. Add `guard` to every write transaction."""

    def __init__(self, registry: Registry, session: Session, key: str, create_revision: int, epoch: int) -> None:
        super().__init__(registry, session, key, create_revision)
        self.epoch = epoch

    async def resign(self) -> None:
        """Steps down: the next candidate is woken at once."""
        await self.release()


async def campaign(
    registry: Registry, session: Session, key: str, epoch_key: str, candidate: Candidate, clock: Clock
) -> Leadership:
    """Waits until `candidate` is elected. Raises `LeaseLost` when its session ends before that."""
    backoff = 0.0
    while session.valid:
        try:
            leadership = await _run_once(registry, session, key, epoch_key, candidate)
        except RegistryUnavailable as error:
            # Also the answer to our own election may be what is missing: the next round reads whether we were elected.
            logger.info("campaign for %s: %s", key, error)
            backoff = min(max(2 * backoff, _FIRST_BACKOFF), _MAX_BACKOFF)
            await clock.sleep(backoff)
            continue
        if leadership is not None:
            logger.info("%s: elected with epoch %d", key, leadership.epoch)
            return leadership
        backoff = 0.0
    raise LeaseLost(f"the session ended before {candidate.address} was elected for {key}")


async def _run_once(
    registry: Registry, session: Session, key: str, epoch_key: str, candidate: Candidate
) -> Leadership | None:
    current = await registry.get(key)
    if current is not None and current.lease != session.lease:
        await first(_until_gone(registry, key, current.create_revision, current.mod_revision), session.lost())
        return None
    held = await registry.get(epoch_key)
    epoch = int(held.value) if held is not None else 0
    epoch_revision = held.mod_revision if held is not None else 0
    if current is not None:
        # Elected, and not told so. Another election between the two reads shows in the epoch's revision.
        ours = epoch_revision == current.create_revision
        return Leadership(registry, session, key, current.create_revision, epoch) if ours else None
    result = await registry.txn(
        [CreateRevision(key, 0), ModRevision(epoch_key, epoch_revision)],
        [Put(key, candidate.to_bytes(), session.lease), Put(epoch_key, str(epoch + 1).encode())],
    )
    return Leadership(registry, session, key, result.revision, epoch + 1) if result.succeeded else None


async def _until_gone(registry: Registry, key: str, create_revision: int, seen: int) -> None:
    async with registry.watch(key, after=seen) as items:
        async for item in items:
            if holder(item, key, create_revision) != create_revision:
                return
