"""The high watermark and the in-sync set, as functions of what followers fetched."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.isr import Progress


def leader(isr: tuple[int, ...] = (0, 1, 2), now: float = 0.0) -> Progress:
    return Progress(0, (0, 1, 2), isr, now)


def test_high_watermark_is_the_lowest_end_in_the_isr() -> None:
    progress = leader()
    assert progress.high_watermark(0, 10, 1) == 0, "nobody has fetched yet"
    progress.followers[1].fetched(7, 10, 1.0)
    progress.followers[2].fetched(4, 10, 1.0)
    assert progress.high_watermark(0, 10, 1) == 4
    progress.confirm((0, 1, 2), (0, 1), 1.0)
    assert progress.high_watermark(4, 10, 1) == 7, "2 is out: it no longer counts"


def test_high_watermark_never_goes_back() -> None:
    progress = leader()
    assert progress.high_watermark(5, 10, 1) == 5


def test_a_wish_to_expand_counts_before_it_is_granted() -> None:
    progress = leader(isr=(0, 1))
    progress.followers[1].fetched(10, 10, 1.0)
    progress.followers[2].fetched(6, 10, 1.0)
    progress.pending = (0, 1, 2)
    assert progress.high_watermark(5, 10, 1) == 6


def test_a_wish_to_shrink_does_not_count_before_it_is_granted() -> None:
    progress = leader()
    progress.followers[1].fetched(10, 10, 1.0)
    progress.followers[2].fetched(6, 10, 1.0)
    progress.pending = (0, 1)
    assert progress.high_watermark(5, 10, 1) == 6


def test_high_watermark_stands_still_below_min_isr() -> None:
    progress = leader(isr=(0,))
    assert progress.high_watermark(3, 10, 2) == 3
    assert progress.high_watermark(3, 10, 1) == 10


def test_a_lone_replica_needs_nobody_whatever_min_isr_says() -> None:
    assert Progress(0, (0,), (0,), 0.0).high_watermark(3, 10, 2) == 10


def test_a_silent_follower_lags_after_the_lag_time_and_not_before() -> None:
    progress = leader()
    progress.followers[1].fetched(10, 10, 30.0)
    assert progress.lagging(10, 30.0, 30.0) == ()
    assert progress.lagging(10, 30.1, 30.0) == (2,)


def test_a_follower_always_one_fetch_behind_a_busy_leader_is_in_sync() -> None:
    progress = leader()
    follower = progress.followers[1]
    for second in range(100):
        follower.fetched(offset=second * 10, leader_end=(second + 1) * 10, now=float(second))
    assert 1 not in progress.lagging(1010, 99.5, 2.0)


def test_a_follower_that_falls_further_behind_with_every_fetch_is_not() -> None:
    progress = leader()
    follower = progress.followers[1]
    for second in range(100):
        follower.fetched(offset=second, leader_end=second * 10 + 10, now=float(second))
    assert 1 in progress.lagging(1010, 99.5, 2.0)


def test_joining_needs_the_high_watermark_and_this_epoch() -> None:
    progress = leader(isr=(0,))
    progress.followers[1].fetched(8, 10, 1.0)
    assert progress.may_join(1, high_watermark=8, epoch_start=5)
    assert not progress.may_join(1, high_watermark=9, epoch_start=5)
    assert not progress.may_join(1, high_watermark=8, epoch_start=9)
    progress.pending = (0, 1)
    assert not progress.may_join(1, high_watermark=8, epoch_start=5), "it already was wished for"


@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(0, 50)), max_size=60),
    st.integers(0, 50),
)
def test_nothing_above_an_in_sync_followers_end_is_ever_shown(fetches: list[tuple[int, int]], end: int) -> None:
    progress, mark = leader(), 0
    for replica, offset in fetches:
        progress.followers[replica].fetched(min(offset, end), end, 1.0)
        moved = progress.high_watermark(mark, end, 1)
        assert moved >= mark
        if moved > mark:
            assert moved <= min(f.log_end_offset for f in progress.followers.values())
        mark = moved
