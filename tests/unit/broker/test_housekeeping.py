"""What a broker does beside serving, when the disk does not go along."""

import asyncio
import errno
import random
import threading
import uuid

import pytest
from tests.unit.broker.conftest import Bench, batch

from headrace.broker.housekeeping import Housekeeping, Intervals
from headrace.broker.partition import Partition
from headrace.storage.config import LogConfig
from headrace.storage.log_dirs import LogDirs
from headrace.storage.memory_files import MemoryFiles


def written(bench: Bench, files: MemoryFiles, count: int = 1, **settings: str) -> tuple[LogDirs, list[Partition]]:
    """Partitions in one log dir that this broker leads, with a record each."""
    config = LogConfig.of(settings)
    dirs = LogDirs(files, ["/a"], node_id=0, cluster_id="c", config_of=lambda _: config, random=random.Random(1))
    dirs.load()
    partitions = [
        Partition("t", uuid.UUID(int=7), n, 0, dirs.create("t", n, uuid.UUID(int=7)), 0) for n in range(count)
    ]
    for partition in partitions:
        bench.replicas.add(partition)
        bench.lead(partition)
        partition.log.append_as_leader(batch(b"x"), 0, 0)
    return dirs, partitions


def test_a_sealed_segment_is_synced_and_an_active_one_left_to_the_kernel(bench: Bench) -> None:
    dirs, [partition] = written(bench, MemoryFiles())

    async def flush() -> None:
        keeper = Housekeeping(bench.replicas, dirs, bench.clock, Intervals())
        await keeper.flush_due()
        assert partition.log.recovery_point == 0
        partition.log.roll()
        await keeper.flush_due()
        assert partition.log.recovery_point == 1
        await keeper.stop()

    asyncio.run(flush())


def test_a_sync_that_fails_takes_the_log_dir_offline(bench: Bench) -> None:
    """The kernel tells of it once, so a second sync would make what is lost look durable."""
    files = MemoryFiles()
    dirs, partitions = written(bench, files, 2, **{"flush.messages": "1"})

    def fails(operation: str, path: str) -> None:
        if operation == "sync":
            raise OSError(errno.EIO, "bad sector", path)

    async def flush() -> None:
        keeper = Housekeeping(bench.replicas, dirs, bench.clock, Intervals())
        files.before = fails
        await keeper.flush_due()
        files.before = None
        await keeper.flush_due()
        await keeper.stop()

    asyncio.run(flush())
    assert not dirs.dirs[0].online
    assert [partition.log.recovery_point for partition in partitions] == [0, 0]


class Removals(MemoryFiles):
    """Which thread removes, and what becomes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []
        self.error: OSError | None = None
        self.begun = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def _removing(self) -> None:
        self.threads.append(threading.current_thread().name)
        self.begun.set()
        assert self.may_go_on.wait(10)
        if self.error is not None:
            raise self.error

    def remove(self, path: str) -> None:
        if path.endswith(".deleted"):
            self._removing()
        super().remove(path)

    def remove_tree(self, path: str) -> None:
        self._removing()
        super().remove_tree(path)


@pytest.mark.parametrize("error", [None, OSError(errno.EIO, "bad sector")])
@pytest.mark.parametrize("whole", [True, False])
def test_files_are_removed_off_the_loop(bench: Bench, whole: bool, error: OSError | None) -> None:
    """Of a whole partition, or of a segment past retention. Where that fails, the dir goes offline."""
    files = Removals()
    dirs, [partition] = written(bench, files, **{"file.delete.delay.ms": "0", "retention.ms": "1"})
    if whole:
        bench.replicas.remove(partition)
        dirs.delete("t", 0, 0)
    else:
        partition.log.roll()
        assert partition.log.retain(10**12) == 1
    bench.clock.now += 10**9
    files.error = error

    async def remove() -> None:
        keeper = Housekeeping(bench.replicas, dirs, bench.clock, Intervals())
        await keeper.remove_files()
        await keeper.stop()

    asyncio.run(remove())
    assert files.threads
    assert all(name.startswith("remove") for name in files.threads)
    assert dirs.dirs[0].online == (error is None)
    if error is None:
        assert not [path for path in files.paths() if "delete" in path]


def test_a_flush_does_not_wait_for_a_removal_and_a_stop_does(bench: Bench) -> None:
    files = Removals()
    dirs, [partition, doomed] = written(bench, files, 2, **{"file.delete.delay.ms": "0"})
    bench.replicas.remove(doomed)
    dirs.delete("t", 1, 0)
    bench.clock.now += 10**9
    partition.log.roll()
    files.may_go_on.clear()

    async def flush() -> None:
        keeper = Housekeeping(bench.replicas, dirs, bench.clock, Intervals())
        removal = asyncio.create_task(keeper.remove_files())
        try:
            assert await asyncio.to_thread(files.begun.wait, 10)
            await asyncio.wait_for(keeper.flush_due(), 10)
            assert partition.log.recovery_point == 1
            assert not removal.done()
            removal.cancel()  # as `stop` does
            stopping = asyncio.create_task(keeper.stop())
            await asyncio.to_thread(lambda: None)
            assert not stopping.done()
        finally:
            files.may_go_on.set()
        await stopping

    asyncio.run(flush())
    assert not [path for path in files.paths() if "delete" in path]


def test_a_partition_that_is_deleted_during_its_flush_takes_no_log_dir_offline(bench: Bench) -> None:
    files = MemoryFiles()
    dirs, [partition] = written(bench, files)
    partition.log.roll()

    def delete(operation: str, path: str) -> None:
        if operation == "sync":
            files.before = None
            bench.replicas.remove(partition)
            dirs.delete("t", 0, 0)

    async def flush() -> None:
        keeper = Housekeeping(bench.replicas, dirs, bench.clock, Intervals())
        files.before = delete
        await keeper.flush_due()
        await keeper.stop()

    asyncio.run(flush())
    assert dirs.get("t", 0) is None
    assert dirs.dirs[0].online


def test_what_recovery_sealed_is_synced_without_an_append(bench: Bench) -> None:
    """It may lie below the recovery point whole, and its index be nowhere but in memory."""
    dirs, [partition] = written(bench, MemoryFiles())
    partition.log.flush()
    partition.log.sync_with_next_flush([partition.log.segments.active])

    async def flush() -> None:
        keeper = Housekeeping(bench.replicas, dirs, bench.clock, Intervals())
        await keeper.flush_due()
        await keeper.stop()

    asyncio.run(flush())
    assert not partition.log.sealed_unsynced
