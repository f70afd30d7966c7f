"""Moves between the log directories of one broker, on real files."""

import asyncio
import os
import random
from pathlib import Path

import pytest
from tests.unit.broker.conftest import TOPIC_ID, Bench, batch

from headrace.broker.log_dir_moves import LogDirMoves
from headrace.broker.partition import Partition
from headrace.cluster.image import Partition as State
from headrace.errors import ErrorCode, KafkaError
from headrace.storage.config import LogConfig
from headrace.storage.files import OsFiles
from headrace.storage.log_dirs import LogDirs


class Disks:
    """A bench with two log directories and one leader in the first."""

    def __init__(self, bench: Bench, path: Path) -> None:
        self.bench = bench
        self.paths = [str(path / "a"), str(path / "b")]
        self.dirs = self.open()
        self.moves = LogDirMoves(bench.replicas, self.dirs, bench.clock)
        log = self.dirs.create("t", 0, TOPIC_ID)
        self.partition = Partition("t", TOPIC_ID, 0, 0, log, 0)
        bench.replicas.add(self.partition)
        self.partition.lead(State(0, 3, (0,), (0,)), 0.0)
        self.other = next(p for p in self.paths if p != self.where())

    def open(self) -> LogDirs:
        dirs = LogDirs(
            OsFiles(),
            self.paths,
            node_id=0,
            cluster_id="c",
            config_of=lambda _: LogConfig.of({"segment.bytes": "2000"}),
            random=random.Random(7),
        )
        dirs.load()
        return dirs

    def append(self, count: int, first: int = 0) -> None:
        for number in range(first, first + count):
            sent = batch(b"x" * 100, producer_id=9, producer_epoch=0, base_sequence=number)
            self.partition.append(sent, 1, 1)

    def where(self) -> str:
        return os.path.dirname(self.partition.log.folder)

    def content(self) -> bytes:
        log = self.partition.log
        return log.read(log.log_start_offset, 1 << 30, upto=log.log_end_offset).read()

    async def moved(self) -> None:
        async with asyncio.timeout(20):
            while self.moves.future_of(self.partition) is not None:
                await asyncio.sleep(0.001)


@pytest.fixture
def disks(bench: Bench, tmp_path: Path) -> Disks:
    return Disks(bench, tmp_path)


async def test_a_replica_moves_with_all_it_holds_while_it_is_written_to(disks: Disks) -> None:
    disks.append(50)
    disks.moves.move(disks.partition, disks.other)
    assert disks.moves.future_of(disks.partition) is not None
    written = 50
    while disks.moves.future_of(disks.partition) is not None:
        disks.append(1, written)
        written += 1
        await asyncio.sleep(0)
        if written > 200:
            await asyncio.sleep(0.001)
    assert disks.where() == disks.other
    assert disks.partition.log.log_end_offset == written
    assert disks.partition.log.epochs.entries() == [(3, 0)]
    again = batch(b"x" * 100, producer_id=9, producer_epoch=0, base_sequence=written - 1)
    assert disks.partition.append(again, 1, 1).duplicate, "the producers' state came along"
    disks.append(1, written)
    content = disks.content()
    disks.dirs.close()
    reopened = disks.open()
    log = reopened.logs["t", 0]
    assert log.read(0, 1 << 30, upto=log.log_end_offset).read() == content
    assert os.path.dirname(log.folder) == disks.other


async def test_a_move_to_nowhere_is_refused_and_one_to_where_it_is_does_nothing(disks: Disks) -> None:
    with pytest.raises(KafkaError) as refused:
        disks.moves.move(disks.partition, "/nowhere")
    assert refused.value.code is ErrorCode.LOG_DIR_NOT_FOUND
    disks.moves.move(disks.partition, disks.where())
    assert disks.moves.future_of(disks.partition) is None


async def test_a_move_that_is_given_up_leaves_no_files(disks: Disks) -> None:
    disks.append(50)
    disks.moves.move(disks.partition, disks.other)
    disks.moves.move(disks.partition, disks.where())
    await disks.moved()
    assert not [name for name in os.listdir(disks.other) if name.startswith("t-0")]
    assert disks.partition.log.log_end_offset == 50


async def test_a_log_that_is_cut_during_its_move_is_copied_anew(disks: Disks) -> None:
    disks.append(100)
    disks.moves.move(disks.partition, disks.other)
    await asyncio.sleep(0)
    disks.partition.log.truncate_to(40)
    disks.append(5, 40)
    content = disks.content()
    await disks.moved()
    assert disks.where() == disks.other
    assert disks.content() == content


@pytest.mark.parametrize("renamed", [False, True])
def test_a_crash_during_a_move_leaves_one_log(disks: Disks, renamed: bool) -> None:
    disks.append(30)
    content = disks.content()
    target = next(d for d in disks.dirs.dirs if d.path == disks.other)
    future = disks.dirs.begin_move("t", 0, target)
    future.append_as_follower(memoryview(content))
    future.close()
    disks.partition.log.close()
    if renamed:
        folder = disks.partition.log.folder
        os.rename(folder, f"{folder}.{'0' * 32}-delete")
    disks.dirs.release()
    log = disks.open().logs["t", 0]
    assert os.path.dirname(log.folder) == (disks.other if renamed else disks.where())
    assert log.read(0, 1 << 30, upto=log.log_end_offset).read() == content
    assert not [name for name in os.listdir(disks.other) if name.endswith("-future")]
