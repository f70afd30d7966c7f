"""The id that says whether a broker may have lost records between two starts."""

from __future__ import annotations

import errno
import random
import uuid
from collections.abc import Sequence

import pytest

from headrace.records.record import Record, build
from headrace.storage.config import LogConfig
from headrace.storage.log_dirs import LogDirs
from headrace.storage.memory_files import MemoryFiles


def start(files: MemoryFiles, paths: Sequence[str] = ("/a", "/b")) -> LogDirs:
    dirs = LogDirs(
        files, paths, node_id=1, cluster_id="c", config_of=lambda _: LogConfig.of({}), random=random.Random(files.boots)
    )
    dirs.load()
    return dirs


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def test_it_stays_when_the_process_stops_in_order_and_the_machine_restarts(files: MemoryFiles) -> None:
    first = start(files)
    first.close()
    files.crash()
    assert start(files).lineage == first.lineage != ""


def test_it_stays_when_the_process_is_killed(files: MemoryFiles) -> None:
    first = start(files)
    files.locks.clear()
    assert start(files).lineage == first.lineage


def test_it_changes_with_the_power(files: MemoryFiles) -> None:
    first = start(files)
    files.crash()
    assert start(files).lineage not in ("", first.lineage)


def test_it_changes_when_one_of_the_dirs_is_new(files: MemoryFiles) -> None:
    first = start(files)
    first.close()
    files.remove_tree("/b")
    assert start(files).lineage not in ("", first.lineage)


def test_it_changes_after_a_disk_failed(files: MemoryFiles) -> None:
    first = start(files)
    first.create("t", 0, uuid.UUID(int=1))
    first.fail(first.dirs[1], OSError(errno.EIO, "bad sector"))
    first.close()
    files.locks.clear()
    assert start(files).lineage not in ("", first.lineage)


def test_it_changes_when_a_log_had_to_be_cut(files: MemoryFiles) -> None:
    """A damaged batch ends the log that recovery reads, although the machine never stopped."""
    first = start(files)
    log = first.create("t", 0, uuid.UUID(int=1))
    for value in (b"one", b"two"):
        log.append_as_leader(memoryview(build([Record(0, 0, None, value)])), 0, 0)
    [path] = [path for path in files.paths() if path.endswith(".log")]
    files.node(path).data[-1] ^= 1
    files.locks.clear()
    again = start(files)
    assert again.logs["t", 0].log_end_offset == 1
    assert again.lineage not in ("", first.lineage)
