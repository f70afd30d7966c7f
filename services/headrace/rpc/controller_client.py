"""Calls to the active controller, wherever it is by now.

Brokers forward what changes the cluster, coordinators create their topic. The controller may be moving at that moment,
so a call is repeated with a back-off while the answer is "not me" or nobody answers, until the caller's own time is up.
Every such call is safe to repeat: creating what exists and deleting what is gone are answered as such.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import grpc

from headrace.cluster.image import Image
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
                    return await method(stub)(request, timeout=left)
                except grpc.aio.AioRpcError as status:
                    error = kafka_error_of(status)
                    if error.code not in _MOVING:
                        raise error from None
                    trouble = f"controller {controller.id} at {controller.grpc}: {error}"
            await self._clock.sleep(min(backoff, max(left, 0)))
            backoff = min(2 * backoff, MAX_BACKOFF)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"gave up after {timeout:g} s: {trouble}")
