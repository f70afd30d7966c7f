"""Moving a replica between the log directories of its broker (KIP-113), while it goes on serving.

The replica is copied into a future log in the other directory, batch by batch, between other work of the loop. When the
copy has everything, it is made durable and takes the place of the current log in one step; the old files go.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from headrace.broker.partition import Partition
from headrace.broker.replica_manager import ReplicaManager
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Clock
from headrace.storage.log import Log
from headrace.storage.log_dirs import LogDir, LogDirs

log = logging.getLogger(__name__)

CHUNK = 1 << 20
"""Bytes copied before the loop gets to do something else."""
CLOSE = 4 << 20
"""How much may be missing when the copy is flushed before it takes over."""


class LogDirMoves:
    """The moves under way, one task each."""

    def __init__(self, replicas: ReplicaManager, log_dirs: LogDirs, clock: Clock) -> None:
        self._replicas = replicas
        self._log_dirs = log_dirs
        self._clock = clock
        self._futures: dict[Partition, Log] = {}
        self._tasks: dict[Partition, asyncio.Task[None]] = {}
        replicas.on_removed = self.give_up

    def future_of(self, partition: Partition) -> Log | None:
        """The log that is to take the place of the current one."""
        return self._futures.get(partition)

    def move(self, partition: Partition, path: str) -> None:
        """Begins a move; one under way to another directory is given up. Moving to where it is ends a move."""
        target = next((d for d in self._log_dirs.dirs if d.path == os.path.abspath(path)), None)
        if target is None:
            known = ", ".join(d.path for d in self._log_dirs.dirs)
            raise KafkaError(
                ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not a log directory of this broker; it has {known}"
            )
        if not target.online:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} is offline: {target.failure}")
        if partition.log.failure is not None:
            raise partition.log.failure
        self.give_up(partition)
        if self._log_dirs.dir_of(partition.topic, partition.index) is target:
            return
        self._futures[partition] = self._log_dirs.begin_move(partition.topic, partition.index, target)
        self._tasks[partition] = asyncio.get_running_loop().create_task(
            self._copy(partition, target), name=f"move {partition!r} to {target.path}"
        )

    def give_up(self, partition: Partition) -> None:
        """Ends a move under way, for example because the replica leaves this broker."""
        task = self._tasks.pop(partition, None)
        if task is not None:
            task.cancel()
        future = self._futures.pop(partition, None)
        if future is not None:
            self._log_dirs.abandon_move(future)

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for partition in list(self._futures):
            self.give_up(partition)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _copy(self, partition: Partition, target: LogDir) -> None:
        try:
            future = self._futures[partition]
            await self._until(partition, future, lambda: _missing(partition.log, future) <= CLOSE)
            flush = future.begin_flush()
            await asyncio.get_running_loop().run_in_executor(None, flush.run)
            future.finish_flush(flush)
            await self._until(partition, future, lambda: partition.log.log_end_offset == future.log_end_offset)
            # No await from here on: what was copied is all there is.
            partition.log = self._log_dirs.finish_move(
                partition.topic, partition.index, future, target, self._clock.time_ms()
            )
            del self._futures[partition]
            self._replicas.wake(partition)
            log.info("%r lies in %s now", partition, target.path)
        except (KafkaError, OSError) as error:
            log.error("%r was not moved to %s: %s", partition, target.path, error)
            left = self._futures.pop(partition, None)
            if left is not None:
                self._log_dirs.abandon_move(left)
        finally:
            if self._tasks.get(partition) is asyncio.current_task():
                del self._tasks[partition]

    async def _until(self, partition: Partition, future: Log, done: Callable[[], bool]) -> None:
        """Copies chunk by chunk until `done`."""
        truncations = partition.log.truncations
        while True:
            current = partition.log
            if current.truncations != truncations or future.log_end_offset < current.log_start_offset:
                # The copy may hold what the log no longer does: it begins anew, at the log's start.
                truncations = current.truncations
                future.truncate_fully(current.log_start_offset)
            if done():
                return
            found = current.read(future.log_end_offset, CHUNK, upto=current.log_end_offset)
            data = found.read()
            if data:
                future.append_as_follower(memoryview(data), self._clock.time_ms())
            await asyncio.sleep(0)


def _missing(current: Log, future: Log) -> int:
    """About how many bytes the copy lacks."""
    return max(0, current.size - future.size) if current.log_end_offset > future.log_end_offset else 0
