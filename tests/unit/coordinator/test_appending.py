"""The writer of one partition: what it sends, what it sends again, and when it gives up."""

from __future__ import annotations

import pytest

from headrace.coordinator.appending import BATCH_BYTES, PartitionWriter
from headrace.errors import ErrorCode
from headrace.ports import SystemClock
from headrace.records.batch import read_header
from headrace.records.record import iter_records

COMMIT_SECONDS = 5.0
EPOCH = 77


class Heard:
    """An owner that remembers what it was told."""

    def __init__(self) -> None:
        self.news: list[object] = []

    def stored(self, append_ids: list[int], base_offset: int) -> None:
        self.news.append(("stored", append_ids, base_offset))

    def failed(self, append_ids: list[int], error: ErrorCode) -> None:
        self.news.append(("failed", append_ids, error))

    def fenced(self) -> None:
        self.news.append("fenced")

    def gave_up(self) -> None:
        self.news.append("gave up")


class Ready:
    """A sender that only counts who asked to be sent."""

    def __init__(self) -> None:
        self.asked = 0

    def ready(self, writer: PartitionWriter) -> None:
        self.asked += 1


class Bench:
    def __init__(self) -> None:
        self.heard, self.sender, self.clock = Heard(), Ready(), SystemClock()
        self.writer = PartitionWriter(3, EPOCH, self.heard, self.sender)  # type: ignore[arg-type]
        self.began = self.clock.monotonic()

    def append(self, append_id: int, size: int = 1) -> None:
        self.writer.append(append_id, [(b"k%d" % append_id, b"v" * size)])

    def send(self) -> bytes:
        return self.writer.next_batch(self.clock)

    def settle(self, error: ErrorCode | None = None, after: float = 0.0, offset: int = 0) -> float | None:
        return self.writer.settle(error, offset, self.clock.monotonic() + after, COMMIT_SECONDS)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_what_comes_while_a_batch_is_under_way_makes_the_next_one(bench: Bench) -> None:
    bench.append(1)
    first = bench.send()
    bench.append(2)
    bench.append(3)
    assert bench.sender.asked == 1, "a second batch waits for the first"
    assert bench.settle(offset=40) == 0.0
    second = bench.send()
    assert bench.settle(offset=41) is None
    assert bench.heard.news == [("stored", [1], 40), ("stored", [2, 3], 41)]
    headers = [read_header(first), read_header(second)]
    assert [(h.producer_id, h.producer_epoch, h.base_sequence, h.count) for h in headers] == [
        (EPOCH, 0, 0, 1),
        (EPOCH, 0, 1, 2),
    ]
    assert [record.key for record in iter_records(second, headers[1])] == [b"k2", b"k3"]


def test_a_lost_answer_sends_the_very_same_batch_again(bench: Bench) -> None:
    bench.append(1)
    first = bench.send()
    assert bench.settle(ErrorCode.NETWORK_EXCEPTION)
    bench.append(2)
    assert bench.send() == first
    assert bench.settle() == 0.0
    assert read_header(bench.send()).base_sequence == 1


def test_back_off_grows(bench: Bench) -> None:
    bench.append(1)
    bench.send()
    delays = [bench.settle(ErrorCode.NOT_ENOUGH_REPLICAS) or 0.0 for _ in range(8)]
    assert delays == sorted(delays)
    assert delays[0] < delays[-1] <= 0.5


def test_a_refusal_that_lasts_is_failed_and_the_next_batch_takes_its_sequence(bench: Bench) -> None:
    bench.append(1)
    bench.send()
    bench.append(2)
    assert bench.settle(ErrorCode.NOT_ENOUGH_REPLICAS, after=COMMIT_SECONDS + 1) == 0.0
    assert bench.heard.news == [("failed", [1], ErrorCode.NOT_ENOUGH_REPLICAS)]
    assert read_header(bench.send()).base_sequence == 0


def test_what_may_or_may_not_be_stored_is_never_called_failed(bench: Bench) -> None:
    bench.append(1)
    bench.send()
    assert bench.settle(ErrorCode.REQUEST_TIMED_OUT)
    # A refusal for sure of the second try says nothing about the first.
    assert bench.settle(ErrorCode.NOT_ENOUGH_REPLICAS, after=COMMIT_SECONDS + 1)
    assert bench.settle(ErrorCode.NOT_ENOUGH_REPLICAS, after=60) is None
    assert bench.heard.news == ["gave up"]


@pytest.mark.parametrize("error", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_newer_owner_ends_it(bench: Bench, error: ErrorCode) -> None:
    bench.append(1)
    bench.send()
    assert bench.settle(error) is None
    assert bench.heard.news == ["fenced"]


def test_an_append_too_large_fails_alone(bench: Bench) -> None:
    bench.append(1)
    bench.append(2, BATCH_BYTES)
    bench.append(3)
    assert read_header(bench.send()).count == 1
    bench.settle()
    bench.send()
    bench.settle(ErrorCode.MESSAGE_TOO_LARGE)
    bench.send()
    bench.settle()
    assert [news[:2] for news in bench.heard.news] == [("stored", [1]), ("failed", [2]), ("stored", [3])]  # type: ignore[index]


def test_after_close_nobody_is_told_anything(bench: Bench) -> None:
    bench.append(1)
    bench.send()
    bench.writer.close()
    assert bench.settle() is None
    assert bench.heard.news == []
