"""Claiming a share of the offsets topic's partitions in the registry, and giving up what is another's.

A claim is the key `offsets_owners/<n>` under the lease of this process, made only where there is none; its create
revision is the epoch. Who shall own what follows from who is alive (`sharing`): a process that holds a partition that
is not its own any more stops serving it and only then deletes the key, and the other one, which sees that, claims it.
A process that dies holds its keys until its lease ends; its successor under the same id replaces them at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from headrace.cluster import codec
from headrace.cluster.image import Image
from headrace.cluster.topics import OFFSETS_TOPIC
from headrace.coordinator.sharing import share_of
from headrace.registry.api import (
    CreateRevision,
    Delete,
    KeyValue,
    LeaseLost,
    ModRevision,
    Put,
    Registry,
    RegistryUnavailable,
    Session,
)
from headrace.registry.keys import Keys

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
"""How long after a failed step the next one follows; otherwise a change of the cluster brings it."""


class Hosted(Protocol):
    """Where the partitions that this process owns are served."""

    def held(self) -> Mapping[int, int]:
        """The epoch of each partition that is owned."""

    def take(self, partition: int, epoch: int) -> None: ...

    def drop(self, partition: int) -> None: ...


class Claims:
    """Keeps the claims of one session what they should be, from `run` until it is cancelled."""

    def __init__(
        self,
        coordinator: int,
        registry: Registry,
        keys: Keys,
        session: Session,
        image: Callable[[], Image],
        host: Hosted,
    ) -> None:
        self._id = coordinator
        self._registry = registry
        self._keys = keys
        self._session = session
        self._image = image
        self._host = host
        self._changed = asyncio.Event()
        self._leaving: dict[int, int] = {}
        """Claims (with their epochs) on what is no longer served here, until the registry has confirmed their end."""

    def look(self) -> None:
        """Something changed that may move a partition."""
        self._changed.set()

    async def run(self) -> None:
        while True:
            self._changed.clear()
            try:
                waits = await self._step()
            except (RegistryUnavailable, LeaseLost) as error:
                log.warning("claims of coordinator %d: %s", self._id, error)
                waits = True
            try:
                async with asyncio.timeout(RETRY_SECONDS if waits else None):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _step(self) -> bool:
        """One look at what should be; True when it must be looked at again soon."""
        image = self._image()
        topic = image.topics.get(OFFSETS_TOPIC)
        if topic is None or self._id not in image.coordinators or not self._session.valid:
            return True
        share = share_of(self._id, image.coordinators, len(topic.partitions))
        await self._release([p for p in self._host.held() if p not in share])
        missing = share - self._host.held().keys()
        return bool(missing) and not await self._claim(missing)

    async def _release(self, partitions: list[int]) -> None:
        if partitions:
            log.info("partitions %s go to another coordinator", partitions)
        held = dict(self._host.held())
        for partition in partitions:
            self._host.drop(partition)
            self._leaving[partition] = held[partition]
        for partition, epoch in list(self._leaving.items()):
            await self.give_up(partition, epoch)
            del self._leaving[partition]

    async def give_up(self, partition: int, epoch: int) -> None:
        """Deletes a claim that is not served any more."""
        key = self._keys.offsets_owner(partition)
        await self._registry.txn([CreateRevision(key, epoch)], [Delete(key)])

    async def _claim(self, missing: set[int]) -> bool:
        """Claims what is free; False when something is still another's."""
        found = {held.key: held for held in (await self._registry.snapshot(self._keys.offsets_owners)).items}
        free: list[int] = []
        for partition in sorted(missing):
            holder = found.get(self._keys.offsets_owner(partition))
            if holder is None or await self._replace_own(partition, holder):
                free.append(partition)
        limit = self._registry.max_txn_ops
        complete = len(free) == len(missing)
        for at in range(0, len(free), limit):
            part = free[at : at + limit]
            keys = [self._keys.offsets_owner(partition) for partition in part]
            value = codec.encode_offsets_owner(self._id)
            result = await self._registry.txn(
                [CreateRevision(key, 0) for key in keys], [Put(key, value, self._session.lease) for key in keys]
            )
            if not result.succeeded:
                return False
            log.info("coordinator %d owns partitions %s with epoch %d", self._id, part, result.revision)
            for partition in part:
                self._host.take(partition, result.revision)
        return complete

    async def _replace_own(self, partition: int, holder: KeyValue) -> bool:
        """Deletes a claim that this process made before, or an earlier one with its id; False: it is another's."""
        try:
            owner = codec.decode_offsets_owner(holder.value, holder.create_revision)
        except codec.BadValue as error:
            log.error("the claim on partition %d cannot be read, it is replaced: %s", partition, error)
            owner = None
        if owner is not None and owner.coordinator != self._id:
            return False
        key = self._keys.offsets_owner(partition)
        return (await self._registry.txn([ModRevision(key, holder.mod_revision)], [Delete(key)])).succeeded
