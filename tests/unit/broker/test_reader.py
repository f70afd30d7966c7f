"""Readers of many partitions: a fetch costs what has moved, and nothing that moved is missed."""

import random

import pytest
from tests.unit.broker.conftest import TOPIC_ID, Bench, batch

from headrace.broker.fetch_session import Session, Sessions
from headrace.broker.partition import Partition
from headrace.broker.reader import CONSUMER, Key, Reader, Wanted
from headrace.broker.requests import Fetched, FetchLimits

LIMITS = FetchLimits(max_wait_ms=500, min_bytes=1, max_bytes=1 << 20)
FOLLOWER = LIMITS._replace(replica_id=1, broker_epoch=1)


def key(index: int) -> Key:
    return (TOPIC_ID, index)


class Many:
    """Ten partitions led here with followers 1 and 2, and one session over all of them."""

    def __init__(self, bench: Bench, limits: FetchLimits) -> None:
        self.bench = bench
        self.limits = limits
        self.sessions = Sessions(10, 120.0, random.Random(1))
        self.partitions = [bench.lead(bench.partition(i), isr=(0, 1, 2)) for i in range(10)]
        self.session = self.open({key(i): Wanted(0, 1 << 20, high_watermark=0) for i in range(10)})
        self.epoch = 0

    def open(self, wanted: dict[Key, Wanted], session_id: int = 0, epoch: int = 0) -> Session:
        replica, broker_epoch = self.limits.replica_id, self.limits.broker_epoch
        return self.sessions.open(
            session_id,
            epoch,
            wanted.items(),
            (),
            by_id=True,
            replica_id=replica,
            broker_epoch=broker_epoch,
            now=self.bench.clock.now,
        )

    def start(self, wait: int = 0, **named: Wanted) -> list[list[Fetched]]:
        """A fetch; its answers arrive in the list. Named partitions are given as p3=Wanted(...)."""
        if self.epoch:
            self.open({key(int(name[1:])): want for name, want in named.items()}, self.session.id, self.epoch)
        self.epoch += 1
        answers: list[list[Fetched]] = []

        def reply(found: list[Fetched]) -> None:
            answers.append(found)
            for each in found:
                failed = each.error is not None
                self.session.is_news(each.place, each.size > 0, failed, each.high_watermark, each.log_start_offset)

        self.bench.replicas.fetch(self.limits._replace(max_wait_ms=wait), self.session, reply)
        return answers

    def fetch(self, **named: Wanted) -> dict[int, Fetched]:
        [found] = self.start(**named)
        return {each.key[1]: each for each in found}

    def settle(self) -> None:
        """Two fetches: the first names everything, the second finds nothing left to say."""
        assert len(self.fetch()) == 10
        self.fetch()
        assert not self.session.stirred

    def produce(self, *indexes: int, size: int = 10) -> None:
        batches = [("t", index, batch(b"x" * size)) for index in indexes]
        self.bench.replicas.produce(batches, 1, 0, lambda _: None)
        self.bench.turn()


@pytest.fixture
def followed(bench: Bench) -> Many:
    return Many(bench, FOLLOWER)


def lagging(partition: Partition, now: float) -> tuple[int, ...]:
    assert partition.progress is not None
    return partition.progress.lagging(partition.log.log_end_offset, now, max_lag=10.0)


def test_a_fetch_looks_only_at_what_moved(followed: Many) -> None:
    followed.settle()
    assert followed.fetch() == {}
    followed.produce(3, 7)
    assert {i: found.size > 0 for i, found in followed.fetch().items()} == {3: True, 7: True}
    assert set(followed.fetch()) == {3, 7}, "it did not say that it took them"
    after = Wanted(1, 1 << 20, high_watermark=0)
    followed.fetch(p3=after, p7=after)
    followed.fetch()
    assert not followed.session.stirred


def test_an_idle_follower_is_in_sync_at_its_last_fetch_of_anything(followed: Many) -> None:
    followed.settle()
    clock = followed.bench.clock
    for _ in range(6):
        clock.now += 10.0
        followed.produce(0)
        followed.fetch()
    followed.produce(5)
    assert 1 not in lagging(followed.partitions[5], clock.now + 9.0), "it fetched a moment ago and had all of 5"
    assert 2 in lagging(followed.partitions[5], clock.now + 9.0), "it never fetched"
    assert 1 in lagging(followed.partitions[5], clock.now + 11.0)
    assert 1 in lagging(followed.partitions[0], clock.now), "it fetches, but does not take what is there"


def test_a_follower_that_died_long_ago_is_not_taken_for_idle(followed: Many) -> None:
    followed.settle()
    followed.bench.clock.now += 60.0
    followed.produce(5)
    assert 1 in lagging(followed.partitions[5], followed.bench.clock.now)


def test_a_waiting_fetch_is_woken_by_any_partition_and_answers_with_it_alone(followed: Many) -> None:
    followed.settle()
    answers = followed.start(wait=500)
    followed.bench.turn()
    assert answers == []
    followed.produce(4)
    [[found]] = answers
    assert (found.key, found.size > 0) == (key(4), True)


def test_the_first_answer_names_everything_although_it_waited(followed: Many) -> None:
    answers = followed.start(wait=500)
    assert answers == []
    followed.produce(4)
    [found] = answers
    assert {each.key[1] for each in found} == set(range(10))


def test_the_next_request_of_a_session_ends_the_one_that_waits(followed: Many) -> None:
    followed.settle()
    first = followed.start(wait=500)
    second = followed.start(wait=500, p2=Wanted(0, 1 << 20, high_watermark=0))
    assert (first, second) == ([[]], [])
    followed.produce(2)
    [[found]] = second
    assert found.key == key(2)


def test_a_follower_that_waits_while_it_becomes_fit_to_join_is_found_by_its_next_fetch(followed: Many) -> None:
    joined: list[int] = []
    followed.bench.replicas.on_caught_up = lambda partition, replica: joined.append(partition.index)
    followed.settle()
    followed.start(wait=500)
    followed.bench.lead(followed.partitions[8], isr=(0, 2), version=1)
    followed.bench.replicas.wake(followed.partitions[8])
    followed.bench.turn()
    followed.bench.timer.advance(1.0)
    followed.fetch()
    assert joined == [8]


def test_a_log_that_starts_later_is_news_once(followed: Many) -> None:
    followed.settle()
    partition = followed.partitions[6]
    followed.produce(6)
    followed.fetch()
    partition.follower_fetched(2, 1, 1, followed.bench.clock.now)
    followed.fetch(p6=Wanted(1, 1 << 20, high_watermark=0))
    followed.bench.turn()
    followed.fetch(p6=Wanted(1, 1 << 20, high_watermark=1))
    followed.fetch()
    assert not followed.session.stirred
    partition.log.delete_records_before(1)
    followed.bench.replicas.trimmed(partition)
    followed.bench.turn()
    waited = followed.start(wait=500)
    followed.bench.timer.advance(1.0)
    [[found]] = waited
    assert (found.key, found.log_start_offset) == (key(6), 1)
    followed.fetch()
    assert not followed.session.stirred


def test_everyone_gets_a_turn_when_an_answer_is_too_small_for_all(followed: Many) -> None:
    followed.limits = FOLLOWER._replace(max_bytes=100)
    followed.settle()
    followed.produce(1, 2, 3, size=200)
    served = [next(i for i, found in followed.fetch().items() if found.size) for _ in range(6)]
    assert served == [1, 2, 3, 1, 2, 3]


def test_a_follower_that_registered_again_is_noted_everywhere(followed: Many) -> None:
    followed.settle()
    followed.limits = FOLLOWER._replace(broker_epoch=2)
    assert len(followed.fetch()) == 10
    progress = followed.partitions[9].progress
    assert progress is not None
    assert progress.followers[1].broker_epoch == 2


def test_nobody_remembers_a_reader_that_is_gone(followed: Many) -> None:
    followed.settle()
    assert all(len(partition.readers) == 1 for partition in followed.partitions)
    followed.open({}, followed.session.id, -1)
    assert not any(partition.readers for partition in followed.partitions)


def test_a_reader_that_does_not_come_back_is_told_once(followed: Many) -> None:
    followed.settle()
    followed.produce(3)
    assert not followed.partitions[3].readers, "what waits for it is noted; no append has to do so again"
    assert followed.partitions[4].readers


def test_a_consumer_that_waits_for_many_bytes_hears_of_every_append(bench: Bench) -> None:
    bench.lead(bench.partition(0))
    bench.lead(bench.partition(1))
    reader = Reader([(key(0), Wanted(0, 1 << 20)), (key(1), Wanted(0, 1 << 20))])
    answers: list[list[Fetched]] = []
    bench.replicas.fetch(LIMITS._replace(min_bytes=600, replica_id=CONSUMER), reader, answers.append)
    for index in (0, 1, 0, 1):
        assert answers == []
        bench.replicas.produce([("t", index, batch(b"x" * 100))], 1, 0, lambda _: None)
        bench.turn()
    [found] = answers
    assert sum(each.size for each in found) > 600
