"""The newest picture of the cluster, followed from the metadata service.

Every broker, coordinator and native client has one. It reads the `Watch` stream of one replica and goes to the next
when that ends or falls silent, taking up where it was; the picture it shows never goes back in time. While no replica
can be reached the last picture stays, and the tries go on with growing pauses.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

import grpc

from headrace.cluster.image import Image
from headrace.cluster.protos import delta_from_proto, image_from_proto
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Clock, Random, SystemClock
from headrace.rpc.channels import Channels, request_header
from headrace.v1 import metadata_pb2, metadata_pb2_grpc

logger = logging.getLogger(__name__)

Listener = Callable[[Image, Image], None]

_LASTING = 1.0
"""Seconds after which a stream that ends is not held against its replica."""


class _Behind(Exception):
    """The replica knows less than this follower."""


class ImageFollower:
    """Follows one of `servers` (host:port each). Use it as `async with`, or call `start` and `stop`.

    Without `channels` it keeps its own. A replica that does not answer within `answer_timeout` is left for the next;
    one that vanishes without a word is noticed by the channel's keep-alive.
    """

    def __init__(
        self,
        servers: Sequence[str],
        channels: Channels | None = None,
        *,
        client_id: str = "headrace",
        clock: Clock | None = None,
        chance: Random | None = None,
        answer_timeout: float = 10.0,
        first_backoff: float = 0.05,
        max_backoff: float = 2.0,
    ) -> None:
        if not servers:
            raise ValueError("a follower needs at least one metadata server")
        self.image = Image()
        self._client_id = client_id
        self._own_channels = channels is None
        self._channels = channels or Channels()
        self._clock = clock or SystemClock()
        self._chance = chance or random.Random()
        self._answer_timeout = answer_timeout
        self._first_backoff = first_backoff
        self._max_backoff = max_backoff
        # Each follower starts elsewhere, so that the replicas share the load.
        self._servers = list(servers)
        self._chance.shuffle(self._servers)
        self._failures = 0
        self._listeners: list[Listener] = []
        self._waiting: dict[tuple[Callable[[Image], bool], asyncio.Future[Image]], None] = {}
        self._task: asyncio.Task[None] | None = None
        self.server: str | None = None
        """The replica whose stream is open."""

    async def __aenter__(self) -> ImageFollower:
        self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    def start(self) -> None:
        self._task = asyncio.create_task(self._follow(), name="follow the metadata service")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        for _, future in self._waiting:
            future.cancel()
        if self._own_channels:
            await self._channels.close()

    def listen(self, listener: Listener) -> None:
        """Calls `listener(old, new)` once for each delta or snapshot that changes the picture, in order."""
        self._listeners.append(listener)

    def unlisten(self, listener: Listener) -> None:
        self._listeners.remove(listener)

    async def wait_for(self, predicate: Callable[[Image], bool], timeout: float | None) -> Image:
        """The first picture, from now on, that `predicate` holds for; REQUEST_TIMED_OUT after `timeout` seconds.

        None waits for ever.
        """
        if predicate(self.image):
            return self.image
        future: asyncio.Future[Image] = asyncio.get_running_loop().create_future()
        entry = (predicate, future)
        self._waiting[entry] = None
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"the cluster's metadata did not get there within {timeout:g} s (revision {self.image.revision} from "
                f"{self.server or 'no metadata server: none can be reached'})",
            ) from None
        finally:
            self._waiting.pop(entry, None)

    async def _follow(self) -> None:
        turn = 0
        while True:
            address = self._servers[turn % len(self._servers)]
            turn += 1
            began = self._clock.monotonic()
            try:
                await self._read(address)
                reason = "the stream ended"
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
            except TimeoutError:
                reason = f"no answer within {self._answer_timeout:g} s"
            except _Behind as error:
                reason = str(error)
            except Exception as error:
                # Whatever one replica sends, the follower lives and asks another.
                logger.exception("what metadata server %s sent cannot be used", address)
                reason = repr(error)
            self.server = None
            if self._clock.monotonic() - began >= _LASTING:
                self._failures = 0
            self._failures += 1
            logger.info("metadata server %s: %s", address, reason)
            await self._clock.sleep(self._pause())

    def _pause(self) -> float:
        """None while there are replicas that were not tried; then longer and longer, each time a little different."""
        rounds = self._failures - len(self._servers)
        if rounds < 0:
            return 0.0
        limit: float = min(self._first_backoff * 2 ** min(rounds, 30), self._max_backoff)
        return limit * self._chance.uniform(0.5, 1.0)

    async def _read(self, address: str) -> None:
        stub = metadata_pb2_grpc.MetadataStub(self._channels.get(address))
        request = metadata_pb2.WatchRequest(header=request_header(self._client_id), after_revision=self.image.revision)
        call = stub.Watch(request)
        try:
            async with asyncio.timeout(self._answer_timeout):
                await call.initial_metadata()
            self.server = address
            async for response in call:
                self._take(response)
                self._failures = 0
        finally:
            call.cancel()

    def _take(self, response: metadata_pb2.WatchResponse) -> None:
        old = self.image
        match response.WhichOneof("step"):
            case "snapshot":
                if response.snapshot.revision < old.revision:
                    raise _Behind(f"revision {response.snapshot.revision} is older than {old.revision}")
                self._show(image_from_proto(response.snapshot))
            case "delta":
                if response.delta.revision > old.revision:
                    self._show(old.apply(delta_from_proto(response.delta)))

    def _show(self, new: Image) -> None:
        old, self.image = self.image, new
        for listener in tuple(self._listeners):
            try:
                listener(old, new)
            except Exception:
                logger.exception("a listener failed at revision %d", new.revision)
        for predicate, future in tuple(self._waiting):
            if not future.done():
                try:
                    if predicate(new):
                        future.set_result(new)
                except Exception as error:
                    future.set_exception(error)
