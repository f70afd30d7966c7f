"""A call finds the controller that is active, also when the one before stands still and says nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest

from headrace.cluster.image import Endpoint, Image, Node
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import SystemClock
from headrace.rpc.channels import Channels
from headrace.rpc.controller_client import ControllerClient
from headrace.v1 import controller_pb2 as pb
from headrace.v1 import controller_pb2_grpc


class Pictures:
    """The newest picture of the cluster, as a follower of the metadata keeps it."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self._changed = asyncio.Condition()

    async def show(self, image: Image) -> None:
        async with self._changed:
            self.image = image
            self._changed.notify_all()

    async def wait_for(self, predicate: Callable[[Image], bool], timeout: float | None) -> Image:
        async with asyncio.timeout(timeout), self._changed:
            await self._changed.wait_for(lambda: predicate(self.image))
        return self.image


class Controller(controller_pb2_grpc.ControllerServicer):
    """Answers at once, or never while it is `paused`."""

    def __init__(self, *, paused: bool) -> None:
        self._go = asyncio.Event()
        if not paused:
            self._go.set()
        self.asked = asyncio.Event()

    async def DescribeTopics(self, request: pb.DescribeTopicsRequest, context: Any) -> pb.DescribeTopicsResponse:
        self.asked.set()
        await self._go.wait()
        return pb.DescribeTopicsResponse()


async def serve(servicer: Controller) -> tuple[grpc.aio.Server, Endpoint]:
    server = grpc.aio.server()
    controller_pb2_grpc.add_ControllerServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, Endpoint("127.0.0.1", port)


async def test_a_controller_that_stands_still_is_given_up_when_another_is_active() -> None:
    paused, active = Controller(paused=True), Controller(paused=False)
    first, first_at = await serve(paused)
    second, second_at = await serve(active)
    channels = Channels()
    try:
        pictures = Pictures(replace(Image(), controller=Node(0, 1, first_at)))
        client = ControllerClient(pictures, channels, SystemClock())
        call = asyncio.ensure_future(client.call(lambda c: c.DescribeTopics, pb.DescribeTopicsRequest(), timeout=30))
        await asyncio.wait_for(paused.asked.wait(), 10)
        await pictures.show(replace(pictures.image, controller=None))
        assert not call.done()
        await pictures.show(replace(pictures.image, controller=Node(1, 2, second_at)))
        assert await asyncio.wait_for(call, 10) == pb.DescribeTopicsResponse()
        assert active.asked.is_set()
    finally:
        await channels.close()
        await first.stop(None)
        await second.stop(None)


async def test_a_call_that_finds_nobody_says_how_long_it_tried() -> None:
    channels = Channels()
    client = ControllerClient(Pictures(Image()), channels, SystemClock())
    with pytest.raises(KafkaError, match=r"gave up after 0\.1 s: no controller is active") as refusal:
        await client.call(lambda c: c.DescribeTopics, pb.DescribeTopicsRequest(), timeout=0.1)
    assert refusal.value.code is ErrorCode.REQUEST_TIMED_OUT
    await channels.close()
