"""Truncation by leader epoch: the cases of KIP-101 and KIP-279, and what else can happen between two logs."""

from tests.unit.broker.replica_set import ReplicaSet

from headrace.cluster.image import NO_LEADER


def pair() -> ReplicaSet:
    return ReplicaSet(2)


def test_kip_101_a_restarted_follower_keeps_what_it_held_above_its_high_watermark() -> None:
    """Scenario 1: B has the second record but not yet the high watermark above it, restarts, and A dies."""
    both = pair()
    a, b = both[0], both[1]
    a.append(b"m1")
    both.fetch(1, 1)
    a.append(b"m2")
    both.fetch(1)  # B holds m2 and has not said so yet
    b.checkpoint()
    assert (b.end, b.partition.high_watermark) == (2, 1)
    both.fetch(1)  # now A knows, and shows m2 to readers
    assert a.partition.high_watermark == 2
    b.crash()
    b.start()
    b.hear(both.state)
    a.crash()
    both.elect(1, (1,))
    both.tell()
    assert b.end == 2, "truncating to the high watermark would have lost m2"
    assert b.partition.high_watermark == 2
    a.start()
    both.tell()
    both.fetch(0, rounds=3)
    assert a.values == b.values


def test_kip_101_logs_that_parted_become_one() -> None:
    """Scenario 2: both lose power; B, who missed m2, comes back first and leads with m3 at the same offset."""
    both = pair()
    a, b = both[0], both[1]
    a.append(b"m1")
    both.fetch(1, 1)
    both.elect(0, (0,))
    both.tell()
    a.append(b"m2")
    a.crash()
    both.elect(1, (1,))  # unclean, for B was out of sync
    both.tell()
    b.append(b"m3")
    a.start()
    both.tell()
    both.fetch(0, rounds=3)
    assert [epoch for _, epoch, _ in b.values] == [0, 1]
    assert a.values == b.values


def test_kip_279_fast_leader_changes_leave_no_divergence() -> None:
    """A and B each wrote under epochs the other does not know; one question about the last epoch is not enough."""
    both = pair()
    a, b = both[0], both[1]
    a.append(b"common")
    both.fetch(1, 1)
    for _ in range(2):
        # A leads alone, B leads alone, again and again: each appends under epochs of its own.
        both.elect(0, (0,))
        both.new_term()
        both.tell(0)
        a.append(b"a1", b"a2")
        both.elect(1, (1,))
        both.tell(1)
        b.append(b"b1")
    both.tell(0)
    both.fetch(0, rounds=8)
    assert a.values == b.values
    assert [offset for offset, _, _ in b.values] == [0, 1, 2]


def test_a_follower_with_records_of_a_deposed_leader_drops_exactly_those() -> None:
    three = ReplicaSet(3)
    three[0].append(b"kept")
    three.fetch(1, 2, rounds=2)
    three[0].append(b"only on 0 and 1")
    three.fetch(1)
    three.elect(2, (2,))
    three.tell()
    three[2].append(b"new")
    three.fetch(0, 1, rounds=4)
    assert three[0].values == three[1].values == three[2].values
    assert [epoch for _, epoch, _ in three[2].values] == [0, 1]


def test_a_follower_older_than_the_leaders_start_begins_there() -> None:
    both = pair()
    a, b = both[0], both[1]
    for _ in range(3):
        a.append(b"x")
    a.partition.high_watermark = 3
    a.partition.log.truncate_fully(3)
    a.append(b"y")
    both.fetch(1, rounds=3)
    assert (b.partition.log.log_start_offset, b.end) == (3, 4)
    assert a.values == b.values


def test_a_follower_that_begins_after_the_leaders_end_starts_over() -> None:
    both = pair()
    a, b = both[0], both[1]
    b.partition.log.truncate_fully(10)
    a.append(b"x")
    both.fetch(1, rounds=3)
    assert a.values == b.values
    assert b.end == 1


def test_an_answer_of_an_earlier_epoch_is_not_taken() -> None:
    both = pair()
    a, b = both[0], both[1]
    a.append(b"old")
    request = b.fetcher.request(both.clock.now)
    assert request is not None
    late = a.answer(request)
    both.new_term()
    both.tell()
    b.fetcher.received(late, both.clock.now, 0)
    assert b.end == 0
    both.fetch(1)
    assert b.end == 1


def test_nobody_is_followed_while_nobody_leads() -> None:
    both = pair()
    both[0].append(b"x")
    both.elect(NO_LEADER, (0, 1))
    both.tell()
    both.fetch(0, 1)
    assert both[1].end == 0


def test_a_deposed_leader_is_refused_by_followers_of_the_next_one() -> None:
    """A zombie: it still believes it leads; what it appends reaches nobody and its high watermark stands."""
    three = ReplicaSet(3)
    zombie = three[0]
    zombie.append(b"before")
    three.fetch(1, 2, rounds=2)
    three.elect(1, (1, 2))
    three.tell(1, 2)
    required = zombie.append(b"never acknowledged")
    three.fetch(2, rounds=3)
    assert zombie.partition.acknowledged(required) is False
    assert zombie.partition.high_watermark == 1
    three[1].append(b"after")
    three.tell(0)
    three.fetch(0, 2, rounds=4)
    assert three[0].values == three[1].values == three[2].values
    assert len(three[1].values) == 2


def test_a_fetch_from_an_earlier_registration_does_not_count() -> None:
    both = pair()
    a, b = both[0], both[1]
    required = a.append(b"x")
    both.fetch(1)
    fresh = b.fetcher.request(both.clock.now)
    assert fresh is not None
    a.answer(fresh)
    assert a.partition.acknowledged(required) is True
    required = a.append(b"y")
    both.fetch(1)
    request = b.fetcher.request(both.clock.now)
    assert request is not None
    request.replica_epoch = 0
    a.answer(request)
    assert a.partition.acknowledged(required) is False
