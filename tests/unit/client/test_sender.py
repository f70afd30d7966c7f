"""A broker's sender: when it looks again, and that it ends when it is told to, wherever it is."""

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
        self.cancelled = asyncio.Event()

    async def write(self, request: Any) -> None:
        self.writing.set()
        await self.cancelled.wait()
        raise asyncio.CancelledError

    def cancel(self) -> None:
        self.cancelled.set()

    async def __aiter__(self) -> Any:
        await asyncio.Event().wait()
        yield


def sender_to(call: NeverWritten, rules: Rules, clock: Any = None, request_timeout: float = 30.0) -> BrokerSender:
    """A sender with one record, of time 0, for the broker behind `call`."""
    node = SimpleNamespace(id=0)
    cluster: Any = SimpleNamespace(
        clock=clock or SystemClock(),
        image=SimpleNamespace(brokers={0: node}),
        leader=lambda topic, partition: (node, 0),
        broker=lambda node: SimpleNamespace(ProduceStream=lambda: call),
        header=common_pb2.RequestHeader,
        backoff=SimpleNamespace(pause=lambda attempts: 60.0),
    )
    accumulator = Accumulator(rules)
    accumulator.append(TopicPartition("t", 0), 1, None, b"v", (), 40, None, 0.0)
    return BrokerSender(
        0,
        cluster,
        accumulator,
        acks=-1,
        request_timeout=request_timeout,
        max_in_flight=5,
        released=lambda batches: None,
    )


async def test_it_closes_while_a_request_is_being_written() -> None:
    call = NeverWritten()
    sender = sender_to(call, Rules(linger=0.0))
    await asyncio.wait_for(call.writing.wait(), 5)
    await asyncio.wait_for(sender.close(), 5)


async def test_a_batch_that_comes_due_between_two_looks_at_the_clock_is_sent() -> None:
    call, readings = NeverWritten(), iter([0.0])
    clock = SimpleNamespace(monotonic=lambda: next(readings, 1.0))
    sender = sender_to(call, Rules(linger=0.5), clock)
    await asyncio.wait_for(call.writing.wait(), 5)
    await sender.close()


async def test_a_broker_that_takes_no_request_is_not_waited_for() -> None:
    call = NeverWritten()
    sender = sender_to(call, Rules(linger=0.0, delivery_timeout=1e9), request_timeout=0.05)
    await asyncio.wait_for(call.cancelled.wait(), 5)
    await sender.close()
