"""KIP-392: which replica a reader is sent to, and what a follower shows it."""

from collections.abc import Callable

from tests.unit.broker.replica_set import ReplicaSet

from headrace.broker.reader import Reader, Wanted
from headrace.broker.requests import Fetched, FetchLimits
from headrace.cluster.image import Endpoint, Image, Node
from headrace.errors import ErrorCode

KEY = ("t", 0)


def rack_set() -> ReplicaSet:
    three = ReplicaSet(3)
    image = Image(brokers={i: Node(i, 1, Endpoint("h", 1), rack=f"rack-{i}") for i in range(3)})
    for replica in three.replicas:
        replica.manager.rack_aware = True
        replica.manager._image = lambda: image
    three[0].append(b"a")
    three.fetch(1, 2, rounds=3)
    return three


def read(three: ReplicaSet, broker: int, offset: int, rack: str = "", wait: int = 0) -> list[list[Fetched]]:
    answers: list[list[Fetched]] = []
    limits = FetchLimits(wait, 1, 1 << 20, rack=rack)
    three[broker].manager.fetch(limits, Reader([(KEY, Wanted(offset, 1 << 20))]), answers.append)
    return answers


def test_a_leader_names_the_in_sync_replica_in_the_readers_rack() -> None:
    three = rack_set()
    [[found]] = read(three, 0, 0, "rack-2")
    assert (found.preferred_replica, found.size) == (2, 0)
    for rack in ("", "rack-0", "nowhere"):
        [[found]] = read(three, 0, 0, rack)
        assert found.preferred_replica == -1, rack
        assert found.size > 0


def test_a_replica_that_lags_or_is_out_of_sync_is_not_named() -> None:
    three = rack_set()
    three[0].append(b"b")
    three.fetch(1, rounds=2)
    [[found]] = read(three, 0, 2, "rack-2", wait=0)
    assert found.preferred_replica == -1, "2 has not got that far"
    three.elect(0, (0, 1))
    three.tell()
    [[found]] = read(three, 0, 0, "rack-2")
    assert found.preferred_replica == -1


def test_a_follower_shows_what_is_below_its_own_high_watermark() -> None:
    three = rack_set()
    [[found]] = read(three, 2, 0, "rack-2")
    assert (found.error, found.high_watermark) == (None, 1)
    assert found.size > 0
    three[0].append(b"b")
    three.fetch(2)
    assert three[2].end == 2
    [[found]] = read(three, 2, 1)
    assert found.size == 0, "it holds the record and does not know that everyone does"
    [[found]] = read(three, 2, 3)
    assert found.error is not None
    assert found.error.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_reader_that_waits_at_a_follower_is_answered_when_the_high_watermark_comes() -> None:
    three = rack_set()
    answers = read(three, 2, 1, wait=500)
    assert answers == []
    three[0].append(b"b")
    three.fetch(1, 2, 1, 2)
    [[found]] = answers
    assert found.size > 0


def test_without_a_selector_a_follower_sends_readers_to_the_leader() -> None:
    three = rack_set()
    three[2].manager.rack_aware = False
    [[found]] = read(three, 2, 0)
    assert found.error is not None
    assert found.error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_follower_that_waits_hears_of_the_high_watermark_without_a_record() -> None:
    three = ReplicaSet(3)
    leader = three[0]
    leader.append(b"a")
    three.fetch(1, 2)
    answers: list[list[Fetched]] = []
    limits = FetchLimits(500, 1, 1 << 20, replica_id=1, broker_epoch=1)
    wanted = {KEY: Wanted(1, 1 << 20, 0, 0, 0, high_watermark=0)}
    leader.manager.fetch(limits, Reader(wanted.items()), answers.append)
    assert answers == [], "2 has not confirmed it yet"
    three.fetch(2)
    [[found]] = answers
    assert (found.size, found.high_watermark) == (0, 1)


def test_a_high_watermark_that_moves_on_goes_with_the_batches_that_move_it() -> None:
    three = ReplicaSet(3)
    leader, later = three[0], list[Callable[[], object]]()
    leader.manager._call_later = lambda _, callback: later.append(callback)

    def some_milliseconds_pass() -> None:
        for callback in [later.pop(0) for _ in list(later)]:
            callback()

    def append() -> None:
        leader.append(b"a")
        three.fetch(1, 2, rounds=2)

    append()
    answers: list[list[Fetched]] = []
    limits = FetchLimits(500, 1, 1 << 20, replica_id=1, broker_epoch=1)
    wanted = {KEY: Wanted(2, 1 << 20, 0, 0, 0, high_watermark=0)}
    some_milliseconds_pass()
    append()
    leader.manager.fetch(limits, Reader(wanted.items()), answers.append)
    some_milliseconds_pass()
    assert answers == [], "its second move is as good as new"
    some_milliseconds_pass()
    assert [(found.size, found.high_watermark) for [found] in answers] == [(0, 2)]
    assert later == [], "nothing is left to say"


def test_a_reader_ahead_of_a_new_leaders_high_watermark_waits_and_is_not_reset() -> None:
    three = ReplicaSet(3)
    three[0].append(b"a")
    three.fetch(1, 2, 1, 2)  # the followers hold it, and have not heard that all do
    assert three[0].partition.high_watermark == 1
    three[1].partition.high_watermark = 0
    three.elect(1, (1, 2))
    three.tell()
    [[found]] = read(three, 1, 1)
    assert (found.error, found.size) == (None, 0)
