"""Calls to the active controller, wherever it is by now.

Brokers forward what changes the cluster, coordinators create their topic. The controller may be moving at that moment,
so a call is repeated with a back-off while the answer is "not me" or nobody answers, until the caller's own time is up.
A controller that stands still answers nothing at all: a call to it is given up as soon as another one is active.
Every such call is safe to repeat: creating what exists and deleting what is gone are answered as such.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import grpc

from headrace.cluster.image import Image, Node
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Clock
from headrace.rpc.channels import Channels
from headrace.rpc.errors import kafka_error_of
from headrace.v1.controller_pb2_grpc import ControllerStub

if TYPE_CHECKING:
    from headrace.v1.controller_pb2_grpc import ControllerAsyncStub

Answer = TypeVar("Answer")

FIRST_BACKOFF = 0.02
MAX_BACKOFF = 0.5
_MOVING = (ErrorCode.NOT_CONTROLLER, ErrorCode.NETWORK_EXCEPTION)


class HasImage(Protocol):
    """Whatever keeps the newest picture of the cluster."""

    @property
    def image(self) -> Image: ...

    async def wait_for(self, predicate: Callable[[Image], bool], timeout: float | None) -> Image: ...


class ControllerClient:
    """The controller as the other services reach it."""

    def __init__(self, cluster: HasImage, channels: Channels, clock: Clock) -> None:
        self._cluster = cluster
        self._channels = channels
        self._clock = clock

    async def call(
        self, method: Callable[[ControllerAsyncStub], Callable[..., Awaitable[Answer]]], request: Any, timeout: float
    ) -> Answer:
        """Sends `request` to the active controller; raises what it answered, or REQUEST_TIMED_OUT after `timeout`.

        >>> await client.call(lambda c: c.CreateTopics, request, timeout=30)  # doctest: +SKIP
        """
        deadline = self._clock.monotonic() + timeout
        backoff = FIRST_BACKOFF
        trouble = "no controller is active"
        while (left := deadline - self._clock.monotonic()) > 0:
            controller = self._cluster.image.controller
            if controller is not None:
                stub: Any = ControllerStub(self._channels.get(str(controller.grpc)))
                try:
                    return await self._unless_replaced(controller, method(stub)(request, timeout=left))
                except grpc.aio.AioRpcError as status:
                    error = kafka_error_of(status)
                    if error.code not in _MOVING:
                        raise error from None
                    trouble = f"controller {controller.id} at {controller.grpc}: {error}"
                except _Replaced:
                    trouble = f"controller {controller.id} at {controller.grpc} did not answer and is no longer active"
            await self._clock.sleep(min(backoff, max(left, 0)))
            backoff = min(2 * backoff, MAX_BACKOFF)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"gave up after {timeout:g} s: {trouble}")

    async def _unless_replaced(self, controller: Node, call: Awaitable[Answer]) -> Answer:
        """What it answers; `_Replaced` when there is another active controller before it has."""
        answer = asyncio.ensure_future(call)
        other = asyncio.ensure_future(
            self._cluster.wait_for(lambda image: image.controller not in (None, controller), None)
        )
        try:
            await asyncio.wait((answer, other), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise _Replaced
            return answer.result()
        finally:
            for task in (answer, other):
                task.cancel()
            await asyncio.gather(answer, other, return_exceptions=True)


class _Replaced(Exception):
    """Another controller is active now."""
