"""Producing, fetching and waiting, on real logs, one turn of the loop at a time."""

import pytest
from tests.unit.broker.conftest import TOPIC_ID, Bench, batch

from headrace.broker.reader import Reader, Wanted
from headrace.broker.requests import Fetched, FetchLimits, Produced
from headrace.cluster.image import Partition as State
from headrace.errors import ErrorCode, KafkaError
from headrace.records.batch import batches

KEY = ("t", 0)
LIMITS = FetchLimits(max_wait_ms=500, min_bytes=1, max_bytes=1 << 20)


def produce(bench: Bench, *values: bytes, acks: int = 1, timeout_ms: int = 1000, **fields: int) -> list[list[Produced]]:
    answers: list[list[Produced]] = []
    bench.replicas.produce([("t", 0, batch(*values, **fields))], acks, timeout_ms, answers.append)
    return answers


def fetch(bench: Bench, offset: int, limits: FetchLimits = LIMITS, **wanted: int) -> list[list[Fetched]]:
    answers: list[list[Fetched]] = []
    bench.replicas.fetch(limits, Reader([(KEY, Wanted(offset, 1 << 20, **wanted))]), answers.append)
    return answers


def code(answers: list) -> ErrorCode | None:
    [[result]] = answers
    return None if result.error is None else result.error.code


def test_a_lone_replica_acknowledges_at_once_at_every_level(bench: Bench) -> None:
    bench.lead(bench.partition())
    for offset, acks in enumerate((0, 1, -1)):
        [[result]] = produce(bench, b"x", acks=acks)
        assert (result.error, result.base_offset) == (None, offset)


def test_by_topic_id_is_the_same_partition(bench: Bench) -> None:
    bench.lead(bench.partition())
    answers: list[list[Produced]] = []
    bench.replicas.produce([(TOPIC_ID, 0, batch(b"x"))], 1, 0, answers.append)
    assert code(answers) is None
    assert bench.replicas.get("t", 0).log.log_end_offset == 1


def test_one_bad_batch_does_not_spoil_the_others(bench: Bench) -> None:
    bench.lead(bench.partition(0))
    bench.lead(bench.partition(1))
    damaged = batch(b"x")
    damaged[-1] ^= 1
    answers: list[list[Produced]] = []
    bench.replicas.produce([("t", 0, damaged), ("t", 1, batch(b"y")), ("t", 2, batch(b"z"))], 1, 0, answers.append)
    [[bad, good, missing]] = answers
    assert bad.error is not None
    assert bad.error.code is ErrorCode.CORRUPT_MESSAGE
    assert good.error is None
    assert missing.error is not None
    assert missing.error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert bench.replicas.get("t", 0).log.log_end_offset == 0


def test_acks_all_waits_for_the_isr_and_answers_in_the_same_turn_as_the_last_fetch(bench: Bench) -> None:
    partition = bench.lead(bench.partition(), isr=(0, 1, 2))
    answers = produce(bench, b"x", acks=-1)
    partition.follower_fetched(1, 1, 1, bench.clock.now)
    bench.turn()
    assert answers == []
    if partition.follower_fetched(2, 1, 1, bench.clock.now):
        bench.replicas.wake(partition)
    bench.turn()
    assert code(answers) is None


def test_acks_all_times_out_with_the_record_in_the_log(bench: Bench) -> None:
    partition = bench.lead(bench.partition(), isr=(0, 1, 2))
    answers = produce(bench, b"x", acks=-1, timeout_ms=1000)
    bench.timer.advance(0.99)
    assert answers == []
    bench.timer.advance(0.02)
    assert code(answers) is ErrorCode.REQUEST_TIMED_OUT
    assert partition.log.log_end_offset == 1


def test_acks_all_is_refused_below_min_isr_and_nothing_is_written(bench: Bench) -> None:
    partition = bench.lead(bench.partition(**{"min.insync.replicas": "2"}), isr=(0,), replicas=(0, 1, 2))
    assert code(produce(bench, b"x", acks=-1)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert partition.log.log_end_offset == 0
    assert code(produce(bench, b"x", acks=1)) is None


def test_no_more_have_to_be_in_sync_than_there_are_replicas(bench: Bench) -> None:
    partition = bench.lead(bench.partition(**{"min.insync.replicas": "2"}), isr=(0,))
    assert not partition.under_min_isr
    assert code(produce(bench, b"x", acks=-1)) is None
    assert partition.high_watermark == 1
    # A replica that is being added counts from the start.
    partition.lead(State(0, 0, (0,), (0, 1), 1, adding=(1,)), bench.clock.now)
    assert partition.under_min_isr
    assert code(produce(bench, b"x", acks=-1)) is ErrorCode.NOT_ENOUGH_REPLICAS


def test_a_leader_alone_in_the_isr_waits_for_nobody(bench: Bench) -> None:
    partition = bench.lead(bench.partition(), isr=(0, 1, 2))
    bench.lead(partition, isr=(0,), version=1)
    partition.replicas = (0, 1, 2)
    assert partition.progress is not None
    partition.progress.confirm((0, 1, 2), (0,), bench.clock.now)
    assert code(produce(bench, b"x", acks=-1)) is None
    assert partition.high_watermark == 1


def test_losing_the_isr_while_waiting_is_said_as_such(bench: Bench) -> None:
    partition = bench.lead(bench.partition(**{"min.insync.replicas": "2"}), isr=(0, 1, 2))
    answers = produce(bench, b"x", acks=-1)
    partition.high_watermark = 1
    bench.lead(partition, isr=(0,), version=1, replicas=(0, 1, 2))
    bench.replicas.wake(partition)
    bench.turn()
    assert code(answers) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


@pytest.mark.parametrize("how", ["follow", "remove"])
def test_a_lost_leadership_answers_everyone_who_waits(bench: Bench, how: str) -> None:
    partition = bench.lead(bench.partition(), isr=(0, 1, 2))
    produced, fetched = produce(bench, b"x", acks=-1), fetch(bench, 0)
    if how == "follow":
        partition.follow(State(1, 1, (1, 2), (0, 1, 2), 1))
        bench.replicas.wake(partition)
        expected = ErrorCode.NOT_LEADER_OR_FOLLOWER
    else:
        bench.replicas.remove(partition)
        expected = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    bench.turn()
    assert code(produced) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code(fetched) is expected


def test_a_reader_waits_for_the_high_watermark_not_for_the_append(bench: Bench) -> None:
    partition = bench.lead(bench.partition(), isr=(0, 1, 2))
    answers = fetch(bench, 0)
    produce(bench, b"x", acks=1)
    bench.turn()
    assert answers == []
    partition.follower_fetched(1, 1, 1, bench.clock.now)
    partition.follower_fetched(2, 1, 1, bench.clock.now)
    bench.replicas.wake(partition)
    bench.turn()
    [[result]] = answers
    assert result.high_watermark == 1
    assert [b.base_offset for b in batches(result.ranges[0].read())] == [0]


def test_min_bytes_and_max_wait(bench: Bench) -> None:
    bench.lead(bench.partition())
    answers = fetch(bench, 0, LIMITS._replace(min_bytes=300))
    produce(bench, b"x" * 100)
    bench.turn()
    assert answers == []
    produce(bench, b"y" * 100)
    bench.turn()
    assert len(answers) == 1
    late = fetch(bench, 2, LIMITS._replace(min_bytes=300))
    bench.timer.advance(0.6)
    assert [result.size for result in late[0]] == [0]


def test_the_first_batch_always_comes_and_the_limits_hold_after_it(bench: Bench) -> None:
    bench.lead(bench.partition())
    for _ in range(4):
        produce(bench, b"x" * 1000)
    [[result]] = fetch(bench, 0, LIMITS._replace(max_bytes=10))
    assert [b.base_offset for b in batches(result.ranges[0].read())] == [0]
    one = result.size
    [[result]] = fetch(bench, 0, LIMITS._replace(max_bytes=3 * one + 1))
    assert result.size == 3 * one


def test_offsets_out_of_range_are_an_error_at_once(bench: Bench) -> None:
    bench.lead(bench.partition())
    produce(bench, b"x")
    assert code(fetch(bench, 2)) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert code(fetch(bench, -1)) is ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("epoch", "expected"), [(4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH), (5, None)]
)
def test_a_reader_with_another_leader_epoch_is_told(bench: Bench, epoch: int, expected: ErrorCode | None) -> None:
    bench.lead(bench.partition(), epoch=5)
    produce(bench, b"x")
    assert code(fetch(bench, 0, current_leader_epoch=epoch)) is expected


def test_a_follower_that_parted_is_told_where(bench: Bench) -> None:
    partition = bench.lead(bench.partition(), isr=(0, 1, 2), epoch=1)
    produce(bench, b"a", b"b")
    bench.lead(partition, isr=(0, 1, 2), epoch=3, version=1)
    produce(bench, b"c")
    limits = LIMITS._replace(replica_id=1)
    [[result]] = fetch(bench, 5, limits, last_fetched_epoch=2)
    assert result.diverging == (1, 2)
    [[result]] = fetch(bench, 2, limits, last_fetched_epoch=1)
    assert result.diverging is None


def test_duplicates_get_their_old_offset_and_gaps_are_refused(bench: Bench) -> None:
    bench.lead(bench.partition())
    sent = {"producer_id": 9, "producer_epoch": 0}
    for _ in range(2):
        [[result]] = produce(bench, b"x", base_sequence=0, **sent)
        assert (result.error, result.base_offset) == (None, 0)
    assert code(produce(bench, b"x", base_sequence=5, **sent)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert bench.replicas.get("t", 0).log.log_end_offset == 1


def test_many_appends_of_one_turn_wake_a_reader_once(bench: Bench) -> None:
    bench.lead(bench.partition())
    answers = fetch(bench, 0)
    for _ in range(5):
        produce(bench, b"x")
    assert len(bench.soon) == 1
    bench.turn()
    assert len(answers) == 1
    assert len(batches(answers[0][0].ranges[0].read())) == 5


def test_nothing_is_acknowledged_while_others_are_eligible_to_lead(bench: Bench) -> None:
    """Whatever this broker takes for the minimum: the controller counted fewer, and may let one of the others lead."""
    partition = bench.partition()
    partition.lead(State(0, 1, (0,), (0, 1, 2), 3, elr=(1, 2)), bench.clock.now)
    partition.append(batch(b"one"), 1, 0)
    assert partition.high_watermark == 0
    with pytest.raises(KafkaError, match=r"min\.insync\.replicas is 2"):
        partition.append(batch(b"two"), -1, 0)
    partition.lead(State(0, 1, (0,), (0, 1, 2), 4), bench.clock.now)
    assert partition.high_watermark == 1
