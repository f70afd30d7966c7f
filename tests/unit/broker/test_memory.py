"""A request's memory is free again as soon as its records are: for the next frame, without the collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.broker.hot_path import TOPIC, HotPath, fetch_frame, produce_frame

from headrace.cluster.image import Partition as State
from headrace.errors import KafkaError

BATCH = 100_000


@pytest.fixture
def path(tmp_path: Path, uncollected: None) -> Iterator[HotPath]:
    made = HotPath(tmp_path, partitions=1)
    # Only a frame that follows a large one is read into memory of its own.
    made.ask(produce_frame(1, BATCH))
    yield made
    made.close()


def errors_in_memory() -> int:
    return sum(isinstance(each, KafkaError) for each in gc.get_objects())


def test_records_that_are_refused(path: HotPath) -> None:
    damaged = bytearray(produce_frame(1, BATCH))
    damaged[-10] ^= 1
    before = errors_in_memory()
    for _ in range(3):
        path.ask(bytes(damaged))
    assert path.listener.memory.spare(BATCH) is not None
    assert errors_in_memory() == before


def test_records_that_wait_for_followers(path: HotPath) -> None:
    partition = path.replicas.get(TOPIC, 0)
    partition.lead(State(0, 1, (0, 1), (0, 1), 1), 0.0)
    path.send(produce_frame(1, BATCH, acks=-1))
    path.loop.turn()
    assert path.replicas.produces.watches(partition)
    assert path.listener.memory.spare(BATCH) is not None


def test_fetches_that_are_refused(path: HotPath) -> None:
    before = errors_in_memory()
    path.ask(fetch_frame(0, -1, {0: 1 << 40, 77: 0}))
    assert errors_in_memory() == before
