"""What a log knows of its producers after a cut is what its remaining batches tell, however it came to know it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.unit.storage.log_samples import NOW, batch, content, idempotent, make_log, reopen

from headrace.records.batch import Batch
from headrace.records.record import ControlType, Marker, build_marker
from headrace.storage import log as log_module
from headrace.storage import recovery, snapshots
from headrace.storage.memory_files import MemoryFiles
from headrace.storage.producer_state import Producer, ProducerState

EXPIRATION_MS = 1_000


@pytest.fixture(autouse=True, scope="module")
def states_in_memory_come_often() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (log_module, recovery, snapshots):
            patch.setattr(module, "MARK_BATCHES", 6)
        yield


class Rewinding(RuleBasedStateMachine):
    """Producers that write, take new epochs, end transactions, fall silent, and lose what they wrote last."""

    @initialize()
    def begin(self) -> None:
        self.log = make_log(MemoryFiles(), segment_bytes=4_000)
        self.now = NOW
        self.epochs: dict[int, int] = {}
        self.expired: dict[int, list[int]] = {}
        """Where the log ended when a producer was forgotten."""

    @rule(producer=st.integers(0, 3), counts=st.lists(st.integers(1, 2), min_size=1, max_size=6), open_=st.booleans())
    def write(self, producer: int, counts: list[int], open_: bool) -> None:
        known = self.log.producers.producers.get(producer)
        epoch = known.epoch if known else self.epochs.get(producer, 0)
        sequence = known.last_sequence + 1 if known else 0
        for count in counts:
            self.now += 1
            data = idempotent(
                sequence,
                count,
                producer=producer,
                epoch=epoch,
                timestamp=self.now,
                transactional=open_ and producer > 1,
            )
            assert not self.log.append_as_leader(data, 0, self.now).duplicate
            sequence += count

    @rule(producer=st.integers(0, 3))
    def take_a_new_epoch(self, producer: int) -> None:
        known = self.log.producers.producers.get(producer)
        epoch = self.epochs[producer] = known.epoch + 1 if known else self.epochs.get(producer, 0) + 1
        self.log.append_as_leader(idempotent(0, producer=producer, epoch=epoch, timestamp=self.now), 0, self.now)

    @rule(producer=st.integers(2, 3), raises=st.booleans())
    def end_a_transaction(self, producer: int, raises: bool) -> None:
        known = self.log.producers.producers.get(producer)
        epoch = (known.epoch if known else 0) + raises
        self.now += 1
        marker = build_marker(
            Marker(ControlType.COMMIT, 3), producer_id=producer, producer_epoch=epoch, timestamp=self.now
        )
        self.log.append_as_leader(memoryview(marker), 0, self.now, from_client=False)

    @rule(count=st.integers(1, 12))
    def others_write(self, count: int) -> None:
        for _ in range(count):
            self.log.append_as_leader(batch(timestamp=self.now), 0, self.now)

    @rule(ms=st.sampled_from([1, 500, 1_100]))
    def wait_and_expire(self, ms: int) -> None:
        self.now += ms
        before = set(self.log.producers.producers)
        self.log.expire_producers(self.now, EXPIRATION_MS)
        for producer in before - set(self.log.producers.producers):
            self.expired.setdefault(producer, []).append(self.log.log_end_offset)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.log = reopen(self.log, clean=clean)
        self.check()

    @rule(back=st.integers(0, 12) | st.integers(0, 60))
    def cut(self, back: int) -> None:
        self.log.truncate_to(max(0, self.log.log_end_offset - back))
        self.check()

    def check(self) -> None:
        """Each producer is known as its batches tell; all of them, or those since it was forgotten."""
        found = [each for each in content(self.log) if each.producer_id >= 0]
        for producer_id in range(4):
            told = [self._told(found, producer_id, since) for since in (0, *self.expired.get(producer_id, ()))]
            known = self.log.producers.producers.get(producer_id)
            assert _summary(known) in [_summary(each) for each in told]
            # Fewer than five may be remembered, as after a restart: the newest ones.
            if known is not None:
                assert any(_places(known) == _places(each)[-len(known.batches) :] for each in told if each)

    def _told(self, found: list[Batch], producer_id: int, since: int) -> Producer | None:
        state = ProducerState()
        for each in found:
            if each.producer_id == producer_id and each.base_offset >= since:
                state.update(each, each.base_offset)
        return state.producers.get(producer_id)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.cut(7)


def _summary(known: Producer | None) -> tuple[int, int, int, int] | None:
    if known is None:
        return None
    return known.epoch, known.last_sequence, known.timestamp, known.transaction_start


def _places(known: Producer) -> list[tuple[int, ...]]:
    return [tuple(each)[:4] for each in known.batches]


Rewinding.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestRewinding = Rewinding.TestCase


def test_a_cut_reads_little_however_long_the_log_is() -> None:
    files = MemoryFiles()
    log = make_log(files)
    for sequence in range(300):
        log.append_as_leader(idempotent(sequence, producer=1), 0, NOW)
        log.append_as_leader(batch(), 0, NOW)
    log.append_as_leader(idempotent(0, producer=2), 0, NOW)
    assert log.size > 50_000
    files.reads.clear()
    log.truncate_to(596)
    assert log.producers.producers.keys() == {1}, "the other one was new"
    assert log.producers.producers[1].last_sequence == 297
    assert first_read(files) > 45_000, "only where the cut is, not from the segment's beginning"
    assert not log.truncate_to(596)
    assert not files.reads, "a cut of nothing costs nothing"
    log.truncate_to(584)
    assert log.producers.producers[1].last_sequence == 291, "read, because none of its last five is left"
    assert first_read(files) > 45_000, "from the last state in memory on"


def first_read(files: MemoryFiles) -> int:
    """The lowest position that was read in a log since this was last asked."""
    lowest = min(position for name, _, position in files.reads if name.endswith(".log"))
    files.reads.clear()
    return lowest


def test_a_state_in_memory_ends_with_the_records_it_knew() -> None:
    log = make_log()
    for sequence in range(12):
        log.append_as_leader(idempotent(sequence), 0, NOW)
    log.truncate_to(3)
    log.append_as_leader(idempotent(0, epoch=1), 1, NOW)
    # Nothing of the producer comes between the states of before and the next cut: what they say would stay.
    for _ in range(9):
        log.append_as_leader(batch(), 1, NOW)
    log.append_as_leader(idempotent(0, epoch=2), 2, NOW)
    log.truncate_to(13)
    assert (log.producers.producers[7].epoch, log.producers.producers[7].last_sequence) == (1, 0)
    log.append_as_leader(idempotent(1, epoch=1), 3, NOW)


def marker(epoch: int = 0, timestamp: int = NOW) -> memoryview:
    return memoryview(
        build_marker(Marker(ControlType.COMMIT, 3), producer_id=7, producer_epoch=epoch, timestamp=timestamp)
    )


def test_a_producer_known_by_its_marker_alone_goes_with_it() -> None:
    log = make_log()
    log.append_as_leader(batch(), 0, NOW)
    log.append_as_leader(marker(), 0, NOW, from_client=False)
    log.truncate_to(1)
    assert not log.producers.producers


def test_a_transaction_is_open_again_when_its_marker_is_cut() -> None:
    log = make_log()
    log.append_as_leader(idempotent(0, transactional=True), 0, NOW)
    log.append_as_leader(batch(), 0, NOW)
    log.append_as_leader(marker(), 0, NOW, from_client=False)
    log.truncate_to(2)
    assert log.producers.first_unstable_offset() == 0


def test_a_marker_between_remembered_batches_has_the_log_read() -> None:
    log = make_log()
    log.append_as_leader(idempotent(0, transactional=True), 0, NOW)
    log.append_as_leader(marker(timestamp=NOW + 5), 0, NOW, from_client=False)
    log.append_as_leader(idempotent(1, timestamp=NOW + 9), 0, NOW)
    log.truncate_to(2)
    known = log.producers.producers[7]
    assert (known.last_sequence, known.timestamp, known.transaction_start) == (0, NOW + 5, -1)


def test_a_transaction_that_began_after_the_cut_never_was() -> None:
    log = make_log()
    log.append_as_leader(idempotent(0), 0, NOW)
    log.append_as_leader(idempotent(1, transactional=True), 0, NOW)
    log.truncate_to(1)
    assert log.producers.producers[7].last_sequence == 0
    assert log.producers.first_unstable_offset() is None
