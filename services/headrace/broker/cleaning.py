"""Compaction while the broker serves: one log at a time, in short steps, the loop free most of the time in between.

A step reads some tens of kilobytes and is Python work: a thread would only take turns with the loop at worse moments.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from headrace.errors import KafkaError
from headrace.ports import Clock
from headrace.storage.checkpoint import TopicPartition
from headrace.storage.cleaner import LogCleaner
from headrace.storage.log import Log
from headrace.storage.log_dirs import LogDir, LogDirs

log = logging.getLogger(__name__)

REST = 4.0
"""How long the loop is left alone after a step, in lengths of that step."""


@dataclass(frozen=True, slots=True)
class CleaningLimits:
    """Kafka's log.cleaner.* settings."""

    backoff: float = 15.0
    buffer_bytes: int = 128 << 20
    load_factor: float = 0.9
    max_bytes_per_second: float = float("inf")


class Cleaning:
    """The cleaners of all log dirs, in one task."""

    def __init__(
        self,
        log_dirs: LogDirs,
        high_watermarks: Callable[[], dict[TopicPartition, int]],
        clock: Clock,
        limits: CleaningLimits,
    ) -> None:
        self._log_dirs = log_dirs
        self._high_watermarks = high_watermarks
        self._clock = clock
        self._limits = limits
        self._cleaners: dict[str, LogCleaner] = {}
        self._seen: dict[TopicPartition, Log] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="clean logs")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            worked = False
            for log_dir in self._log_dirs.dirs:
                if log_dir.online:
                    try:
                        worked |= await self.clean_one(log_dir)
                    except (KafkaError, OSError) as error:
                        log.error("cleaning in %s: %s", log_dir.path, error)
            if not worked:
                await self._clock.sleep(self._limits.backoff)

    async def clean_one(self, log_dir: LogDir) -> bool:
        """Cleans the dirtiest log of a dir that is due; False when none is."""
        cleaner = self._cleaner(log_dir)
        self._forget_the_gone(cleaner, log_dir)
        marks = self._high_watermarks()
        found = cleaner.dirtiest(log_dir.logs, lambda partition: marks.get(partition, 0), self._clock.time_ms())
        if found is None:
            return False
        partition, what = found
        steps = cleaner.clean(partition, log_dir.logs[partition], what, self._clock.time_ms())
        while True:
            began = self._clock.monotonic()
            try:
                read = next(steps)
            except StopIteration as ended:
                if ended.value is not None:
                    done = ended.value
                    log.info("compacted %s-%d: %d bytes to %d", *partition, done.bytes_read, done.bytes_written)
                return ended.value is not None
            took = self._clock.monotonic() - began
            await self._clock.sleep(max(took * REST, read / self._limits.max_bytes_per_second))

    def _cleaner(self, log_dir: LogDir) -> LogCleaner:
        cleaner = self._cleaners.get(log_dir.path)
        if cleaner is None:
            cleaner = self._cleaners[log_dir.path] = LogCleaner(
                self._log_dirs.files,
                log_dir.path,
                buffer_bytes=self._limits.buffer_bytes,
                load_factor=self._limits.load_factor,
            )
            cleaner.load()
            self._seen.update(log_dir.logs)
        return cleaner

    def _forget_the_gone(self, cleaner: LogCleaner, log_dir: LogDir) -> None:
        """A topic deleted and made again under the same name is dirty from its start."""
        for partition in list(cleaner.clean_offsets):
            held = log_dir.logs.get(partition)
            if held is None or held is not self._seen.get(partition, held):
                cleaner.forget(partition)
            elif cleaner.clean_offsets[partition] > held.log_end_offset:
                cleaner.truncated(partition, held.log_end_offset)
        self._seen.update(log_dir.logs)
