"""Offset and time index: Kafka's bytes, searched by bisection, against a plain list."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.index import IndexCorrupt, OffsetIndex
from headrace.storage.memory_files import MemoryFiles
from headrace.storage.time_index import TimeIndex

BASE = 5_000_000_000


def offset_index(entries: list[tuple[int, int]], *, sealed: bool = False) -> OffsetIndex:
    files = MemoryFiles()
    index = OffsetIndex(files.open("/i"), BASE, 1 << 20, fresh=True)
    for offset, position in entries:
        index.append(BASE + offset, position)
    if sealed:
        index.seal()
    return index


def growing(size: int = 30) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, 10_000), max_size=size, unique=True).map(sorted)


@given(growing(), st.integers(0, 10_100), st.booleans())
def test_an_offset_is_found_at_the_entry_before_it(offsets: list[int], asked: int, sealed: bool) -> None:
    entries = [(offset, offset * 7) for offset in offsets]
    index = offset_index(entries, sealed=sealed)
    below = [(BASE + o, p) for o, p in entries if o <= asked]
    above = [p for o, p in entries if o > asked]
    expected = below[-1] if below else (BASE, 0)
    assert index.lookup(BASE + asked) == expected
    assert index.lookup_range(BASE + asked, 99_999) == (*expected, above[0] if above else 99_999)
    assert index.lookup_position(asked * 7) == expected


@given(growing(), st.integers(0, 10_100), st.booleans())
def test_truncation_forgets_what_comes_after_on_disk_too(offsets: list[int], cut: int, sealed: bool) -> None:
    index = offset_index([(offset, offset) for offset in offsets], sealed=sealed)
    index.truncate_to(BASE + cut)
    kept = [offset for offset in offsets if offset < cut]
    index.append(BASE + 20_000, 20_000)
    index.seal()
    assert [index.entry(n) for n in range(len(index))] == [(BASE + o, o) for o in [*kept, 20_000]]


def test_the_bytes_are_kafkas() -> None:
    index = offset_index([(3, 100), (9, 4200)], sealed=True)
    assert bytes(index.buffer()) == struct.pack(">iiii", 3, 100, 9, 4200)
    times = TimeIndex(MemoryFiles().open("/t"), BASE, 1 << 20, fresh=True)
    times.maybe_append(1_700_000_000_000, BASE + 3)
    times.maybe_append(1_700_000_000_000, BASE + 5)
    times.maybe_append(1_600_000_000_000, BASE + 6)
    times.maybe_append(1_700_000_000_001, BASE + 9)
    times.seal()
    assert bytes(times.buffer()) == struct.pack(">qiqi", 1_700_000_000_000, 3, 1_700_000_000_001, 9)


@given(growing(), st.integers(0, 10_100))
def test_a_timestamp_is_found_after_the_last_entry_below_it(times: list[int], asked: int) -> None:
    index = TimeIndex(MemoryFiles().open("/t"), BASE, 1 << 20, fresh=True)
    for number, timestamp in enumerate(times):
        index.maybe_append(timestamp, BASE + number)
    below = [(t, BASE + n) for n, t in enumerate(times) if t < asked]
    assert index.lookup(asked) == (below[-1] if below else (-1, BASE))
    index.truncate_to(BASE + 4)
    assert len(index) == min(4, len(times))


@pytest.mark.parametrize(
    "content",
    [b"\0" * 7, struct.pack(">iiii", 3, 10, 0, 20), struct.pack(">ii", 3, 5000), struct.pack(">ii", -1, 10)],
)
def test_an_offset_index_that_cannot_be_right_is_recognised(content: bytes) -> None:
    files = MemoryFiles()
    files.write("/i", content)
    with pytest.raises(IndexCorrupt):
        OffsetIndex(files.open("/i"), BASE, 1 << 20, fresh=False).check(log_size=1000)


@pytest.mark.parametrize("content", [b"\0" * 13, struct.pack(">qiqi", 9, 1, 8, 2), struct.pack(">qi", 9, -1)])
def test_a_time_index_that_cannot_be_right_is_recognised(content: bytes) -> None:
    files = MemoryFiles()
    files.write("/t", content)
    with pytest.raises(IndexCorrupt):
        TimeIndex(files.open("/t"), BASE, 1 << 20, fresh=False).check()


def test_an_index_says_when_it_is_full_and_keeps_one_entry_for_the_seal() -> None:
    index = OffsetIndex(MemoryFiles().open("/i"), 0, 35, fresh=True)
    assert [index.append(n, n) for n in range(1, 4)] == [False, False, True]
