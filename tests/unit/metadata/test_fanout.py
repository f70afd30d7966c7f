import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata.fanout import SNAPSHOT, WAIT, Fanout, Step, Subscription


def step(revision: int, weight: int = 1) -> Step[str]:
    return Step(revision, f"m{revision}", weight)


def nothing() -> None:
    return None


def drain(subscription: Subscription[str]) -> list[object]:
    taken: list[object] = []
    while (item := subscription.take()) is not WAIT:
        taken.append(item.revision if isinstance(item, Step) else item)
    return taken


@pytest.fixture
def fanout() -> Fanout[str]:
    made: Fanout[str] = Fanout(history_limit=5, pending_limit=3)
    made.reset(10)
    return made


def test_a_new_reader_gets_a_snapshot_and_then_every_step(fanout: Fanout[str]) -> None:
    reader = fanout.subscribe(0, nothing)
    assert drain(reader) == [SNAPSHOT]
    fanout.publish(step(11))
    fanout.publish(step(13))
    assert drain(reader) == [11, 13]


def test_a_reader_that_comes_back_gets_what_it_missed(fanout: Fanout[str]) -> None:
    for revision in (11, 12, 14):
        fanout.publish(step(revision))
    assert drain(fanout.subscribe(11, nothing)) == [12, 14]
    assert drain(fanout.subscribe(13, nothing)) == [14]
    assert drain(fanout.subscribe(14, nothing)) == []
    assert drain(fanout.subscribe(10, nothing)) == [11, 12, 14]
    assert drain(fanout.subscribe(9, nothing)) == [SNAPSHOT]


def test_what_the_history_no_longer_has_is_a_snapshot(fanout: Fanout[str]) -> None:
    for revision in range(11, 21):
        fanout.publish(step(revision))
    assert fanout.history_weight == 5
    assert drain(fanout.subscribe(14, nothing)) == [SNAPSHOT]
    assert drain(fanout.subscribe(17, nothing)) == [18, 19, 20]


def test_a_slow_reader_gets_a_snapshot_instead_of_growth(fanout: Fanout[str]) -> None:
    slow, quick = fanout.subscribe(10, nothing), fanout.subscribe(10, nothing)
    for revision in range(11, 31):
        fanout.publish(step(revision))
        assert slow.pending <= fanout.pending_limit
        assert drain(quick) == [revision]
    assert drain(slow) == [SNAPSHOT]
    fanout.publish(step(31))
    assert drain(slow) == [31]


def test_one_heavy_step_still_gets_through(fanout: Fanout[str]) -> None:
    reader = fanout.subscribe(10, nothing)
    fanout.publish(step(11, weight=1000))
    assert drain(reader) == [11]
    assert fanout.history_weight == 0
    assert drain(fanout.subscribe(10, nothing)) == [SNAPSHOT]


def test_a_reader_that_is_ahead_waits_for_this_replica_to_catch_up(fanout: Fanout[str]) -> None:
    reader = fanout.subscribe(12, nothing)
    assert drain(reader) == []
    fanout.publish(step(11))
    fanout.publish(step(12))
    assert drain(reader) == []
    fanout.publish(step(13))
    assert drain(reader) == [13]


def test_a_reset_sends_everyone_a_snapshot_that_is_not_older(fanout: Fanout[str]) -> None:
    reader, ahead = fanout.subscribe(10, nothing), fanout.subscribe(25, nothing)
    fanout.publish(step(11))
    fanout.reset(20)
    assert drain(reader) == [SNAPSHOT]
    assert drain(ahead) == []
    assert drain(fanout.subscribe(11, nothing)) == [SNAPSHOT]
    fanout.publish(step(26))
    assert drain(reader) == [26]
    assert drain(ahead) == [SNAPSHOT]


def test_readers_are_woken_and_ended() -> None:
    fanout: Fanout[str] = Fanout()
    fanout.reset(1)
    woken: list[str] = []
    reader = fanout.subscribe(1, lambda: woken.append("x"))
    fanout.publish(step(2))
    assert woken == ["x"]
    fanout.close()
    assert reader.ended
    assert len(woken) == 2
    assert fanout.subscribe(1, nothing).ended
    reader.close()
    assert fanout.readers == 0


# What happens, as a number: publish a step of that weight, or (0) the reader takes all, (-1) it comes back, (-2) reset.
@given(st.lists(st.integers(-2, 4), max_size=60))
def test_whatever_happens_a_reader_ends_up_knowing_everything(events: list[int]) -> None:
    """The model: a reader's state is the set of revisions it knows; a snapshot makes it complete."""
    fanout: Fanout[str] = Fanout(history_limit=6, pending_limit=4)
    fanout.reset(1)
    published: set[int] = set()
    known: set[int] = set()
    at, revision = 0, 1
    reader = fanout.subscribe(at, nothing)

    def read() -> None:
        nonlocal at
        while (item := reader.take()) is not WAIT:
            if isinstance(item, Step):
                assert item.revision > at
                known.add(item.revision)
                at = item.revision
            else:
                assert fanout.revision >= at
                known.clear()
                known.update(published)
                at = fanout.revision

    for event in events:
        if event > 0:
            revision += 1
            published.add(revision)
            fanout.publish(step(revision, event))
        elif event == 0:
            read()
        elif event == -1:
            reader.close()
            reader = fanout.subscribe(at, nothing)
        else:
            revision += 2
            published.add(revision)
            fanout.reset(revision)
    read()
    assert known == published
    assert reader.pending == 0
