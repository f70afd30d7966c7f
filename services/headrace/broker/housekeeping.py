"""What a broker does beside serving: flush, checkpoint, retain, clean, forget.

Everything that touches a log's state runs on the loop, in small steps; what waits for a disk (fdatasync) runs on one
worker thread, and what frees its space on another: the kernel takes seconds for a large partition, which no flush may
wait for. Sealed segments are synced soon, so recovery after a crash reads the active one alone. What that one has not
on disk is the kernel's to write back, unless flush settings ask for more: a sync takes locks of the file and commits
the journal, and appends wait for both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from headrace.broker.partition import Partition
from headrace.broker.replica_manager import ReplicaManager
from headrace.errors import KafkaError
from headrace.ports import Clock
from headrace.storage.log import Log
from headrace.storage.log_dirs import LogDirs

log = logging.getLogger(__name__)

BREATH = 64
"""Logs looked at before the loop gets to do something else."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """How often, in seconds. The names behind them are Kafka's."""

    flush_check: float = 1.0
    retention: float = 300.0
    high_watermarks: float = 5.0
    checkpoints: float = 60.0
    producers: float = 600.0
    file_removal: float = 10.0
    producer_expiration_ms: int = 86_400_000


class Housekeeping:
    """The periodic work of one broker, each kind in a task of its own."""

    def __init__(self, replicas: ReplicaManager, log_dirs: LogDirs, clock: Clock, intervals: Intervals) -> None:
        self._replicas = replicas
        self._log_dirs = log_dirs
        self._clock = clock
        self._intervals = intervals
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._remover = ThreadPoolExecutor(1, thread_name_prefix="remove")
        self._flushed: dict[Log, float] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        every = self._intervals
        for seconds, work in (
            (every.flush_check, self.flush_due),
            (every.retention, self.retain),
            (every.high_watermarks, self.checkpoint_high_watermarks),
            (every.checkpoints, self.checkpoint),
            (every.producers, self.expire_producers),
            (every.file_removal, self.remove_files),
        ):
            self._tasks.append(asyncio.create_task(self._repeat(seconds, work)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # What runs is waited for, as the dirs' locks are let go after this; off the loop, which keeps the lease.
        for worker in (self._worker, self._remover):
            await asyncio.to_thread(worker.shutdown)

    async def _repeat(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._clock.sleep(seconds)
            try:
                await work()
            except KafkaError as error:
                log.error("%s: %s", getattr(work, "__name__", work), error)
            except Exception:
                log.exception("%s failed; it goes on in %g s", getattr(work, "__name__", work), seconds)

    async def _each(self, work: Callable[[Partition], None]) -> None:
        """Does `work` for every partition; one that fails is named and the others go on."""
        for done, partition in enumerate(self._replicas.partitions()):
            if done % BREATH == BREATH - 1:
                await asyncio.sleep(0)
            try:
                work(partition)
            except KafkaError as error:
                log.error("%r: %s", partition, error)

    async def flush_due(self) -> None:
        """Flushes logs by flush.messages, flush.ms, or because a segment was sealed."""
        now = self._clock.monotonic()
        due: list[Log] = []
        await self._each(lambda p: due.append(p.log) if self._is_due(p.log, now) else None)
        for each in due:
            if each.failure is not None:
                continue  # its dir went offline with one before it
            flush = each.begin_flush()
            try:
                await asyncio.get_running_loop().run_in_executor(self._worker, flush.run)
            except OSError as error:
                # Told once: the kernel forgets what it could not write, and the next sync would find nothing wrong.
                each.failed(error)
                continue
            each.finish_flush(flush)
            self._flushed[each] = self._clock.monotonic()

    def _is_due(self, each: Log, now: float) -> bool:
        if each.failure is not None:
            return False
        if each.sealed_unsynced:
            return True  # also below the recovery point: recovery seals what was active
        unflushed = each.log_end_offset - each.recovery_point
        if unflushed <= 0:
            return False
        at = self._flushed.setdefault(each, now)
        config = each.config
        return unflushed >= config.flush_messages or (now - at) * 1000 >= config.flush_ms

    async def retain(self) -> None:
        now_ms = self._clock.time_ms()
        await self._each(lambda p: self._note_deleted(p, p.log.retain(now_ms, p.high_watermark)))
        live = {p.log for p in self._replicas.partitions()}
        self._flushed = {each: seen for each, seen in self._flushed.items() if each in live}

    async def remove_files(self) -> None:
        """Off the loop: the kernel takes a tenth of a second to free a GiB, and nobody would be served meanwhile."""
        now_ms, loop = self._clock.time_ms(), asyncio.get_running_loop()
        for log_dir, remove in self._log_dirs.begin_removals(now_ms):
            if log_dir.online:
                try:
                    await loop.run_in_executor(self._remover, remove)
                except OSError as error:
                    self._log_dirs.fail(log_dir, error)
        due: list[tuple[Log, Callable[[], None]]] = []
        await self._each(lambda p: due.extend((p.log, remove) for remove in p.log.begin_removals(now_ms)))
        for each, remove in due:
            if each.failure is None:
                try:
                    await loop.run_in_executor(self._remover, remove)
                except OSError as error:
                    each.failed(error)

    async def checkpoint_high_watermarks(self) -> None:
        """Off the loop: an fsync waits for whatever else the disk is doing."""
        loop = asyncio.get_running_loop()
        for log_dir, write in self._log_dirs.begin_high_watermarks(self.high_watermarks()):
            try:
                await loop.run_in_executor(self._worker, write)
            except OSError as error:
                self._log_dirs.fail(log_dir, error)

    async def checkpoint(self) -> None:
        """Recovery points and log starts, off the loop too."""
        loop = asyncio.get_running_loop()
        for log_dir, write, written in self._log_dirs.begin_checkpoints():
            try:
                await loop.run_in_executor(self._worker, write)
            except OSError as error:
                self._log_dirs.fail(log_dir, error)
            else:
                written()

    async def expire_producers(self) -> None:
        now_ms = self._clock.time_ms()
        await self._each(lambda p: p.log.expire_producers(now_ms, self._intervals.producer_expiration_ms))

    def high_watermarks(self) -> dict[tuple[str, int], int]:
        return {(p.topic, p.index): p.high_watermark for p in self._replicas.partitions()}

    def _note_deleted(self, partition: Partition, count: int) -> None:
        if count:
            start = partition.log.log_start_offset
            log.info("%r: %d segments are past retention; it starts at %d", partition, count, start)
            self._replicas.trimmed(partition)
