"""Only the owner of now writes to the offsets topic, whatever the leader has heard of the cluster."""

from __future__ import annotations

import pytest
from tests.unit.broker.conftest import TOPIC_ID, Bench, batch

from headrace.broker.partition import Partition
from headrace.broker.requests import Produced
from headrace.cluster.image import Image, OffsetsOwner
from headrace.errors import ErrorCode
from headrace.storage.config import LogConfig
from headrace.storage.files import OsFiles
from headrace.storage.recovery import open_log


class Offsets:
    """One partition of the offsets topic, led here."""

    def __init__(self, bench: Bench, topic: str = "__consumer_offsets") -> None:
        self.bench = bench
        self.log = open_log(OsFiles(), str(bench.path / f"{topic}-0"), LogConfig.of({}))
        self.partition = Partition(topic, TOPIC_ID, 0, 0, self.log, 0)
        bench.replicas.add(self.partition)
        bench.lead(self.partition)

    def write(self, epoch: int, sequence: int = 0, producer_id: int | None = None) -> ErrorCode | None:
        records = batch(
            b"v", producer_id=epoch if producer_id is None else producer_id, producer_epoch=0, base_sequence=sequence
        )
        found: list[Produced] = []
        self.bench.replicas.produce(
            [(self.partition.topic, 0, records)], -1, 1000, found.extend, [epoch] if epoch else ()
        )
        error = found[0].error
        return error.code if error is not None else None


@pytest.fixture
def offsets(bench: Bench) -> Offsets:
    return Offsets(bench)


def test_an_owner_writes_and_its_successor_fences_it(offsets: Offsets) -> None:
    assert offsets.write(10) is None
    assert offsets.write(10, 1) is None
    assert offsets.write(20) is None
    assert offsets.write(10, 2) is ErrorCode.PRODUCER_FENCED
    assert offsets.write(20, 1) is None
    assert offsets.log.log_end_offset == 4


def test_the_picture_fences_before_the_successor_has_written(offsets: Offsets) -> None:
    assert offsets.write(10) is None
    offsets.bench.image = Image(offsets_owners={0: OffsetsOwner(1, 20)})
    assert offsets.write(10, 1) is ErrorCode.PRODUCER_FENCED
    assert offsets.write(20) is None


def test_a_picture_that_lags_refuses_nobody(offsets: Offsets) -> None:
    offsets.bench.image = Image(offsets_owners={0: OffsetsOwner(1, 5)})
    assert offsets.write(10) is None


def test_a_leader_that_starts_again_still_knows_the_owner(offsets: Offsets) -> None:
    assert offsets.write(20) is None
    offsets.log.flush()
    path = str(offsets.bench.path / "__consumer_offsets-0")
    offsets.partition.log = open_log(OsFiles(), path, LogConfig.of({}))
    assert offsets.write(10) is ErrorCode.PRODUCER_FENCED


def test_clients_may_not_write(offsets: Offsets) -> None:
    assert offsets.write(0) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert offsets.log.log_end_offset == 0


def test_the_epoch_must_be_the_producers(offsets: Offsets) -> None:
    assert offsets.write(10, producer_id=30) is ErrorCode.INVALID_RECORD


def test_other_internal_topics_have_no_writer_yet(bench: Bench) -> None:
    assert Offsets(bench, "__transaction_state").write(10) is ErrorCode.INVALID_TOPIC_EXCEPTION
