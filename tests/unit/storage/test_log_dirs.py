"""Several log dirs: placement, claims, checkpoints, clean and unclean stops, deletion, and a disk that goes."""

from __future__ import annotations

import errno
import gc
import tracemalloc
import uuid
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from tests.unit.storage.log_samples import NOW, fill, offsets, remove_deleted

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.config import LogConfig
from headrace.storage.files import Files, OsFiles
from headrace.storage.log_dirs import LogDir, LogDirs
from headrace.storage.memory_files import MemoryFiles

CONFIG = LogConfig.of({"segment.bytes": 400, "file.delete.delay.ms": 100})
PATHS = ("/a", "/b")


def open_dirs(
    files: Files, paths: tuple[str, ...] = PATHS, *, node_id: int = 1, cluster_id: str = "cluster-1"
) -> tuple[LogDirs, list[LogDir]]:
    offline: list[LogDir] = []
    dirs = LogDirs(
        files,
        paths,
        node_id=node_id,
        cluster_id=cluster_id,
        config_of=lambda topic: CONFIG,
        random=Random(3),
        on_offline=offline.append,
    )
    dirs.load()
    return dirs, offline


def failing(path: str, number: int = errno.EIO) -> Callable[[str, str], None]:
    def before(operation: str, at: str) -> None:
        if at.startswith(path):
            raise OSError(number, "disk failure", at)

    return before


def test_new_partitions_go_to_the_dir_with_the_fewest() -> None:
    dirs, _ = open_dirs(MemoryFiles())
    for partition in range(5):
        dirs.create("orders", partition)
    assert [len(log_dir.logs) for log_dir in dirs.dirs] == [3, 2]
    assert dirs.create("orders", 0) is dirs.get("orders", 0)
    assert dirs.get("orders", 9) is None


@pytest.mark.parametrize("clean", [True, False])
def test_everything_is_there_again_after_a_stop(clean: bool) -> None:
    files = MemoryFiles()
    dirs, _ = open_dirs(files)
    topic_id = uuid.UUID(int=77)
    for partition in range(4):
        log = dirs.create("orders", partition, topic_id)
        fill(log, 10 + partition, epoch=3)
    first = dirs.get("orders", 0)
    assert first is not None
    first.delete_records_before(4)
    ids = [log_dir.directory_id for log_dir in dirs.dirs]
    marks = {("orders", n): 5 + n for n in range(4)}
    if clean:
        dirs.close(marks, broker_epoch=12)
    else:
        dirs.write_checkpoints(marks)
        files.locks.clear()
    files.reads.clear()
    again, _ = open_dirs(files)
    assert bool(files.reads) is not clean
    assert again.previous_broker_epoch == (12 if clean else -1)
    assert [log_dir.directory_id for log_dir in again.dirs] == ids
    assert again.high_watermarks == marks
    assert again.topic_ids == {("orders", n): topic_id for n in range(4)}
    assert offsets(again.logs["orders", 0]) == list(range(4, 10))
    assert offsets(again.logs["orders", 3]) == list(range(13))
    assert again.logs["orders", 3].latest_epoch == 3
    # The marker is gone: a second start without a stop in between is unclean.
    files.locks.clear()
    files.reads.clear()
    open_dirs(files)
    assert files.reads


def test_the_files_of_a_log_dir_are_kafkas() -> None:
    files = MemoryFiles()
    dirs, _ = open_dirs(files, ("/a",))
    fill(dirs.create("orders", 0, uuid.UUID(int=1)), 3, epoch=2)
    dirs.close({("orders", 0): 2}, broker_epoch=5)
    assert files.read("/a/recovery-point-offset-checkpoint") == b"0\n1\norders 0 3\n"
    assert files.read("/a/log-start-offset-checkpoint") == b"0\n0\n"
    assert files.read("/a/replication-offset-checkpoint") == b"0\n1\norders 0 2\n"
    assert files.read("/a/.kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":5}'
    meta = dict(line.split("=") for line in files.read("/a/meta.properties").decode().splitlines())
    assert (meta["version"], meta["node.id"], meta["cluster.id"], len(meta["directory.id"])) == (
        "1",
        "1",
        "cluster-1",
        22,
    )
    assert set(files.scan("/a/orders-0")) == {
        "00000000000000000000.log",
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
        "00000000000000000003.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
    }
    assert files.read("/a/orders-0/leader-epoch-checkpoint") == b"0\n1\n2 0\n"
    assert files.read("/a/orders-0/partition.metadata") == b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n"


def test_a_dir_of_another_cluster_node_or_process_is_refused() -> None:
    files = MemoryFiles()
    dirs, _ = open_dirs(files)
    with pytest.raises(KafkaError, match="in use by another process"):
        open_dirs(files)
    dirs.close()
    with pytest.raises(KafkaError) as refused:
        open_dirs(files, cluster_id="cluster-2")
    assert refused.value.code is ErrorCode.INCONSISTENT_CLUSTER_ID
    files.locks.clear()
    with pytest.raises(KafkaError, match=r"node\.id=1"):
        open_dirs(files, node_id=2)


def test_a_topic_made_again_under_the_same_name_does_not_inherit() -> None:
    dirs, _ = open_dirs(MemoryFiles())
    dirs.create("orders", 0, uuid.UUID(int=1))
    with pytest.raises(KafkaError) as refused:
        dirs.create("orders", 0, uuid.UUID(int=2))
    assert refused.value.code is ErrorCode.INCONSISTENT_TOPIC_ID


def test_deletion_renames_the_folder_and_removes_it_later() -> None:
    files = MemoryFiles()
    dirs, _ = open_dirs(files, ("/a",))
    fill(dirs.create("orders", 0), 3)
    dirs.delete("orders", 0, NOW)
    assert dirs.get("orders", 0) is None
    (gone,) = [name for name in files.scan("/a") if name.startswith("orders")]
    assert gone.startswith("orders-0.")
    assert gone.endswith("-delete")
    again = dirs.create("orders", 0)
    assert again.log_end_offset == 0
    remove_deleted(dirs, NOW + 99)
    assert gone in files.scan("/a")
    remove_deleted(dirs, NOW + 100)
    assert gone not in files.scan("/a")
    dirs.delete("orders", 0, NOW)
    dirs.close()
    last, _ = open_dirs(files, ("/a",))
    remove_deleted(last, 0)
    assert not [name for name in files.scan("/a") if name.startswith("orders")]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_a_failing_dir_goes_offline_alone_with_its_partitions_named(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    files = MemoryFiles()
    dirs, offline = open_dirs(files)
    for partition in range(4):
        fill(dirs.create("orders", partition), 3)
    files.before = failing("/a", number)
    log = dirs.logs["orders", 0]
    with pytest.raises(KafkaError) as refused:
        fill(log, 1)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert [log_dir.path for log_dir in offline] == ["/a"]
    assert "orders-0, orders-2" in caplog.text
    for partition in (0, 2):
        with pytest.raises(KafkaError, match="offline in /a"):
            dirs.get("orders", partition)
        with pytest.raises(KafkaError, match="offline in /a"):
            dirs.create("orders", partition)
    fill(dirs.logs["orders", 1], 1)
    assert set(dirs.logs) == {("orders", 1), ("orders", 3)}
    dirs.create("orders", 7)
    with pytest.raises(KafkaError, match="may lie in"):
        dirs.create("orders", 8, is_new=False)
    dirs.close()
    files.before = None
    files.locks.clear()
    again, _ = open_dirs(files)
    assert offsets(again.logs["orders", 0]) == [0, 1, 2]
    assert [log_dir.clean for log_dir in again.dirs] == [False, True]


def test_a_full_disk_may_refuse_the_id_of_a_log_that_was_there_without() -> None:
    files = MemoryFiles()
    open_dirs(files)[0].create("orders", 0)
    files.locks.clear()
    dirs, offline = open_dirs(files)
    files.before = failing("/a", errno.ENOSPC)
    with pytest.raises(KafkaError) as refused:
        dirs.create("orders", 0, uuid.UUID(int=1))
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert [log_dir.path for log_dir in offline] == ["/a"]


def test_a_dir_that_cannot_be_opened_is_offline_and_without_any_there_is_an_error() -> None:
    files = MemoryFiles()
    files.before = failing("/a", errno.EROFS)
    dirs, offline = open_dirs(files)
    assert [log_dir.online for log_dir in dirs.dirs] == [False, True]
    assert len(offline) == 1
    assert dirs.create("orders", 0).folder == "/b/orders-0"
    broken = MemoryFiles()
    broken.before = failing("/")
    with pytest.raises(KafkaError, match="no log dir can be used"):
        open_dirs(broken)


def test_a_damaged_checkpoint_means_that_the_logs_are_read() -> None:
    files = MemoryFiles()
    dirs, _ = open_dirs(files)
    fill(dirs.create("orders", 0), 10)
    dirs.close()
    files.write("/a/recovery-point-offset-checkpoint", b"0\n7\norders 0 3\n")
    again, _ = open_dirs(files)
    assert offsets(again.logs["orders", 0]) == list(range(10))


def test_a_recovery_point_above_a_truncation_is_lowered_on_disk_before_the_segment_is_sealed() -> None:
    files = MemoryFiles()
    dirs, _ = open_dirs(files, ("/a",))
    log = dirs.create("orders", 0)
    fill(log, 3)
    log.flush()
    dirs.write_checkpoints()
    log.truncate_to(1)
    assert files.read("/a/recovery-point-offset-checkpoint").endswith(b"orders 0 3\n")
    fill(log, 8, epoch=1)
    assert len(log.segments) > 1
    assert files.read("/a/recovery-point-offset-checkpoint").endswith(b"orders 0 1\n")


def test_a_slow_thread_does_not_put_an_old_recovery_point_over_a_newer_one() -> None:
    files = MemoryFiles()
    dirs, _ = open_dirs(files, ("/a",))
    log = dirs.create("orders", 0)
    fill(log, 3)
    log.flush()
    [(_, write, written)] = dirs.begin_checkpoints()
    log.truncate_to(1)
    fill(log, 8, epoch=1)
    write()
    written()
    assert files.read("/a/recovery-point-offset-checkpoint").endswith(b"orders 0 1\n")


def test_a_cut_while_a_thread_writes_is_not_forgotten() -> None:
    files = MemoryFiles()
    dirs, _ = open_dirs(files, ("/a",))
    log = dirs.create("orders", 0)
    fill(log, 3)
    log.flush()
    [(_, write, written)] = dirs.begin_checkpoints()
    write()
    log.truncate_to(1)
    written()
    fill(log, 8, epoch=1)
    assert files.read("/a/recovery-point-offset-checkpoint").endswith(b"orders 0 1\n")


def test_on_a_real_disk(tmp_path: Path) -> None:
    paths = (str(tmp_path / "a"), str(tmp_path / "b"))
    dirs, _ = open_dirs(OsFiles(max_open=4, max_maps=2), paths)
    for partition in range(10):
        fill(dirs.create("orders", partition), 20)
    with pytest.raises(KafkaError, match="in use by another process"):
        open_dirs(OsFiles(), paths)
    dirs.close()
    again, _ = open_dirs(OsFiles(max_open=4, max_maps=2), paths)
    for log in again.logs.values():
        assert offsets(log) == list(range(20))
        fill(log, 1)
    again.delete("orders", 3, NOW)
    remove_deleted(again, NOW + 100)
    assert not list(tmp_path.glob("*/orders-3*"))
    assert again.files.space(paths[0])[0] > 0


def test_a_log_takes_the_settings_that_came_after_it_was_opened() -> None:
    """At a start the logs are opened before the broker has heard of any topic's settings."""
    files = MemoryFiles()
    settings = {"min.insync.replicas": "1"}

    def open_with_settings() -> LogDirs:
        dirs = LogDirs(
            files, ("/a",), node_id=1, cluster_id="c", config_of=lambda _: LogConfig.of(settings), random=Random(3)
        )
        dirs.load()
        return dirs

    open_with_settings().create("orders", 0)
    files.locks.clear()
    dirs = open_with_settings()
    settings["min.insync.replicas"] = "2"
    assert dirs.create("orders", 0).config.min_insync_replicas == 2


def test_a_partition_takes_little_memory(tmp_path: Path) -> None:
    """A broker has thousands of them; the bound is what was counted when it was written, and a little."""
    dirs, _ = open_dirs(OsFiles(), (str(tmp_path),))
    fill(dirs.create("orders", 0, uuid.uuid4()), 1)
    topic_id = uuid.uuid4()
    tracemalloc.start()
    for partition in range(1, 201):
        fill(dirs.create("orders", partition, topic_id), 1)
    dirs.begin_sync()
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    dirs.close()
    assert held / 200 < 3400
