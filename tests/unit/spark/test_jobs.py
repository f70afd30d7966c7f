"""What the jobs say on their way."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from headrace.client.types import TopicPartition
from headrace.spark.jobs import Progress
from headrace.spark.offsets import StreamOffset

ID = uuid.UUID(int=7)


def offset(*at: int) -> str:
    made = StreamOffset.of({"orders": ID}, {TopicPartition("orders", index): each for index, each in enumerate(at)})
    return json.dumps(made.encode())


def progress(batch: int, rows: int, end: str = "", latest: str | None = None) -> dict[str, Any]:
    source = {"endOffset": end, "latestOffset": latest}
    return {"batchId": batch, "numInputRows": rows, "batchDuration": 2500, "sources": [source]}


def test_every_micro_batch_with_rows_is_told_once() -> None:
    told = Progress("orders")
    assert list(told.news([progress(0, 10, offset(5, 5), offset(8, 6))])) == [
        "orders: micro-batch 0: 10 rows in 2.5 s, 4 behind"
    ]
    recent = [progress(0, 10), progress(1, 0), progress(1, 4, offset(8, 6), offset(8, 6)), progress(2, 0)]
    assert list(told.news(recent)) == ["orders: micro-batch 1: 4 rows in 2.5 s, 0 behind"]
    assert list(told.news(recent)) == []
    assert (told.rows, told.batches) == (14, 2)


@pytest.mark.parametrize("latest", [None, "", "null"])
def test_a_source_that_does_not_know_its_end_is_not_behind(latest: str | None) -> None:
    assert list(Progress("orders").news([progress(3, 1, offset(5), latest)])) == [
        "orders: micro-batch 3: 1 rows in 2.5 s, 0 behind"
    ]


def test_a_new_partition_is_behind_from_its_beginning() -> None:
    (line,) = Progress("orders").news([progress(0, 1, offset(5), offset(5, 3))])
    assert line.endswith(", 3 behind")
