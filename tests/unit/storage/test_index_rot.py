"""One rotten bit in an index, wherever it is: what is intact is found, and the index is as it was."""

from __future__ import annotations

import pytest
from tests.unit.storage.log_samples import FOLDER, NOW, batch, make_log

from headrace.records.batch import batches
from headrace.storage.log import Log
from headrace.storage.memory_files import MemoryFiles
from headrace.storage.recovery import Known
from headrace.storage.segment import file_name

COUNT = 7


def sealed(interval: int) -> tuple[MemoryFiles, Known]:
    """A log of which the first segment is sealed and holds `COUNT` batches, two records each, one time step apart."""
    files = MemoryFiles()
    log = make_log(files, segment_bytes=COUNT * len(batch(2)), index_interval_bytes=interval)
    for number in range(COUNT + 2):
        log.append_as_leader(batch(2, timestamp=NOW + number * 10), 0, NOW)
    log.close()
    assert len(log.segments.first.offsets) > 2
    return files, Known(log.recovery_point, 0, True)


def flips(files: MemoryFiles, path: str) -> list[int]:
    """Every third bit: no byte and no place in a byte is left out, and it takes a second."""
    return list(range(0, 8 * len(files.read(path)), 3))


def rotten(interval: int, suffix: str, bit: int) -> Log:
    files, known = sealed(interval)
    files.node(f"{FOLDER}/{file_name(0, suffix)}").data[bit // 8] ^= 1 << bit % 8
    return make_log(files, known, segment_bytes=COUNT * len(batch(2)), index_interval_bytes=interval)


@pytest.mark.parametrize("interval", [0, 250])
@pytest.mark.parametrize("max_bytes", [1, 300, 1 << 20])
def test_every_offset_is_read_whatever_bit_of_the_offset_index_rots(interval: int, max_bytes: int) -> None:
    for bit in flips(sealed(interval)[0], f"{FOLDER}/{file_name(0, '.index')}"):
        log = rotten(interval, ".index", bit)
        for offset in range(2 * COUNT):
            for upto in {log.log_end_offset, min(offset + 5, 2 * COUNT)}:
                read = log.read(offset, max_bytes, upto=upto).read()
                found = batches(read)
                assert found[0].base_offset == offset // 2 * 2, f"bit {bit}"
                assert found[-1].position + found[-1].size == len(read), f"bit {bit}"
                assert found[-1].last_offset <= upto, f"bit {bit}"


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("interval", [0, 250])
def test_every_time_is_found_and_nothing_ages_whatever_bit_rots(suffix: str, interval: int) -> None:
    for bit in flips(sealed(interval)[0], f"{FOLDER}/{file_name(0, suffix)}"):
        log = rotten(interval, suffix, bit)
        for number in range(COUNT):
            assert log.offset_for_timestamp(NOW + number * 10) == (NOW + number * 10, number * 2, 0), f"bit {bit}"
        assert log.segments.first.largest().timestamp == NOW + (COUNT - 1) * 10 + 1, f"bit {bit}"


def test_an_index_that_rots_again_is_made_anew_again() -> None:
    files, known = sealed(0)
    log = make_log(files, known, segment_bytes=COUNT * len(batch(2)), index_interval_bytes=0)
    path = f"{FOLDER}/{file_name(0, '.index')}"
    whole = files.read(path)
    for _ in range(3):
        files.node(path).data[24] ^= 0x40
        assert batches(log.read(13, 1, upto=2 * COUNT).read())[0].base_offset == 12
        assert files.read(path) == whole
