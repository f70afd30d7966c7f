"""A broker's sender ends when it is told to, wherever it is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from headrace.client.accumulator import Accumulator, Rules
from headrace.client.sender import BrokerSender
from headrace.client.types import TopicPartition
from headrace.ports import SystemClock
from headrace.v1 import common_pb2


class NeverWritten:
    """A stream to a broker that takes nothing and says nothing."""

    def __init__(self) -> None:
        self.writing = asyncio.Event()

    async def write(self, request: Any) -> None:
        self.writing.set()
        await asyncio.Event().wait()

    def cancel(self) -> None:
        pass

    async def __aiter__(self) -> Any:
        await asyncio.Event().wait()
        yield


async def test_it_closes_while_a_request_is_being_written() -> None:
    call, node = NeverWritten(), SimpleNamespace(id=0)
    cluster: Any = SimpleNamespace(
        clock=SystemClock(),
        image=SimpleNamespace(brokers={0: node}),
        leader=lambda topic, partition: (node, 0),
        broker=lambda node: SimpleNamespace(ProduceStream=lambda: call),
        header=common_pb2.RequestHeader,
    )
    accumulator = Accumulator(Rules(linger=0.0))
    accumulator.append(TopicPartition("t", 0), 1, None, b"v", (), 40, None, 0.0)
    sender = BrokerSender(
        0, cluster, accumulator, acks=-1, request_timeout=30.0, max_in_flight=5, released=lambda batches: None
    )
    await asyncio.wait_for(call.writing.wait(), 5)
    await asyncio.wait_for(sender.close(), 5)
