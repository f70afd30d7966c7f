"""Opening a log after the worst: torn tails, damaged and missing indexes, a hole in the middle."""

from __future__ import annotations

from random import Random

import pytest
from tests.unit.storage.log_samples import FOLDER, NOW, batch, content, fill, idempotent, make_log, offsets, reopen

from headrace.records.batch import batches
from headrace.storage.config import LogConfig
from headrace.storage.log import Log
from headrace.storage.memory_files import MemoryFiles
from headrace.storage.recovery import Known, open_log
from headrace.storage.segment import file_name

CONFIG = {"segment_bytes": 400, "index_interval_bytes": 100}


def written(count: int = 14, **config: object) -> tuple[MemoryFiles, Log]:
    files = MemoryFiles()
    log = make_log(files, **{**CONFIG, **config})
    for number in range(count):
        log.append_as_leader(idempotent(number, timestamp=NOW + number), number // 5, NOW)
    return files, log


def scribble(files: MemoryFiles, name: str, position: int, data: bytes) -> None:
    content = bytearray(files.read(f"{FOLDER}/{name}"))
    content[position : position + len(data)] = data
    files.write(f"{FOLDER}/{name}", bytes(content))


@pytest.mark.parametrize("tail", [b"\x00" * 200, b"\xff" * 13, bytes(batch())[:-1], bytes(batch())])
def test_a_torn_tail_is_cut_at_the_last_valid_batch(tail: bytes) -> None:
    # A whole batch with an offset that does not grow is no better than half of one.
    files, log = written(3)
    log.segments.active.log.append(tail)
    again = reopen(log)
    assert offsets(again) == [0, 1, 2]
    assert again.segments.active.log.size() == again.size
    fill(again, 1)
    assert offsets(again) == [0, 1, 2, 3]
    assert not [name for name in files.scan(FOLDER) if name.endswith(".damaged")]


def test_recovery_brings_back_epochs_producers_and_indexes() -> None:
    files, log = written()
    before = {n: files.read(f"{FOLDER}/{n}") for n in files.scan(FOLDER) if n.endswith("index")}
    for name in files.scan(FOLDER):
        if not name.endswith(".log"):
            files.remove(f"{FOLDER}/{name}")
    again = make_log(files, **CONFIG)
    assert again.epochs.entries() == log.epochs.entries() == [(0, 0), (1, 5), (2, 10)]
    assert again.append_as_leader(idempotent(13), 2, NOW).duplicate
    assert {n: files.read(f"{FOLDER}/{n}") for n in before} == before


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "odd size", "empty", "last entry"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_index_is_made_anew(suffix: str, damage: str, clean: bool) -> None:
    files, log = written()
    log.close()
    name = file_name(0, suffix)
    path = f"{FOLDER}/{name}"
    before = files.read(path)
    match damage:
        case "missing":
            files.remove(path)
        case "odd size":
            files.write(path, before + b"\x01")
        case "empty":
            files.write(path, b"")
        case _:
            files.write(path, before[:-8] + b"\x00\x00\x00\x00\x7f\xff\xff\xff")
    again = make_log(files, Known(log.recovery_point, 0, clean), **CONFIG)
    for offset in range(14):
        assert content(again, offset)[0].base_offset == offset
        if not (clean and damage == "last entry" and suffix == ".timeindex"):
            # A time index of the right size is only looked into after an unclean stop.
            assert again.offset_for_timestamp(NOW + offset) == (NOW + offset, offset, offset // 5)
    if not clean or damage in ("missing", "odd size"):
        assert files.read(path) == before


def test_indexes_stay_whole_over_stops_and_cuts(caplog: pytest.LogCaptureFixture) -> None:
    _, log = written(1, segment_bytes=4_000, index_interval_bytes=400)
    for number in range(1, 8):
        log = reopen(log, clean=True)
        fill(log, 1, start=NOW + number)
    # The latest timestamp lies before an entry of the offset index, and the cut between the two: again and again.
    for number in range(8, 16):
        fill(log, 1, start=NOW + number)
        end = log.log_end_offset
        fill(log, 6, start=NOW, step=0)
        log.truncate_to(end)
        assert log.segments.active.largest() == (NOW + number, end - 1)
    log = reopen(log, clean=True)
    log.roll()
    fill(log, 1, start=NOW + 16)
    log.flush()
    log = reopen(log)
    assert not caplog.messages
    assert len(log.segments) == 2
    for number in range(17):
        assert log.offset_for_timestamp(NOW + number) == (NOW + number, number, 0)


def test_damage_in_the_middle_ends_the_log_there_and_keeps_the_rest_aside() -> None:
    files, log = written()
    segments = list(log.segments)
    assert len(segments) >= 4
    hurt = segments[1]
    second = list(hurt.headers())[1]
    scribble(files, file_name(hurt.base_offset, ".log"), second.position + 65, b"\xde\xad")
    after = files.read(hurt.log.path)[second.position :]
    later = {s.base_offset: files.read(s.log.path) for s in segments[2:]}
    again = make_log(files, **CONFIG)
    assert offsets(again) == list(range(second.base_offset))
    assert files.read(f"{hurt.log.path}.damaged") == after
    for base, data in later.items():
        assert files.read(f"{FOLDER}/{file_name(base, '.log.damaged')}") == data
    fill(again, 3, epoch=9)
    assert offsets(reopen(again)) == list(range(second.base_offset + 3))


def test_a_segment_below_the_recovery_point_is_not_read() -> None:
    files, log = written()
    log.flush()
    files.reads.clear()
    reopen(log)
    active = log.segments.active.log.path
    assert {path for path, _, _ in files.reads} == {active}


def test_a_clean_start_reads_no_log() -> None:
    files, log = written()
    log.close()
    files.reads.clear()
    again = make_log(files, Known(log.recovery_point, 0, True), **CONFIG)
    assert files.reads == []
    assert (again.log_end_offset, again.latest_epoch) == (14, 2)
    assert again.append_as_leader(idempotent(13), 2, NOW).duplicate
    fill(again, 5)
    assert offsets(again) == list(range(19))


def test_a_clean_start_of_a_log_without_its_snapshot_reads_instead_of_guessing() -> None:
    files, log = written()
    log.close()
    for name in files.scan(FOLDER):
        if name.endswith(".snapshot"):
            files.remove(f"{FOLDER}/{name}")
    again = make_log(files, Known(log.recovery_point, 0, True), **CONFIG)
    assert again.log_end_offset == 14
    assert again.append_as_leader(idempotent(13), 2, NOW).duplicate


def test_damaged_snapshots_and_epochs_are_read_from_the_log() -> None:
    files, log = written()
    log.close()
    for name in files.scan(FOLDER):
        if name.endswith(".snapshot") or name == "leader-epoch-checkpoint":
            scribble(files, name, 2, b"\xff\xff\xff")
    again = make_log(files, Known(log.recovery_point, 0, True), **CONFIG)
    assert again.epochs.entries() == [(0, 0), (1, 5), (2, 10)]
    assert again.append_as_leader(idempotent(13), 2, NOW).duplicate


def test_a_log_that_ends_before_its_start_begins_anew() -> None:
    files, _ = written()
    again = make_log(files, Known(log_start_offset=40), **CONFIG)
    assert (again.log_start_offset, again.log_end_offset) == (40, 40)
    fill(again, 1)
    assert offsets(reopen(again)) == [40]


def test_batches_larger_than_the_reading_chunk_are_recovered() -> None:
    files = MemoryFiles()
    log = make_log(files, max_message_bytes=10_000_000)
    for size in (10, 3_000_000, 10, 1_048_000, 2_000_000):
        log.append_as_leader(batch(value=b"v" * size), 0, NOW)
    assert offsets(reopen(log)) == list(range(5))


def test_a_swap_that_had_begun_is_finished_and_one_that_had_not_is_undone() -> None:
    files, log = written()
    first, second = list(log.segments)[:2]
    both = files.read(first.log.path) + files.read(second.log.path)
    kept = both[: len(files.read(first.log.path))]
    files.write(f"{FOLDER}/{file_name(0, '.log.swap')}", kept + both[len(kept) :])
    again = make_log(files, **{**CONFIG, "cleanup_policy": "compact"})
    assert offsets(again) == list(range(14))
    assert again.segments.first.size == len(both)

    files.write(f"{FOLDER}/{file_name(0, '.log.swap')}", b"")
    files.write(f"{FOLDER}/{file_name(0, '.index.cleaned')}", b"")
    again = make_log(files, **CONFIG)
    assert [b.base_offset for b in batches(again.read(0, 1 << 20, upto=14).read())] == list(range(14))


def test_a_producer_is_known_after_a_kill_although_its_records_are_gone() -> None:
    _, log = written(6)
    log.roll()
    fill(log, 1, start=NOW + 10**12)
    log.retain(NOW + 10**12)
    assert log.log_start_offset == 6
    log.flush()
    assert reopen(log).append_as_leader(idempotent(5), 2, NOW).duplicate


def test_a_cut_that_the_disk_forgot_does_not_bring_back_what_was_cut_off() -> None:
    """The segment before the recovery point ends there only because it was cut, and the power went too early."""
    files = MemoryFiles()
    log = make_log(files)
    fill(log, 4)
    size = log.segments.active.size
    fill(log, 1)
    log.flush()
    log.truncate_to(4)
    log.update_config(LogConfig.of({"segment.bytes": str(size)}))
    fill(log, 2, epoch=1)
    assert [segment.base_offset for segment in log.segments] == [0, 4]
    log.segments.active.log.sync()
    files.sync_dir(FOLDER)
    files.crash()
    again = make_log(files, Known(recovery_point=4))
    assert offsets(again) == [0, 1, 2, 3, 4]
    assert [each.leader_epoch for each in content(again)] == [0] * 5


def test_an_index_that_recovery_made_anew_is_durable_after_the_next_stop() -> None:
    """Also that of a segment which ends at the recovery point: its records were durable, its new index is not."""
    log = make_log()
    fill(log, 1)
    log.roll()
    log.close()
    files = log.files
    assert isinstance(files, MemoryFiles)
    open_log(files, FOLDER, log.config, Known(recovery_point=1))
    files.crash(Random(0))
    open_log(files, FOLDER, log.config, Known(recovery_point=1)).close()
    files.crash()
    files.reads.clear()
    open_log(files, FOLDER, log.config, Known(recovery_point=1, clean=True))
    assert not [path for path, _, _ in files.reads if path.endswith(".log")]
