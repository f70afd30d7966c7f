"""The accumulator against a model broker: what leaves when, and that nothing is lost, doubled or overtaken."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace.client.accumulator import Accumulator, BufferFull, ProducerBatch, Rules
from headrace.client.types import RecordMetadata, TopicPartition
from headrace.errors import ErrorCode, KafkaError
from headrace.records.batch import read_header
from headrace.records.record import iter_records

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
NETWORK = KafkaError(ErrorCode.NETWORK_EXCEPTION, "cut")


class Ack:
    """A future without a loop."""

    def __init__(self) -> None:
        self.result: RecordMetadata | None = None
        self.error: BaseException | None = None

    def done(self) -> bool:
        return self.result is not None or self.error is not None

    def set_result(self, result: RecordMetadata) -> None:
        self.result = result

    def set_exception(self, error: BaseException) -> None:
        self.error = error


def make(producer_id: int | None = 9, **rules: Any) -> Accumulator:
    return Accumulator(Rules(**{"batch_size": 100, "linger": 0.005, "backoff": lambda n: 0.1, **rules}), producer_id)


def known(**rules: Any) -> Accumulator:
    """An accumulator whose first batch was acknowledged, as sequence 0."""
    accumulator = make(**rules)
    add(accumulator, b"first", -1.0)
    (batch,) = accumulator.drain([P0], 0.0)
    accumulator.complete(batch, 0)
    return accumulator


def add(accumulator: Accumulator, value: bytes, now: float = 0.0, partition: TopicPartition = P0) -> Ack:
    ack = Ack()
    accumulator.append(partition, 1, None, value, (), 36 + len(value), ack, now)
    return ack


def values(batch: ProducerBatch) -> list[bytes | None]:
    data = bytes(batch.sealed or b"")
    return [record.value for record in iter_records(data, read_header(data))]


def header(batch: ProducerBatch) -> tuple[int, int, int]:
    found = read_header(batch.sealed or b"")
    return found.producer_id, found.producer_epoch, found.base_sequence


def test_a_batch_waits_for_linger_unless_it_is_full() -> None:
    accumulator = make()
    add(accumulator, b"a")
    assert accumulator.drain([P0], 0.004) == []
    assert accumulator.next_time([P0], 0.0) == 0.005
    (batch,) = accumulator.drain([P0], 0.005)
    assert values(batch) == [b"a"]
    accumulator.complete(batch, 0)
    add(accumulator, b"b" * 60, 1.0)
    add(accumulator, b"c" * 60, 1.0)
    (full,) = accumulator.drain([P0], 1.0)
    assert values(full) == [b"b" * 60]


def test_flushing_does_not_wait() -> None:
    accumulator = make(linger=60)
    add(accumulator, b"a")
    accumulator.flushing = 1
    assert len(accumulator.drain([P0], 0.0)) == 1


def test_results_carry_each_records_own_offset() -> None:
    accumulator = make()
    acks = [add(accumulator, b"a"), add(accumulator, b"b")]
    (batch,) = accumulator.drain([P0], 1.0)
    accumulator.complete(batch, 40)
    assert [a.result and a.result.offset for a in acks] == [40, 41]
    assert accumulator.memory_used == 0
    assert accumulator.active() == []


def test_the_buffer_is_bounded_and_comes_back() -> None:
    accumulator = make(buffer_memory=100)
    add(accumulator, b"x" * 40)
    with pytest.raises(BufferFull, match="buffer_memory is 100"):
        add(accumulator, b"y" * 40)
    (batch,) = accumulator.drain([P0], 1.0)
    accumulator.complete(batch, 0)
    add(accumulator, b"y" * 40)


def test_sequences_count_records_and_stay_with_a_repetition() -> None:
    accumulator = known()
    for value in (b"a" * 60, b"b" * 60):
        add(accumulator, value)
    first, second = accumulator.drain([P0], 1.0)
    assert [header(first), header(second)] == [(9, 0, 1), (9, 0, 2)]
    assert accumulator.refuse(first, NETWORK, 1.0)
    assert accumulator.refuse(second, NETWORK, 1.0)
    again = accumulator.drain([P0], 1.2)
    assert [header(b) for b in again] == [(9, 0, 1), (9, 0, 2)]


def test_nothing_overtakes_a_repetition() -> None:
    accumulator = known()
    sent = []
    for value in (b"a" * 60, b"b" * 60, b"c" * 60):
        add(accumulator, value)
        sent += accumulator.drain([P0], 1.0)
    first, second, _third = sent
    accumulator.refuse(first, NETWORK, 1.0)
    add(accumulator, b"d" * 60)
    assert accumulator.drain([P0], 9.0) == [], "others are still in flight"
    accumulator.refuse(second, NETWORK, 1.0)
    accumulator.refuse(_third, NETWORK, 1.0)
    assert accumulator.drain([P0], 1.05) == [], "the pause is not over"
    assert [values(b)[0][:1] for b in accumulator.drain([P0], 9.0)] == [b"a", b"b", b"c"]  # type: ignore[index]


def test_a_broker_remembers_five_batches_so_no_more_are_in_flight() -> None:
    accumulator = known()
    sent = []
    for n in range(8):
        add(accumulator, b"%d" % n * 60, n)
        sent += accumulator.drain([P0], n + 0.9)
    assert len(sent) == 5
    assert accumulator.drain([P0], 99.0) == []
    unlimited = make(None)
    for n in range(8):
        add(unlimited, b"%d" % n * 60)
    assert len(unlimited.drain([P0], 1.0)) == 8


def test_with_idempotence_a_batch_grows_while_others_wait_before_it() -> None:
    accumulator = make(batch_size=100)
    for n in range(40):
        add(accumulator, b"%d" % (n % 10) * 60)
    sizes = [batch.builder.count for batch in accumulator.batches()]
    assert sizes == [1, 23, 16]
    plain = make(None, batch_size=100)
    for n in range(40):
        add(plain, b"%d" % (n % 10) * 60)
    assert {batch.builder.count for batch in plain.batches()} == {1}


def test_before_the_first_acknowledgement_one_batch_is_in_flight() -> None:
    """A broker that knows nothing of a producer takes any sequence as the first: the second could overtake."""
    accumulator = make()
    add(accumulator, b"a" * 60)
    add(accumulator, b"b" * 60)
    (first,) = accumulator.drain([P0], 1.0)
    assert accumulator.drain([P0], 1.0) == []
    accumulator.complete(first, 0)
    assert len(accumulator.drain([P0], 1.0)) == 1


def test_a_request_has_a_size() -> None:
    accumulator = make(None, max_request_size=300)
    for n in range(4):
        add(accumulator, b"%d" % n * 60)
    assert len(accumulator.drain([P0], 1.0)) == 2


def test_partitions_take_turns() -> None:
    accumulator = make(None, max_request_size=300)
    for n in range(4):
        add(accumulator, b"%d" % n * 60)
    add(accumulator, b"other" * 12, partition=P1)
    assert [b.partition for b in accumulator.drain([P0, P1], 1.0)] == [P0, P1]


def test_what_cannot_be_cured_fails_at_once_and_the_rest_is_numbered_anew() -> None:
    accumulator = known()
    bad, good = add(accumulator, b"a" * 60), add(accumulator, b"b" * 60)
    first, second = accumulator.drain([P0], 1.0)
    assert not accumulator.refuse(first, KafkaError(ErrorCode.INVALID_RECORD, "no key"), 1.0)
    assert isinstance(bad.error, KafkaError)
    assert accumulator.refuse(second, KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), 1.0)
    (again,) = accumulator.drain([P0], 2.0)
    assert header(again) == (9, 1, 0)
    accumulator.complete(again, 5)
    assert good.result is not None


def test_a_batch_that_may_be_in_the_log_keeps_its_number() -> None:
    """The first expires with its fate unknown: the second is tried under its old number until a broker says no."""
    accumulator = known(delivery_timeout=10.0)
    add(accumulator, b"a" * 60, 0.0)
    add(accumulator, b"b" * 60, 5.0)
    first, second = accumulator.drain([P0], 6.0)
    accumulator.refuse(first, NETWORK, 9.0)
    accumulator.refuse(second, NETWORK, 9.0)
    assert accumulator.expire(10.5) == [first]
    (again,) = accumulator.drain([P0], 10.5)
    assert header(again) == (9, 0, 2)
    accumulator.refuse(again, KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), 10.6)
    (anew,) = accumulator.drain([P0], 11.0)
    assert header(anew) == (9, 1, 0)


def test_too_late_is_said_with_the_setting() -> None:
    accumulator = make(delivery_timeout=10.0)
    ack = add(accumulator, b"a", 0.0)
    accumulator.expire(10.0)
    assert "delivery_timeout_ms" in str(ack.error)
    assert accumulator.memory_used == 0


def test_in_flight_too_late_is_said_in_time_and_nothing_overtakes_it() -> None:
    accumulator = known(delivery_timeout=10.0)
    late, next_one = add(accumulator, b"a" * 60, 0.0), add(accumulator, b"b" * 60, 5.0)
    (first, second) = accumulator.drain([P0], 6.0)
    accumulator.refuse(second, NETWORK, 7.0)
    assert accumulator.next_time([P0], 8.0) == 10.0, "the deadline of what is in flight wakes the sender"
    assert accumulator.expire(10.0) == []
    assert "delivery_timeout_ms" in str(late.error)
    assert not accumulator.drain([P0], 10.0), "the second waits for the answer to the first"
    assert accumulator.next_time([P0], 10.0) == 15.0, "told once"
    accumulator.complete(first, 1)
    (again,) = accumulator.drain([P0], 11.0)
    assert header(again) == (9, 0, 2)
    accumulator.complete(again, 2)
    assert next_one.result is not None
    assert accumulator.memory_used == 0


def test_what_expired_in_flight_is_not_sent_again() -> None:
    accumulator = known(delivery_timeout=10.0, batch_size=1000)
    acks = [add(accumulator, b"a", 0.0), add(accumulator, b"b", 0.0)]
    (batch,) = accumulator.drain([P0], 6.0)
    accumulator.expire(10.0)
    assert not accumulator.refuse(batch, KafkaError(ErrorCode.MESSAGE_TOO_LARGE), 10.5)
    assert all(ack.error for ack in acks)
    assert accumulator.memory_used == 0
    assert not accumulator.active()


def test_retries_are_counted() -> None:
    accumulator = make(retries=2)
    ack = add(accumulator, b"a")
    for now in (1.0, 2.0, 3.0):
        (batch,) = accumulator.drain([P0], now)
        accumulator.refuse(batch, NETWORK, now)
    assert ack.error is NETWORK


def test_a_batch_that_is_too_large_is_split_under_the_same_numbers() -> None:
    accumulator = known(batch_size=1000)
    acks = [add(accumulator, b"%d" % n) for n in range(3)]
    (batch,) = accumulator.drain([P0], 1.0)
    accumulator.refuse(batch, KafkaError(ErrorCode.MESSAGE_TOO_LARGE), 1.0)
    halves = accumulator.drain([P0], 2.0)
    assert [values(b) for b in halves] == [[b"0"], [b"1", b"2"]]
    assert [header(b)[2] for b in halves] == [1, 2]
    accumulator.complete(halves[0], 10)
    accumulator.complete(halves[1], 11)
    assert [a.result and a.result.offset for a in acks] == [10, 11, 12]
    assert accumulator.memory_used == 0


class Broker:
    """A partition's log with Kafka's rule for sequences."""

    def __init__(self) -> None:
        self.log: list[bytes | None] = []
        self.epoch = -1
        self.last: list[tuple[int, int, int]] = []

    def append(self, batch: ProducerBatch) -> int:
        found = read_header(batch.sealed or b"")
        if found.producer_epoch < self.epoch:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
        if found.producer_epoch > self.epoch:
            # A partition that has never heard of a producer takes any first sequence, as Kafka's do.
            if found.base_sequence != 0 and self.epoch >= 0:
                raise KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
            self.epoch, self.last = found.producer_epoch, []
        for first, last, offset in self.last:
            if (first, last) == (found.base_sequence, found.last_sequence):
                return offset
        expected = (self.last[-1][1] + 1) % 2**31 if self.last else found.base_sequence
        if found.base_sequence != expected:
            raise KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        offset = len(self.log)
        self.log += values(batch)
        self.last = [*self.last[-4:], (found.base_sequence, found.last_sequence, offset)]
        return offset


@pytest.mark.parametrize("seed", range(120))
def test_no_loss_no_duplicate_no_reordering_through_lost_requests_and_answers(seed: int) -> None:
    chance = random.Random(seed)
    accumulator = make(delivery_timeout=chance.choice([3.0, 1000.0]))
    broker = Broker()
    acks: list[tuple[bytes, Ack]] = []
    now = 0.0
    for step in range(120):
        now += chance.random() * 0.2
        for _ in range(chance.randrange(4)):
            value = b"%d-%d" % (step, len(acks)) + b"." * chance.randrange(60)
            acks.append((value, add(accumulator, value, now)))
        accumulator.expire(now)
        batches = accumulator.drain([P0], now)
        cut = chance.random() < 0.3
        reached = chance.randrange(len(batches) + 1) if cut else len(batches)
        answered = chance.randrange(reached + 1) if cut else reached
        for place, batch in enumerate(batches):
            outcome: int | KafkaError = NETWORK
            if place < reached:
                try:
                    if chance.random() < 0.1:
                        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                    outcome = broker.append(batch)
                except KafkaError as error:
                    outcome = error
            if place >= answered:
                outcome = NETWORK
            if isinstance(outcome, int):
                accumulator.complete(batch, outcome)
            else:
                accumulator.refuse(batch, outcome, now)
    for _ in range(200):
        now += 0.2
        accumulator.flushing = 1
        accumulator.expire(now)
        for batch in accumulator.drain([P0], now):
            try:
                accumulator.complete(batch, broker.append(batch))
            except KafkaError as error:
                accumulator.refuse(batch, error, now)
    assert all(ack.done() for _, ack in acks)
    assert accumulator.memory_used == 0
    order = {value: n for n, (value, _) in enumerate(acks)}
    places = [order[value] for value in broker.log if value is not None]
    assert places == sorted(set(places)), "each record once, in the order of send"
    for value, ack in acks:
        if ack.result is not None:
            assert broker.log[ack.result.offset] == value


@pytest.mark.parametrize("created", [1008.1341621321653, 1000.1, 0.30000000000000004])
def test_what_is_asked_for_in_time_is_done_in_time(created: float) -> None:
    """At the moment that `next_time` names there is something to do, however the sums are rounded."""
    accumulator = make(delivery_timeout=30.0, linger=0.0)
    accumulator.append(P0, 0, None, b"v", (), 50, Ack(), created)
    due = accumulator.next_time([P0], created + 1.0)
    assert due is not None
    assert len(accumulator.expire(due)) == 1
