"""What a request handler of the coordinator can reach: the groups of every partition this process owns."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Protocol

from headrace.cluster.coordination import partition_for
from headrace.cluster.image import Image
from headrace.cluster.topics import OFFSETS_TOPIC
from headrace.coordinator.appending import Sender
from headrace.coordinator.calls import DeleteGroups, DeleteGroupsResponse, OffsetFetch, OffsetFetchResponse
from headrace.coordinator.config import GroupConfig
from headrace.coordinator.descriptions import DescribedConsumerGroup, DescribedGroup, ListedGroup
from headrace.coordinator.groups import Shard
from headrace.coordinator.hosting import GroupClock, Hosting
from headrace.coordinator.loading import Loader
from headrace.coordinator.metrics import Metrics
from headrace.coordinator.topics import Topics
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Random
from headrace.timing.driver import TimerDriver

log = logging.getLogger(__name__)

LOADS = 8
"""Partitions that are loaded at a time."""

_partition_for = lru_cache(maxsize=65536)(partition_for)


class HasImage(Protocol):
    """Whatever keeps the newest picture of the cluster."""

    @property
    def image(self) -> Image: ...

    async def wait_for(self, predicate: Callable[[Image], bool], timeout: float | None) -> Image: ...


class Coordinator:
    """The partitions that are owned, and the way to them."""

    def __init__(
        self,
        coordinator_id: int,
        config: GroupConfig,
        cluster: HasImage,
        clock: GroupClock,
        timers: TimerDriver,
        sender: Sender,
        loader: Loader,
        random: Random,
    ) -> None:
        self.id = coordinator_id
        self.hostings: dict[int, Hosting] = {}
        self.alive: Callable[[], bool] = lambda: False
        """Whether the lease is still held; nothing is answered without it."""
        self.on_lost: Callable[[Hosting, bool], None] = lambda hosting, fenced: None
        """Told of a partition that was dropped although nobody asked for it."""
        self.past = Metrics()
        """What partitions counted that are not here any more."""
        self._config = config
        self._cluster = cluster
        self._clock = clock
        self._timers = timers
        self._sender = sender
        self._loader = loader
        self._random = random
        self._topics = Topics()
        self._loads: dict[Hosting, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(LOADS)

    @property
    def image(self) -> Image:
        return self._cluster.image

    # --- what is owned

    def held(self) -> Mapping[int, int]:
        return {index: hosting.epoch for index, hosting in self.hostings.items()}

    def take(self, partition: int, epoch: int) -> None:
        """This process owns `partition`: loads it, and serves it when that is done."""
        shard = Shard(self._config, self._new_id, self._topics)
        hosting = Hosting(
            self.id, partition, epoch, shard, self._clock, self._timers, self._sender, self._loader, self._lost
        )
        self.hostings[partition] = hosting
        self._loads[hosting] = asyncio.create_task(self._load(hosting), name=f"load {OFFSETS_TOPIC}-{partition}")

    def drop(self, partition: int) -> None:
        """`partition` is another's, or nobody's."""
        hosting = self.hostings.pop(partition, None)
        if hosting is not None:
            hosting.stop()
            self._forget(hosting)

    def drop_all(self) -> None:
        for partition in list(self.hostings):
            self.drop(partition)

    def _lost(self, hosting: Hosting, fenced: bool) -> None:
        if self.hostings.get(hosting.index) is hosting:
            del self.hostings[hosting.index]
        self._forget(hosting)
        self.on_lost(hosting, fenced)

    def _forget(self, hosting: Hosting) -> None:
        self.past.add(hosting.shard.metrics)
        load = self._loads.pop(hosting, None)
        if load is not None:
            load.cancel()

    async def _load(self, hosting: Hosting) -> None:
        try:
            async with self._turns:
                # An earlier owner may have stored offsets of topics it knew: this one has to know them too, or it
                # would say that there are none. Whatever came before the claim is in the picture that shows it.
                await self._cluster.wait_for(lambda image: image.revision >= hosting.epoch, None)
                began = self._clock.now()
                await hosting.start()
            log.info("partition %d is served (loaded in %d ms)", hosting.index, self._clock.now() - began)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("partition %d cannot be loaded", hosting.index)
            hosting.gave_up()
        finally:
            self._loads.pop(hosting, None)

    def _new_id(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    # --- news

    def image_changed(self, old: Image, new: Image) -> None:
        """Drops at once what the cluster says is another's; passes topics on."""
        for index, hosting in list(self.hostings.items()):
            owner = new.offsets_owners.get(index)
            if new.revision >= hosting.epoch and (owner is None or owner.epoch != hosting.epoch):
                log.warning("partition %d is not owned with epoch %d any more", index, hosting.epoch)
                hosting.fenced()
        if old.topics is not new.topics:
            self._topics = Topics.of(new)
            for hosting in list(self.hostings.values()):
                hosting.topics_changed(self._topics)

    def expire_offsets(self) -> None:
        for hosting in list(self.hostings.values()):
            hosting.expire_offsets()

    # --- requests

    def hosting_of(self, group_id: str) -> Hosting:
        """Where a group lives, or the error that sends its client elsewhere."""
        topic = self._cluster.image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC} does not exist yet")
        hosting = self.hostings.get(_partition_for(group_id, len(topic.partitions)))
        if hosting is None or not self.alive():
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"group {group_id} belongs to another coordinator")
        return hosting

    def handle(self, call: Any) -> None:
        """A call of one group; a refusal is answered like everything else, by calling its token."""
        try:
            hosting = self.hosting_of(call.group_id)
            hosting.handle(call)
        except KafkaError as error:
            call.token(call.refuse(error.code, error.message))

    def fetch_offsets(self, call: OffsetFetch) -> None:
        """Groups may live in several partitions: each is asked for its own."""
        found: list[Any] = []
        for group in call.groups:
            part = OffsetFetch([group], call.require_stable)

            def take(response: OffsetFetchResponse) -> None:
                found.extend(response.groups)

            part.token = take
            self._ask(group.group_id, part)
        call.token(OffsetFetchResponse(found))

    def _ask(self, group_id: str, call: Any) -> None:
        try:
            self.hosting_of(group_id).handle(call)
        except KafkaError as error:
            call.token(call.refuse(error.code, error.message))

    def delete_groups(self, call: DeleteGroups) -> None:
        """Answers when every partition has."""
        results: dict[str, ErrorCode] = {}
        wanted = list(dict.fromkeys(call.group_ids))

        def take(response: DeleteGroupsResponse) -> None:
            results.update(response.groups)
            if len(results) == len(wanted):
                call.token(DeleteGroupsResponse([(g, results[g]) for g in wanted]))

        if not wanted:
            call.token(DeleteGroupsResponse([]))
        for group_id in wanted:
            self._ask(group_id, DeleteGroups([group_id], token=take))

    def list_groups(self, states: Iterable[str], types: Iterable[str]) -> list[ListedGroup]:
        """The groups of every partition; COORDINATOR_LOAD_IN_PROGRESS while one of them is being loaded."""
        states, types = list(states), list(types)
        if not self.alive():
            return []
        hostings = list(self.hostings.values())
        if not all(hosting.serving for hosting in hostings):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "groups are being loaded, ask again")
        return [group for hosting in hostings for group in hosting.shard.list_groups(states, types)]

    def describe_group(self, group_id: str) -> DescribedGroup:
        """A classic group, or DescribedGroup's word on why there is none."""
        try:
            return self.serving_of(group_id).describe_groups([group_id])[0]
        except KafkaError as error:
            return DescribedGroup(group_id, error.code)

    def describe_consumer_group(self, group_id: str) -> DescribedConsumerGroup:
        try:
            return self.serving_of(group_id).describe_consumer_groups([group_id])[0]
        except KafkaError as error:
            return DescribedConsumerGroup(group_id, error.code)

    def serving_of(self, group_id: str) -> Shard:
        hosting = self.hosting_of(group_id)
        if not hosting.serving:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"group {group_id} is being loaded")
        return hosting.shard

    def shards(self) -> list[Shard]:
        """The partitions that are served."""
        return [hosting.shard for hosting in list(self.hostings.values()) if hosting.serving]
