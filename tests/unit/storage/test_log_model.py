"""A log against a plain list of batches: appended, read, rolled, cut, retained, killed, unplugged and opened again."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.storage.log_samples import FOLDER, NOW, batch

from headrace.errors import ErrorCode, KafkaError
from headrace.records.batch import batches
from headrace.storage.config import LogConfig
from headrace.storage.log import Log
from headrace.storage.memory_files import MemoryFiles
from headrace.storage.recovery import Known, open_log

CONFIG = LogConfig.of(
    {
        "segment.bytes": 900,
        "index.interval.bytes": 150,
        "segment.index.bytes": 96,
        "retention.ms": 5_000,
        "file.delete.delay.ms": 1_000,
    }
)


class Written(NamedTuple):
    """One batch of the model."""

    base: int
    last: int
    epoch: int
    timestamp: int
    producer: int
    sequence: int
    data: bytes


class LogMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.files = MemoryFiles()
        self.now = NOW
        self.epoch = 0
        self.written: list[Written] = []
        self.start = 0
        self.next_sequence: dict[int, int] = {}
        self.last_sent: dict[int, tuple[int, int, int]] = {}
        self.saved_recovery_point = 0
        self.saved_start = 0
        self.forgotten = 0
        """Below this records were deleted. A power loss may bring them back, but not their epochs."""
        self.survives = 0
        """The log's end after a power loss is at least this."""
        self.past: list[list[Written]] = []
        """What the log was before it was truncated, since the last flush."""
        self._open(clean=False)

    def _open(self, *, clean: bool) -> None:
        known = Known(self.saved_recovery_point, self.saved_start, clean)
        self.log: Log = open_log(self.files, FOLDER, CONFIG, known)
        self.log.on_checkpoint_stale = self._checkpoint

    def _checkpoint(self) -> None:
        self.saved_recovery_point = self.log.recovery_point
        self.saved_start = self.log.log_start_offset
        self.log.checkpoint_stale = False

    @property
    def end(self) -> int:
        return self.written[-1].last + 1 if self.written else self.start

    # -- writes --------------------------------------------------------------------------------------------------

    @rule(
        sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
        value=st.integers(0, 40),
        producer=st.integers(-1, 1),
        step=st.integers(-50, 400),
    )
    def append(self, sizes: list[int], value: int, producer: int, step: int) -> None:
        timestamp = max(NOW, self.now + step)
        data = bytearray()
        fields: list[dict[str, Any]] = []
        sequence = self.next_sequence.get(producer, 0)
        for size in sizes:
            more: dict[str, Any] = {}
            if producer >= 0:
                more = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
                sequence += size
            fields.append({"size": size, "sequence": more.get("base_sequence", -1)})
            data += batch(size, timestamp=timestamp, value=b"v" * value, **more)
        info = self.log.append_as_leader(memoryview(data), self.epoch, self.now)
        assert (info.first_offset, info.records, info.duplicate) == (self.end, sum(sizes), False)
        for part, field in zip(batches(data), fields, strict=True):
            base = self.end
            last = base + field["size"] - 1
            raw = bytes(data[part.position : part.position + part.size])
            self.written.append(
                Written(base, last, self.epoch, timestamp + field["size"] - 1, producer, field["sequence"], raw)
            )
        if producer >= 0:
            self.next_sequence[producer] = sequence
            self.last_sent[producer] = (self.written[-1].sequence, sizes[-1], self.written[-1].base)

    @precondition(lambda self: self.last_sent)
    @rule(data=st.data())
    def send_the_last_batch_again(self, data: st.DataObject) -> None:
        producer = data.draw(st.sampled_from(sorted(self.last_sent)))
        sequence, size, base = self.last_sent[producer]
        again = batch(size, timestamp=self.now, producer_id=producer, producer_epoch=0, base_sequence=sequence)
        info = self.log.append_as_leader(again, self.epoch, self.now)
        assert (info.duplicate, info.first_offset) == (True, base)

    @rule()
    def new_leader_epoch(self) -> None:
        self.epoch += 1

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.survives = self.end
        self.past.clear()

    @rule()
    def checkpoint(self) -> None:
        self._checkpoint()

    @rule(ms=st.integers(1, 3_000))
    def wait(self, ms: int) -> None:
        self.now += ms

    @rule(back=st.integers(0, 20))
    def truncate(self, back: int) -> None:
        offset = max(self.start, self.end - back)
        self.past.append(list(self.written))
        self.log.truncate_to(offset)
        while self.written and self.written[-1].last >= offset:
            offset = min(offset, self.written.pop().base)
        self._after_cut(max(offset, self.start) if not self.written else offset)

    @rule(ahead=st.integers(0, 5))
    def truncate_fully(self, ahead: int) -> None:
        self.past.append(list(self.written))
        start = self.end + ahead
        self.log.truncate_fully(start)
        self.written.clear()
        self.start = start
        self._after_cut(0)
        # The log dir's checkpoint carries a start that is ahead of the files.
        self._checkpoint()

    def _after_cut(self, end: int) -> None:
        self.epoch += 1
        self.survives = min(self.survives, end)
        if self.end < self.start:
            self.written.clear()
        self._forget_producers()

    def _forget_producers(self) -> None:
        """The next sequences as the log sees them: it may have forgotten producers whose records are gone."""
        self.next_sequence.clear()
        self.last_sent.clear()
        for producer_id, producer in self.log.producers.producers.items():
            known = [w for w in self.written if w.producer == producer_id]
            if known:
                assert producer.last_sequence == known[-1].sequence + known[-1].last - known[-1].base
                self.last_sent[producer_id] = (known[-1].sequence, known[-1].last - known[-1].base + 1, known[-1].base)
            self.next_sequence[producer_id] = producer.last_sequence + 1
        unknown = {w.producer for w in self.written if w.producer >= 0} - set(self.next_sequence)
        assert not unknown

    @rule(ahead=st.integers(0, 10))
    def delete_records(self, ahead: int) -> None:
        self.start = min(self.end, self.start + ahead)
        assert self.log.delete_records_before(self.start) == self.start
        self.forgotten = max(self.forgotten, self.start)

    @rule()
    def retain(self) -> None:
        self.log.retain(self.now)
        start = self.log.log_start_offset
        limit = self.now - 5_000
        for written in self.written:
            if self.start <= written.last < start:
                assert written.timestamp < limit
        self.start = start
        self.forgotten = max(self.forgotten, start)

    # -- reads ---------------------------------------------------------------------------------------------------

    @rule(data=st.data(), max_bytes=st.integers(0, 2_000), one=st.booleans())
    def read(self, data: st.DataObject, max_bytes: int, one: bool) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        limits = sorted({w.base for w in self.written if w.base >= offset} | {self.end})
        upto = data.draw(st.sampled_from(limits))
        info = self.log.read(offset, max_bytes, upto=upto, min_one_batch=one)
        got = info.read()
        assert len(got) == info.size
        expected = [w.data for w in self.written if w.last >= offset and w.last < upto]
        count = len(batches(got))
        assert got == b"".join(expected[:count])
        assert len(got) <= max_bytes or (one and count == 1)
        if expected and (one or len(expected[0]) <= max_bytes):
            assert count >= 1

    @rule(data=st.data())
    def read_out_of_range(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from([self.start - 1, self.end + 1]))
        with pytest.raises(KafkaError) as refused:
            self.log.read(offset, 100, upto=self.end)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE

    @rule(back=st.integers(-100, 5_000))
    def find_timestamp(self, back: int) -> None:
        timestamp = self.now - back
        found = self.log.offset_for_timestamp(timestamp)
        expected = None
        for written in self.written:
            count = written.last - written.base
            first = written.timestamp - count
            for number in range(count + 1):
                if first + number >= timestamp and written.base + number >= self.start:
                    expected = expected or (first + number, written.base + number, written.epoch)
        assert found == expected

    # -- ends and beginnings -------------------------------------------------------------------------------------

    @rule()
    def stop_cleanly(self) -> None:
        before = self._producers()
        self.log.close()
        self._checkpoint()
        self.files.crash()
        self.files.reads.clear()
        self._open(clean=True)
        assert not [read for read in self.files.reads if read[0].endswith(".log")]
        assert self._producers() == before
        self.survives = self.end
        self.past.clear()

    @rule()
    def kill(self) -> None:
        before = self._producers()
        self._open(clean=False)
        assert {k: v for k, v in before.items() if k in self.last_sent}.items() <= self._producers().items()
        self._forgotten()

    def _producers(self) -> dict[int, tuple[int, int]]:
        return {k: (p.epoch, p.last_sequence) for k, p in self.log.producers.producers.items()}

    def _forgotten(self) -> None:
        for producer in set(self.next_sequence) - set(self.log.producers.producers):
            del self.next_sequence[producer]
            self.last_sent.pop(producer, None)
        self.start = self.log.log_start_offset

    @rule(seed=st.integers(0, 10_000))
    def lose_power(self, seed: int) -> None:
        self.files.crash(Random(seed))
        self._open(clean=False)
        assert self.log.log_end_offset >= self.survives
        found = self._read_all()
        for state in [self.written, *self.past]:
            raw = [w for w in state if w.last >= self.log.log_start_offset]
            if b"".join(w.data for w in raw).startswith(found):
                kept = len(batches(found))
                self.written = raw[:kept]
                break
        else:
            raise AssertionError("what is left is no prefix of anything that was there")
        self.start = self.log.log_start_offset
        self.past.clear()
        self.epoch += 1
        self.survives = min(self.survives, self.end)
        self._forget_producers()

    def _read_all(self) -> bytes:
        return self.log.read(self.log.log_start_offset, 1 << 30, upto=self.log.log_end_offset).read()

    @rule(data=st.data(), how=st.sampled_from(["remove", "cut", "empty", "scribble"]))
    def damage_an_index(self, data: st.DataObject, how: str) -> None:
        self.log.close()
        self._checkpoint()
        names = sorted(n for n in self.files.scan(FOLDER) if n.endswith("index"))
        if names:
            file = self.files.open(f"{FOLDER}/{data.draw(st.sampled_from(names))}")
            size = file.size()
            if how == "remove":
                file.remove()
            elif how == "cut":
                file.truncate(max(0, size - 5))
            elif how == "empty":
                file.truncate(0)
            elif size:
                file.truncate(size - 4)
                file.append(b"\x7f\xff\xff\xff")
        # A scribble of the right size is only looked for after an unclean stop.
        self._open(clean=how != "scribble")
        self._forgotten()
        self.survives = self.end
        self.past.clear()

    @invariant()
    def log_is_the_model(self) -> None:
        if not hasattr(self, "log"):
            return
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, self.end)
        assert self._read_all() == b"".join(w.data for w in self.written if w.last >= self.start)
        for written in self.written:
            if written.base >= max(self.start, self.forgotten):
                assert self.log.epochs.epoch_at(written.base) == written.epoch
        assert self.log.recovery_point <= self.end


LogMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLogModel = LogMachine.TestCase
