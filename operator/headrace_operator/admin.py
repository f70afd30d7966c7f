"""The operator's line to a cluster of ours: the newest picture of it, and the calls that change it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from headrace.client import Admin, NewTopic, TopicPartition
from headrace.cluster.image import Image
from headrace.errors import KafkaError
from headrace_operator.picture import Disk

log = logging.getLogger(__name__)

T = TypeVar("T")

CALL_MS, CONNECT_MS = 30_000, 3_000
SHOWN_SECONDS = 3.0
CHUNK = 200
"""Topics in one call."""


class ClusterAdmin:
    """A connection that is made when it is first needed and mended when it breaks."""

    def __init__(self, servers: str, on_change: Callable[[], None]) -> None:
        self.servers = servers
        self._on_change = on_change
        self._admin: Admin | None = None
        self._connecting = asyncio.Lock()
        self._changed = asyncio.Event()

    async def image(self) -> Image | None:
        """The newest picture; None while nobody tells one, for an old one is not to be trusted."""
        async with self._connecting:
            if self._admin is None:
                admin = Admin(
                    bootstrap_servers=self.servers,
                    client_id="headrace-operator",
                    default_api_timeout_ms=CALL_MS,
                    connect_timeout_ms=CONNECT_MS,
                )
                try:
                    await admin.start()
                except KafkaError as error:
                    log.info("%s: %s", self.servers, error.message)
                    return None
                admin.on_change(self._image_changed)
                self._admin = admin
        return self._admin.image if self._admin.connected else None

    def _image_changed(self) -> None:
        self._changed.set()
        self._on_change()

    async def confirmed(self) -> Image | None:
        """The picture with the partitions as the active controller has them this moment; None when it does not say."""
        image = await self.image()
        if image is None or self._admin is None:
            return None
        try:
            return dataclasses.replace(image, topics=await self._admin.describe_topics())
        except KafkaError as error:
            log.info("%s: the controller does not answer: %s", self.servers, error.message)
            return None

    async def close(self) -> None:
        if self._admin is not None:
            await self._admin.close()
            self._admin = None

    @property
    def _open(self) -> Admin:
        if self._admin is None:
            raise RuntimeError("ask for the image first")
        return self._admin

    # --- changes; each answer says by name what was refused

    async def create(self, topics: Iterable[NewTopic]) -> dict[str, KafkaError]:
        refused: dict[str, KafkaError] = {}
        for chunk in _chunks(wanted := list(topics)):
            refused |= _refused(await self._open.create_topics(chunk))
        await self._shown({topic.name for topic in wanted if topic.name not in refused})
        return refused

    async def _shown(self, names: set[str]) -> None:
        """Waits a moment for the picture to have new topics: then each Topic is told once, and as Ready."""
        try:
            async with asyncio.timeout(SHOWN_SECONDS):
                while not names <= self._open.image.topics.keys():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            log.info("%s: the metadata stream is slow to tell of new topics", self.servers)

    async def delete(self, names: Iterable[str]) -> dict[str, KafkaError]:
        refused: dict[str, KafkaError] = {}
        for chunk in _chunks(list(names)):
            refused |= _refused(await self._open.delete_topics(chunk))
        return refused

    async def grow(self, counts: Mapping[str, int]) -> dict[str, KafkaError]:
        return _refused(await self._open.increase_partitions(counts)) if counts else {}

    async def configure(self, changes: Mapping[str, Mapping[str, str | None]]) -> dict[str, KafkaError]:
        refused: dict[str, KafkaError] = {}
        for chunk in _chunks(list(changes)):
            refused |= _refused(await self._open.alter_topic_configs({name: changes[name] for name in chunk}))
        return refused

    async def move(self, moves: Mapping[TopicPartition, tuple[int, ...]]) -> dict[str, KafkaError]:
        """By topic."""
        if not moves:
            return {}
        answers = await self._open.alter_partition_reassignments(moves)
        return {partition.topic: error for partition, error in answers.items() if error is not None}

    async def configure_brokers(self, changes: Mapping[str, str | None]) -> None:
        """Settings of all brokers, live."""
        await self._open.alter_configs(
            "broker",
            "",
            set={name: text for name, text in changes.items() if text is not None},
            delete=[name for name, text in changes.items() if text is None],
        )

    async def elect_preferred(self) -> None:
        await self._open.elect_leaders()

    async def disk(self, broker: int) -> Disk:
        answer = await self._open.describe_log_dirs(broker)
        live = [each for each in answer.log_dirs if not each.error.code]
        sizes = {
            TopicPartition(r.partition.topic, r.partition.partition): r.size for each in live for r in each.replicas
        }
        total = sum(max(each.total_bytes, 0) for each in live)
        return Disk(total, total - sum(max(each.usable_bytes, 0) for each in live), sizes)


def _chunks(items: list[T]) -> Iterable[list[T]]:
    return (items[at : at + CHUNK] for at in range(0, len(items), CHUNK))


def _refused(answers: Mapping[str, KafkaError | None]) -> dict[str, KafkaError]:
    return {name: error for name, error in answers.items() if error is not None}
