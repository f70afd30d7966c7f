"""The wheel against a sorted list, which is slow and obviously right."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.timing.wheel import TimerEntry, TimingWheel

# Delays that meet the edges of levels (20, 400, 8000, 160000 ms) as often as the middle.
DELAYS = st.one_of(
    st.integers(-5, 50),
    st.integers(0, 2_000_000),
    st.sampled_from([20, 400, 8_000, 160_000]).flatmap(lambda edge: st.integers(edge - 2, edge + 2)),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), DELAYS),
        st.tuples(st.just("cancel"), st.integers(0, 1000)),
        st.tuples(st.just("advance"), DELAYS.map(abs)),
        st.tuples(st.just("next"), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(start=st.integers(0, 10**12), steps=STEPS)
def test_it_does_what_a_sorted_list_does(start: int, steps: list[tuple[str, int]]) -> None:
    wheel = TimingWheel(start)
    now = start
    pending: list[TimerEntry] = []
    moments: dict[TimerEntry, int] = {}
    for step, value in steps:
        if step == "add":
            entry = TimerEntry()
            wheel.add(entry, now + value)
            pending.append(entry)
            moments[entry] = max(now, now + value)
        elif step == "cancel" and pending:
            entry = pending.pop(value % len(pending))
            assert wheel.cancel(entry)
            assert not wheel.cancel(entry)
        elif step == "advance":
            now += value
        elif step == "next":
            now = _check_next(wheel, pending, now)
        if step in ("advance", "next"):
            due = [entry for entry in pending if entry.due_ms <= now]
            expired = wheel.advance(now)
            assert set(expired) == set(due)
            assert [moments[entry] for entry in expired] == sorted(moments[entry] for entry in due)
            pending = [entry for entry in pending if entry not in due]
        assert len(wheel) == len(pending)
        assert all(entry.pending for entry in pending)


def _check_next(wheel: TimingWheel, pending: list[TimerEntry], now: int) -> int:
    """`next_due_ms` is never later than the first entry, and following it gets there in a step for each level."""
    if not pending:
        assert wheel.next_due_ms() is None
        return now
    first = min(entry.due_ms for entry in pending)
    for _ in range(12):
        due = wheel.next_due_ms()
        assert due is not None
        assert due <= max(first, now)
        now = max(now, due)
        if now >= first:
            return now
        assert wheel.advance(now) == []
    raise AssertionError(f"{first} was not reached")


def test_entries_of_one_tick_come_in_the_order_they_were_added() -> None:
    wheel = TimingWheel()
    entries = [TimerEntry() for _ in range(50)]
    for entry in entries:
        wheel.add(entry, 9_000)
    assert wheel.advance(8_999) == []
    assert wheel.advance(9_000) == entries


def test_an_entry_is_added_once() -> None:
    wheel, entry = TimingWheel(), TimerEntry()
    wheel.add(entry, 5)
    with pytest.raises(ValueError, match="already"):
        wheel.add(entry, 6)
    assert wheel.advance(5) == [entry]
    wheel.add(entry, 7)
    assert wheel.advance(7) == [entry]


def test_the_heap_stays_as_small_as_the_buckets() -> None:
    """Adding and cancelling for ever must leave nothing behind."""
    wheel = TimingWheel()
    entry = TimerEntry()
    for now in range(5_000):
        wheel.advance(now)
        wheel.add(entry, now + 500)
        wheel.cancel(entry)
    assert len(wheel) == 0
    assert len(wheel._heap) <= 20 * len(wheel._levels)
    assert wheel.next_due_ms() is None
    assert wheel._heap == []
