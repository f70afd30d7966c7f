"""A lease kept alive from the running loop, the same for etcd and for the simulation.

A keep-alive goes out every third of the time to live. An answer proves the lease alive for one time to live from the
moment its keep-alive was *sent*: the store started counting later than that, so the owner always gives up first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from headrace.ports import Clock
from headrace.registry.api import RegistryUnavailable

logger = logging.getLogger(__name__)


class Lessor(Protocol):
    """The two calls a session makes to its store."""

    async def keep_alive(self, lease: int, timeout: float) -> float:
        """Renews the lease; returns its time to live, 0 when it is gone."""
        ...

    async def revoke(self, lease: int) -> None: ...


class LeaseSession:
    """Implements `api.Session` over a `Lessor`."""

    def __init__(
        self,
        lessor: Lessor,
        clock: Clock,
        lease: int,
        ttl: float,
        granted_at: float,
        on_end: Callable[[LeaseSession], object],
    ) -> None:
        self._lessor = lessor
        self._clock = clock
        self._lease = lease
        self._ttl = ttl
        self._deadline = granted_at + ttl
        self._ended = asyncio.Event()
        self._on_end = on_end
        self._tasks = [
            asyncio.create_task(self._keep_alive(granted_at), name=f"keep-alive of lease {lease:x}"),
            asyncio.create_task(self._watch_deadline(), name=f"deadline of lease {lease:x}"),
        ]

    @property
    def lease(self) -> int:
        return self._lease

    @property
    def ttl(self) -> float:
        return self._ttl

    @property
    def valid(self) -> bool:
        return not self._ended.is_set() and self._clock.monotonic() < self._deadline

    async def lost(self) -> None:
        await self._ended.wait()

    async def close(self) -> None:
        self.abandon()
        try:
            await self._lessor.revoke(self._lease)
        except RegistryUnavailable as error:
            logger.warning(
                "lease %x could not be revoked, it ends by itself in %g s: %s", self._lease, self._ttl, error
            )

    def abandon(self) -> None:
        """Stops the keep-alives without telling the store, as a crash would."""
        self._end()
        for task in self._tasks:
            task.cancel()

    def _end(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            self._on_end(self)

    async def _watch_deadline(self) -> None:
        # Apart from the keep-alives, so that nothing they wait for can delay the verdict.
        while (remaining := self._deadline - self._clock.monotonic()) > 0:
            await self._clock.sleep(remaining)
        if not self._ended.is_set():
            logger.warning("lease %x was not confirmed for %g s: it counts as lost", self._lease, self._ttl)
            self._end()

    async def _keep_alive(self, last: float) -> None:
        retry = 0.0
        while not self._ended.is_set():
            pause = retry or last + self._ttl / 3 - self._clock.monotonic()
            await self._clock.sleep(max(0.0, pause))
            sent = self._clock.monotonic()
            try:
                ttl = await self._lessor.keep_alive(self._lease, timeout=self._ttl / 3)
            except RegistryUnavailable as error:
                logger.info("keep-alive of lease %x: %s", self._lease, error)
                retry = min(max(2 * retry, self._ttl / 50), self._ttl / 6)
                continue
            retry = 0.0
            if ttl <= 0 or self._clock.monotonic() >= self._deadline:
                # An answer that comes after the deadline changes nothing: the owner may have been told already.
                logger.warning("lease %x is gone", self._lease)
                self._end()
                return
            last, self._ttl, self._deadline = sent, ttl, sent + ttl
