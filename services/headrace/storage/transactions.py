"""What compaction has to know of transactions, read from the log itself.

A record of an aborted transaction must not stand for its key, and a marker may go only when none of its transaction's
batches is left. Both follow from the batch headers in offset order, so no index of aborted transactions is needed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable

from headrace.records.batch import Batch
from headrace.records.record import ControlType, control_type, iter_records
from headrace.storage.segment import Segment

_STEP_BYTES = 1024 * 1024


class AbortedTransactions:
    """From which to which offset each producer's aborted transactions reach."""

    def __init__(self) -> None:
        self._firsts: dict[int, list[int]] = {}
        self._lasts: dict[int, list[int]] = {}

    def add(self, producer_id: int, first_offset: int, last_offset: int) -> None:
        """Transactions of a producer come in offset order."""
        self._firsts.setdefault(producer_id, []).append(first_offset)
        self._lasts.setdefault(producer_id, []).append(last_offset)

    def __contains__(self, batch: Batch) -> bool:
        """Whether `batch` holds records of an aborted transaction."""
        firsts = self._firsts.get(batch.producer_id)
        if firsts is None or not batch.is_transactional or batch.is_control:
            return False
        at = bisect_right(firsts, batch.base_offset) - 1
        return at >= 0 and batch.base_offset <= self._lasts[batch.producer_id][at]


def aborted_transactions(
    segments: Iterable[Segment], upto: int, unchanged: Callable[[Iterable[Segment]], None]
) -> Generator[int, None, AbortedTransactions]:
    """The aborted transactions that end below `upto`; `segments` begin where the log does.

    Gives way to others now and then, yielding the bytes passed over, and asks `unchanged` afterwards.
    """
    aborted = AbortedTransactions()
    open_since: dict[int, int] = {}
    for segment in segments:
        seen = 0
        for batch in segment.headers():
            if batch.base_offset >= upto:
                return aborted
            if batch.position - seen >= _STEP_BYTES:
                yield batch.position - seen
                unchanged((segment,))
                seen = batch.position
            if not batch.is_transactional:
                continue
            if not batch.is_control:
                open_since.setdefault(batch.producer_id, batch.base_offset)
                continue
            first = open_since.pop(batch.producer_id, None)
            if first is not None and _aborts(segment, batch):
                aborted.add(batch.producer_id, first, batch.last_offset)
    return aborted


def _aborts(segment: Segment, batch: Batch) -> bool:
    data = segment.read_batch(batch)
    return any(control_type(record) is ControlType.ABORT for record in iter_records(data, batch._replace(position=0)))


class OpenTransactions:
    """Which producers have batches of a transaction whose marker is still to come, while batches pass by in order."""

    def __init__(self) -> None:
        self._producers: set[int] = set()

    def note(self, batch: Batch) -> bool:
        """Take the next batch; whether it is a marker with nothing left to mark."""
        if not batch.is_transactional:
            return False
        if not batch.is_control:
            self._producers.add(batch.producer_id)
            return False
        if batch.producer_id in self._producers:
            self._producers.remove(batch.producer_id)
            return False
        return True
