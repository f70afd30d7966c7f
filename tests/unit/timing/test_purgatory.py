"""Operations end once, by completion, time or cancellation, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.errors import ErrorCode, KafkaError
from headrace.timing.purgatory import DelayedOperation, Purgatory, PurgatoryFull
from headrace.timing.wheel import TimerEntry, TimingWheel

MOVED = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved")


class ManualTimer:
    """The wheel on a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0
        self.wheel = TimingWheel()

    def schedule(self, entry: TimerEntry, delay_ms: float) -> None:
        self.wheel.add(entry, self.now + int(delay_ms))

    def cancel(self, entry: TimerEntry) -> bool:
        return self.wheel.cancel(entry)

    def advance(self, ms: int) -> None:
        self.now += ms
        for entry in self.wheel.advance(self.now):
            entry.on_due()


class Wait(DelayedOperation):
    """Waits until it is `ready`, and notes how it ended."""

    __slots__ = ("after", "ends", "ready")

    def __init__(self, after: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.ready = False
        self.ends: list[str] = []
        self.after = after

    def try_complete(self) -> bool:
        return self.ready

    def on_complete(self) -> None:
        self.ends.append("complete")
        self.after()

    def on_expire(self) -> None:
        self.ends.append("expire")

    def on_cancel(self, error: KafkaError) -> None:
        self.ends.append(error.code.name)


def made(**options: int) -> tuple[Purgatory, ManualTimer]:
    timer = ManualTimer()
    return Purgatory("test", timer, **options), timer


def test_what_can_be_completed_at_once_never_waits() -> None:
    purgatory, timer = made()
    wait = Wait()
    wait.ready = True
    assert purgatory.add(wait, ["a"], 100)
    assert wait.ends == ["complete"]
    assert (purgatory.size, purgatory.watched, len(timer.wheel)) == (0, 0, 0)


def test_a_check_completes_what_is_ready_and_only_that() -> None:
    purgatory, timer = made()
    waits = [Wait() for _ in range(4)]
    for wait in waits:
        assert not purgatory.add(wait, ["a", "b"], 100)
    waits[1].ready = waits[3].ready = True
    assert purgatory.check("nobody waits here") == 0
    assert purgatory.check("a") == 2
    assert purgatory.check("b") == 0
    assert [wait.ends for wait in waits] == [[], ["complete"], [], ["complete"]]
    assert (purgatory.size, purgatory.watched, len(timer.wheel)) == (2, 4, 2)
    timer.advance(100)
    assert [wait.ends for wait in waits] == [["expire"], ["complete"], ["expire"], ["complete"]]
    assert (purgatory.completed, purgatory.expired) == (2, 2)


def test_a_leader_change_ends_all_waiters_of_a_key_with_the_error() -> None:
    purgatory, timer = made()
    both, other = Wait(), Wait()
    purgatory.add(both, ["a", "b"], 100)
    purgatory.add(other, ["b"], 100)
    assert purgatory.cancel_all("a", MOVED) == 1
    assert (both.ends, other.ends) == (["NOT_LEADER_OR_FOLLOWER"], [])
    both.ready = True
    assert purgatory.check_all(["a", "b"]) == 0
    timer.advance(1000)
    assert (both.ends, other.ends) == (["NOT_LEADER_OR_FOLLOWER"], ["expire"])


def test_one_operation_is_forgotten_without_a_word() -> None:
    purgatory, timer = made()
    wait = Wait()
    purgatory.add(wait, ["a"], 100)
    assert purgatory.cancel(wait)
    assert not purgatory.cancel(wait)
    timer.advance(1000)
    assert (wait.ends, purgatory.size) == ([], 0)


def test_a_callback_may_use_the_purgatory() -> None:
    """The next request of a connection waits for the same key that has just woken the last one."""
    purgatory, _ = made()
    following = Wait()
    third = Wait()

    def go_on() -> None:
        purgatory.add(following, ["a"], 100)
        third.ready = True
        purgatory.check("a")

    wait = Wait(go_on)
    purgatory.add(wait, ["a"], 100)
    purgatory.add(third, ["a"], 100)
    wait.ready = True
    assert purgatory.check("a") == 1
    assert (wait.ends, third.ends, following.ends) == (["complete"], ["complete"], [])
    assert (purgatory.size, purgatory.watched) == (1, 1)


def test_a_failing_callback_does_not_stop_the_others() -> None:
    purgatory, _ = made()

    def fail() -> None:
        raise RuntimeError("the connection is gone")

    waits = [Wait(fail), Wait()]
    for wait in waits:
        purgatory.add(wait, ["a"], 100)
        wait.ready = True
    assert purgatory.check("a") == 2
    assert waits[1].ends == ["complete"]


def test_a_full_purgatory_refuses_by_name_and_keeps_nothing() -> None:
    purgatory, timer = made(max_operations=2)
    for _ in range(2):
        purgatory.add(Wait(), ["a"], 100)
    refused = Wait()
    with pytest.raises(PurgatoryFull, match="2 operations"):
        purgatory.add(refused, ["a"], 100)
    assert (purgatory.size, purgatory.watched, len(timer.wheel)) == (2, 2, 2)
    timer.advance(100)
    assert not purgatory.add(refused, ["a"], 100)


def test_ended_operations_are_purged_from_keys_nobody_checks() -> None:
    purgatory, _ = made(purge_interval=10)
    for n in range(1000):
        wait = Wait()
        purgatory.add(wait, ["busy", f"quiet {n}"], 100)
        wait.ready = True
        purgatory.check("busy")
        assert purgatory.watched <= 12
    assert purgatory.keys <= 12


def test_purging_is_paid_for_by_what_ended() -> None:
    """With many waiting, a purge waits until as many have ended: each list entry is looked at a few times at most."""
    purgatory, _ = made(purge_interval=10)
    looks = 0

    class Counting(list[DelayedOperation]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            nonlocal looks
            looks += len(self)
            return super().__iter__()

    for n in range(2000):
        purgatory.add(Wait(), [n], 100)
    purgatory._watchers = {key: Counting(waiting) for key, waiting in purgatory._watchers.items()}
    for _ in range(1000):
        wait = Wait()
        purgatory.add(wait, ["busy", "quiet"], 100)
        wait.ready = True
        purgatory.check("busy")
    assert looks <= 2000


class PurgatoryMachine(RuleBasedStateMachine):
    """Any order of adding, checking, cancelling and time passing."""

    def __init__(self) -> None:
        super().__init__()
        self.purgatory, self.timer = made(purge_interval=3)
        self.waits: list[tuple[Wait, set[int], int]] = []

    @rule(keys=st.sets(st.integers(0, 5), min_size=1), timeout=st.integers(1, 1000))
    def add(self, keys: set[int], timeout: int) -> None:
        wait = Wait()
        self.purgatory.add(wait, keys, timeout)
        self.waits.append((wait, keys, self.timer.now + timeout))

    @rule(number=st.integers(0, 100), key=st.integers(0, 5))
    def complete(self, number: int, key: int) -> None:
        waiting = [wait for wait, keys, _ in self.waits if not wait.ends and key in keys]
        if waiting:
            wait = waiting[number % len(waiting)]
            wait.ready = True
            assert self.purgatory.check(key) == 1
            assert wait.ends == ["complete"]

    @rule(key=st.integers(0, 5))
    def cancel_all(self, key: int) -> None:
        waiting = [wait for wait, keys, _ in self.waits if not wait.ends and key in keys]
        assert self.purgatory.cancel_all(key, MOVED) == len(waiting)
        assert all(wait.ends == ["NOT_LEADER_OR_FOLLOWER"] for wait in waiting)

    @rule(ms=st.integers(0, 500))
    def advance(self, ms: int) -> None:
        waiting = [(wait, due) for wait, _, due in self.waits if not wait.ends]
        self.timer.advance(ms)
        assert all(bool(wait.ends) == (due <= self.timer.now) for wait, due in waiting)

    @invariant()
    def counts_are_right(self) -> None:
        waiting = [keys for wait, keys, _ in self.waits if not wait.ends]
        lists = self.purgatory._watchers.values()
        assert self.purgatory.size == len(waiting) == len(self.timer.wheel)
        assert self.purgatory.watched == sum(map(len, lists))
        assert self.purgatory._stale == sum(op.ended for ops in lists for op in ops)
        assert self.purgatory.watched - self.purgatory._stale == sum(map(len, waiting))
        assert all(len(wait.ends) <= 1 for wait, _, _ in self.waits)


PurgatoryMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestPurgatoryMachine = PurgatoryMachine.TestCase
