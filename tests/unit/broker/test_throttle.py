"""Replication throttles: the bucket, whom it holds for, and a follower that catches up at its rate."""

from tests.unit.broker.replica_set import ReplicaSet

from headrace.broker.throttle import FOLLOWER, LEADER, UNLIMITED, Throttle, names


def test_a_rate_holds_over_time_whatever_the_sizes() -> None:
    throttle, now, sent = Throttle(1000), 0.0, 0
    for _ in range(1000):
        if not throttle.exceeded(now):
            throttle.spend(700, now)
            sent += 700
        now += 0.1
    assert 100_000 <= sent <= 100_000 + 1000 + 700, "a hundred seconds, a burst, and one answer too many at most"


def test_what_was_not_used_does_not_pile_up() -> None:
    throttle = Throttle(1000)
    assert not throttle.exceeded(0.0)
    throttle.spend(1000, 1000.0)
    assert throttle.exceeded(1000.0)
    assert 0 < throttle.wait(1000.0) < 0.1


def test_no_rate_is_no_limit_and_a_new_one_starts_fresh() -> None:
    throttle = Throttle(UNLIMITED)
    throttle.spend(1 << 60, 0.0)
    assert not throttle.exceeded(0.0)
    throttle.set_rate(10)
    throttle.spend(1 << 40, 1.0)
    assert throttle.exceeded(2.0)
    throttle.set_rate(20)
    assert not throttle.exceeded(2.0)


def test_replicas_are_named_in_pairs_or_all_at_once() -> None:
    values = {LEADER: "0:1, 3:2", FOLLOWER: "*"}
    assert names(values, LEADER, 3, 2)
    assert not names(values, LEADER, 3, 1)
    assert names(values, FOLLOWER, 9, 9)


def test_a_throttled_leader_gives_a_late_follower_only_its_share_and_one_in_sync_everything() -> None:
    three = ReplicaSet(3)
    leader = three[0]
    three.elect(0, (0, 1))
    three.tell()
    leader.partition.leader_throttled = True
    leader.manager.throttle.set_rate(1)
    for _ in range(3):
        leader.append(b"x" * 1000)
        three.fetch(1, 2)
    assert three[1].end == 3
    assert three[2].end == 1, "the first fetch used up the rate for a long time"
    three.clock.now += 10_000
    three.fetch(2)
    assert three[2].end == 3


def test_a_throttled_follower_waits_and_says_for_how_long() -> None:
    three = ReplicaSet(3)
    late = three[2]
    three.elect(0, (0, 1))
    three.tell()
    late.partition.follower_throttled = True
    late.fetcher._throttle.set_rate(100)
    three[0].append(b"x" * 1000)
    three.fetch(2)
    three[0].append(b"x" * 1000)
    assert late.fetcher.request(three.clock.now) is None, "nothing else to ask for"
    three.clock.now += 20
    three.fetch(2)
    assert late.end == 2
