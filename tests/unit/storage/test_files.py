"""The operating system's files: bounded descriptors and maps, and ranges that outlive both."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from random import Random

import pytest
from tests.unit.storage.log_samples import NOW, batch, remove_deleted

from headrace.storage.config import LogConfig
from headrace.storage.files import DIRECTORY, OsFiles
from headrace.storage.memory_files import MemoryFiles
from headrace.storage.recovery import open_log


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_open_files_and_maps_stay_within_their_limits(tmp_path: Path) -> None:
    files = OsFiles(max_open=8, max_maps=4)
    before = descriptors()
    opened = [files.open(str(tmp_path / f"{number}")) for number in range(50)]
    for _ in range(3):
        for number, file in enumerate(opened):
            file.append(b"%04d" % number)
            assert file.pread(4, 0) == b"%04d" % number
            assert file.map()[:4] == b"%04d" % number
            assert files.open_count <= 8
            assert files.map_count <= 4
            assert descriptors() - before <= 8 + 4 + 1
    for file in opened:
        file.close()
    assert descriptors() == before


def test_a_file_in_use_stays_open_while_others_come_and_go(tmp_path: Path) -> None:
    files = OsFiles(max_open=4)
    busy = files.open(str(tmp_path / "busy"))
    busy.append(b"x")
    handle = busy.handle()
    for number in range(20):
        files.open(str(tmp_path / f"{number}")).append(b"y")
        busy.append(b"x")
    assert busy.handle() is handle


def test_a_range_is_sent_after_its_file_was_let_go_and_removed(tmp_path: Path) -> None:
    log = open_log(OsFiles(max_open=2), str(tmp_path / "orders-0"), LogConfig.of({"segment.bytes": 300}))
    for _ in range(9):
        log.append_as_leader(batch(), 0, NOW)
    info = log.read(0, 1 << 20, upto=9)
    expected = info.read()
    log.retain(NOW + 10**12)
    remove_deleted(log, NOW + 10**13)
    assert not list(tmp_path.glob("orders-0/00000000000000000000.log*"))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for part in info.ranges:
            sent = 0
            while sent < part.length:
                sent += os.sendfile(ours.fileno(), part.file.fileno(), part.position + sent, part.length - sent)
        ours.shutdown(socket.SHUT_WR)
        received = b""
        while data := theirs.recv(65536):
            received += data
    assert received == expected


def test_reading_what_is_not_there_creates_nothing(tmp_path: Path) -> None:
    file = OsFiles().open(str(tmp_path / "absent"))
    with pytest.raises(FileNotFoundError):
        file.pread(1, 0)
    with pytest.raises(FileNotFoundError):
        file.map()
    file.remove()
    assert OsFiles().scan(str(tmp_path)) == {}


def test_a_full_disk_leaves_no_part_of_a_batch_behind(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full here")
    (tmp_path / "file").symlink_to(full)
    with pytest.raises(OSError, match="No space left"):
        OsFiles().open(str(tmp_path / "file")).append(b"x")


@pytest.mark.parametrize("kind", ["os", "memory"])
def test_both_file_systems_do_the_same(kind: str, tmp_path: Path) -> None:
    files = OsFiles() if kind == "os" else MemoryFiles()
    root = str(tmp_path)
    files.mkdir(f"{root}/d/e")
    files.mkdir(f"{root}/d/e")
    files.write(f"{root}/d/f", b"12345")
    file = files.open(f"{root}/d/f")
    file.append(b"67")
    assert (file.size(), file.pread(3, 5), file.pread(9, 9)) == (7, b"67", b"")
    file.truncate(2)
    file.append(b"x")
    buffer = bytearray(5)
    assert file.pread_into(memoryview(buffer), 1) == 2
    assert buffer == b"2x\0\0\0"
    file.sync()
    held = file.handle()
    assert files.scan(f"{root}/d") == {"e": DIRECTORY, "f": 3}
    file.rename(f"{root}/d/g")
    file.append(b"y")
    files.rename(f"{root}/d", f"{root}/h")
    assert files.read(f"{root}/h/g") == b"12xy"
    assert not files.exists(f"{root}/d")
    files.remove(f"{root}/h/g")
    files.remove(f"{root}/h/g")
    assert held.pread(9, 0) == b"12xy"
    files.sync_dir(f"{root}/h")
    with pytest.raises(FileNotFoundError):
        files.read(f"{root}/h/g")
    with pytest.raises(FileNotFoundError):
        files.scan(f"{root}/d")
    files.remove_tree(f"{root}/h")
    assert not files.exists(f"{root}/h/e")
    lock = files.lock(f"{root}/lock")
    with pytest.raises(BlockingIOError):
        files.lock(f"{root}/lock")
    lock.release()
    files.lock(f"{root}/lock")


def test_a_crash_keeps_what_was_synced_and_at_most_a_torn_part_of_the_rest() -> None:
    kept = set()
    for seed in range(60):
        files = MemoryFiles()
        files.mkdir("/d")
        file = files.open("/d/f")
        file.append(b"abc")
        file.sync()
        files.sync_dir("/d")
        file.append(b"def")
        files.open("/d/g").append(b"new")
        files.crash(Random(seed))
        content = files.read("/d/f")
        assert content.startswith(b"abc")
        assert b"abcdef".startswith(content.rstrip(b"\0"))
        kept.add((len(content.rstrip(b"\0")), files.exists("/d/g")))
    assert {length for length, _ in kept} == {3, 4, 5, 6}
    assert {there for _, there in kept} == {True, False}
    files.crash()
    assert files.read("/d/f").startswith(b"abc")


def test_a_folder_made_anew_never_gets_the_files_of_the_one_that_was_renamed_away() -> None:
    """Power goes at a moment when every name may or may not be on disk."""
    for seed in range(200):
        files = MemoryFiles()
        files.mkdir("/data/t-0")
        files.sync_dir("/data/t-0")
        files.open("/data/t-0/0.log").append(b"old")
        files.rename("/data/t-0", "/data/t-0.delete")
        files.mkdir("/data/t-0")
        files.open("/data/t-0/1.log").append(b"new")
        if seed % 2:
            files.sync_dir("/data")
        files.crash(Random(seed))
        held = {path: set(files.scan(path)) for path in ("/data/t-0", "/data/t-0.delete") if files.exists(path)}
        if "/data/t-0.delete" in held:
            assert held["/data/t-0.delete"] <= {"0.log"}, seed
            assert held.get("/data/t-0", set()) <= {"1.log"}, seed
        else:
            assert held["/data/t-0"] <= {"0.log"}, seed
