"""Writing: who a task writes as, where rows go, and that a second run writes only what is missing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.partitioners import partition_for_key
from headrace.client.types import TopicPartition
from headrace.config import InvalidConfig
from headrace.errors import KafkaError
from headrace.records.batch import batches
from headrace.records.record import iter_records
from headrace.spark.writing import PartitionBatches, Row, Written, fingerprint, fingerprints, identity, place

WHERE = TopicPartition("orders", 0)
ME = identity("query", 5, 0)


def rows(count: int) -> list[Row]:
    return [
        Row("orders", None, b"k%d" % (n % 3), b"v%d" % (n % 7), [("h", None)] if n % 2 else ()) for n in range(count)
    ]


def written_by(batches_: PartitionBatches, given: list[Row]) -> list[bytes]:
    out = [sealed.data for row in given if (sealed := batches_.add(row, 1)) is not None]
    last = batches_.seal()
    return out + ([last.data] if last is not None else [])


def test_the_same_task_of_the_same_micro_batch_is_the_same_producer_and_no_other_is() -> None:
    assert identity("query", 5, 0) == ME
    others = [identity("other", 5, 0), identity("query", 5, 1)]
    assert len({ME.producer_id, *(other.producer_id for other in others)}) == 3
    assert ME.producer_id >= 1 << 62


def test_a_later_micro_batch_has_a_later_epoch_until_the_id_changes() -> None:
    assert identity("query", 6, 0) == (ME.producer_id, ME.epoch + 1)
    assert identity("query", 32767, 0) == (ME.producer_id, 32767)
    later = identity("query", 32768, 0)
    assert later.epoch == 0
    assert later.producer_id != ME.producer_id


def test_a_row_goes_where_its_partition_its_key_or_its_task_says() -> None:
    assert place(Row("t", 2, b"k", b"v"), 3, 0) == TopicPartition("t", 2)
    assert place(Row("t", None, b"k", b"v"), 3, 0) == TopicPartition("t", partition_for_key(b"k", 3))
    assert place(Row("t", None, None, b"v"), 3, 4) == TopicPartition("t", 1)
    with pytest.raises(InvalidConfig, match="partition 3 of t, which has 0 to 2"):
        place(Row("t", 3, None, b"v"), 3, 0)


def test_batches_carry_the_identity_and_sequences_without_a_gap() -> None:
    data = b"".join(written_by(PartitionBatches(WHERE, ME, 0, 300), rows(50)))
    found = batches(data)
    assert len(found) > 3
    assert {(b.producer_id, b.producer_epoch) for b in found} == {ME}
    assert [b.base_sequence for b in found] == [sum(b.count for b in found[:n]) for n in range(len(found))]
    assert [r.value for b in found for r in iter_records(data, b)] == [row.value for row in rows(50)]


@given(st.integers(0, 40), st.permutations(range(40)))
def test_a_second_run_in_another_order_writes_exactly_what_is_missing(cut: int, order: list[int]) -> None:
    everything = rows(40)
    first = PartitionBatches(WHERE, ME, 0, 10_000)
    there = b"".join(written_by(first, everything[:cut]))
    found, lowest = fingerprints(there, ME)
    assert lowest == (0 if cut else -1)
    second = PartitionBatches(WHERE, ME, 0, 300)
    second.resume(Written(cut, found))
    added = b"".join(written_by(second, [everything[n] for n in order]))
    second.finish()
    together = [r for b in batches(there) for r in iter_records(there, b)]
    together += [r for b in batches(added) for r in iter_records(added, b)]
    assert sorted(fingerprint(r.key, r.value, r.headers) for r in together) == sorted(
        row.fingerprint() for row in everything
    )
    assert second.skipped == cut
    if added:
        assert batches(added)[0].base_sequence == cut


def test_what_cannot_be_read_back_is_taken_to_be_the_first_rows() -> None:
    second = PartitionBatches(WHERE, ME, 0, 10_000)
    second.resume(Written(3, ()))
    data = b"".join(written_by(second, rows(5)))
    assert [r.value for b in batches(data) for r in iter_records(data, b)] == [b"v3", b"v4"]
    assert batches(data)[0].base_sequence == 3


def test_rows_that_differ_from_run_to_run_are_an_error() -> None:
    second = PartitionBatches(WHERE, ME, 0, 10_000)
    second.resume(Written(1, [fingerprint(b"k", b"random", ())]))
    written_by(second, rows(2))
    with pytest.raises(KafkaError, match="make the query deterministic"):
        second.finish()


def test_others_records_are_not_taken_for_ours() -> None:
    other = identity("other", 5, 0)
    data = b"".join(written_by(PartitionBatches(WHERE, other, 0, 10_000), rows(5)))
    assert fingerprints(data, ME) == ([], -1)
