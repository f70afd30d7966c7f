"""A coordinator takes over what the log says, and nothing else."""

from __future__ import annotations

from tests.unit.broker.conftest import ManualClock

from headrace.cluster.image import Image
from headrace.coordinator.loading import Loader
from headrace.coordinator.records import epochs_record
from headrace.coordinator.values import ConsumerGroupEpochs
from headrace.records.record import Record, build
from headrace.rpc import Channels


class Damaged(Loader):
    """Its leader's disk has a bit wrong, until somebody else leads."""

    answers: list[bytes]

    async def _fetch(self, index: int, offset: int) -> tuple[bytes, int]:
        return self.answers.pop(0), 0


async def test_a_damaged_batch_is_fetched_again_and_not_believed() -> None:
    key, value = epochs_record("billing", ConsumerGroupEpochs(7, 7, 1))
    batch = bytes(build([Record(0, 0, key, value)]))
    damaged = bytearray(batch)
    at = batch.rindex(value or b"") + 5
    damaged[at] ^= 1
    loader = Damaged(Image, Channels(), ManualClock(), "test", 1 << 20)
    loader.answers = [bytes(damaged), batch]
    state = await loader.load(0, 0)
    assert state.consumer["billing"].epochs == ConsumerGroupEpochs(7, 7, 1)
    assert not loader.answers
