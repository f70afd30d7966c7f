"""The fast way makes the same bytes as the general one."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.records.keyed import build_keyed
from headrace.records.record import Record, build

PAIRS = st.lists(st.tuples(st.binary(max_size=2000), st.none() | st.binary(max_size=2000)), min_size=1, max_size=50)


@given(PAIRS, st.integers(0, 2**62), st.integers(0, 2**62), st.integers(0, 2**31 - 1))
def test_a_batch_is_what_build_makes(
    pairs: list[tuple[bytes, bytes | None]], timestamp: int, producer_id: int, sequence: int
) -> None:
    records = [Record(offset, timestamp, key, value) for offset, (key, value) in enumerate(pairs)]
    expected = build(records, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    assert build_keyed(pairs, timestamp, producer_id, sequence) == bytes(expected)
