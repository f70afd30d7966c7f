"""Who owns which partition: everyone agrees, and a change moves only what it must."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.sharing import owner_of, share_of

COORDINATORS = st.sets(st.integers(0, 50), min_size=1, max_size=8)


@given(COORDINATORS)
def test_every_partition_has_one_owner(live: set[int]) -> None:
    shares = [share_of(each, live, 50) for each in live]
    assert sorted(index for share in shares for index in share) == list(range(50))


@given(COORDINATORS, st.integers(51, 60))
def test_a_newcomer_takes_its_share_and_moves_nothing_else(live: set[int], newcomer: int) -> None:
    for index in range(50):
        assert owner_of(index, {*live, newcomer}) in (owner_of(index, live), newcomer)


def test_shares_are_of_a_size() -> None:
    sizes = [len(share_of(each, range(3), 300)) for each in range(3)]
    assert min(sizes) > 70, sizes


def test_nobody_alive_means_nobody_owns_it() -> None:
    assert owner_of(3, []) is None
