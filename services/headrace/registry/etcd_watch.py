"""A watch on etcd that goes on through disconnects, restarts and compactions.

What makes it exact:
- It resumes *at* the last revision it has handed out and skips that one, not at the next: etcd servers up to 3.5 accept
  a start at the very revision of a compaction although a removal at that revision is already forgotten.
- Responses may be fragmented (etcd splits those over 1.5 MB between events): they are collected until the last
  fragment, then cut into one `Changes` for each revision.
- A sign of life (progress request) never moves the position: servers before 3.5.8 may send it ahead of older events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from itertools import groupby
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from headrace.registry.api import Changes, Event, RegistryUnavailable, Snapshot
from headrace.registry.etcd_endpoint import REQUIRE_LEADER, Compacted, prefix_range
from headrace.registry.etcd_protos import etcdrpc

if TYPE_CHECKING:
    from headrace.registry.etcd import EtcdRegistry

logger = logging.getLogger(__name__)

_DELETE = 1  # mvccpb.Event.DELETE
_QUEUED_ITEMS = 256
_FIRST_BACKOFF, _MAX_BACKOFF = 0.02, 1.0


class _Hangs(Exception):
    """Nothing is heard on a connection that looks alive."""


class EtcdWatch:
    """Reads ahead into a bounded queue from a task of its own, so a cancelled wait of the reader loses nothing."""

    def __init__(self, registry: EtcdRegistry, prefix: str, after: int | None) -> None:
        self._registry = registry
        self._prefix = prefix
        self._after = after
        self._queue: asyncio.Queue[Snapshot | Changes | None] = asyncio.Queue(_QUEUED_ITEMS)
        self._failure: BaseException | None = None
        self._task = asyncio.create_task(self._run(), name=f"watch of {prefix}")

    def __aiter__(self) -> AsyncIterator[Snapshot | Changes]:
        return self

    async def __anext__(self) -> Snapshot | Changes:
        if self._task.done() and self._queue.empty():
            raise self._failure or StopAsyncIteration
        item = await self._queue.get()
        if item is None:
            raise self._failure or StopAsyncIteration
        return item

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        if self._queue.empty():
            self._queue.put_nowait(None)  # wakes a reader that is waiting

    async def _run(self) -> None:
        try:
            await self._follow()
        except Exception as error:
            logger.exception("the watch of %s ends", self._prefix)
            self._failure = error
            await self._queue.put(None)

    async def _follow(self) -> None:
        backoff = 0.0
        while True:
            try:
                if self._after is None:
                    await self._hand_out(await self._registry.snapshot(self._prefix))
                assert self._after is not None
                async with aclosing(self._stream(self._after)) as stream:
                    async for item in stream:
                        backoff = 0.0
                        await self._hand_out(item)
            except Compacted:
                logger.info("the history of %s after %s was compacted: reading it anew", self._prefix, self._after)
                self._after = None
            except RegistryUnavailable as error:
                logger.info("watch of %s: %s", self._prefix, error)
                backoff = min(max(2 * backoff, _FIRST_BACKOFF), _MAX_BACKOFF)
                await self._registry.clock.sleep(backoff)

    async def _hand_out(self, item: Snapshot | Changes) -> None:
        await self._queue.put(item)
        self._after = item.revision

    async def _stream(self, after: int) -> AsyncGenerator[Snapshot | Changes, None]:
        """One gRPC stream's worth of items; ends by raising."""
        registry = self._registry
        endpoint = await registry.connected(registry.request_timeout)
        key, end = prefix_range(self._prefix)
        create = etcdrpc.WatchCreateRequest(
            key=key, range_end=end, start_revision=max(after, 1), progress_notify=True, fragment=True
        )
        call = endpoint.watch.Watch(metadata=REQUIRE_LEADER)
        try:
            await call.write(etcdrpc.WatchRequest(create_request=create))
            created = await self._next_response(call, patience=registry.request_timeout)
            if created.header.revision < after and not created.canceled:
                # A member that lags behind, or a store restored from an older backup: only then the watch would wait
                # for revisions that were seen before.
                snapshot = await registry.snapshot(self._prefix)
                if snapshot.revision < after:
                    logger.warning("etcd went back from revision %d to %d", after, snapshot.revision)
                    yield snapshot
                    raise RegistryUnavailable("the store went back: starting again from its present state")
            async with aclosing(self._changes(call, created, after)) as stream:
                async for changes in stream:
                    yield changes
        except grpc.aio.AioRpcError as error:
            registry.refused("watch", endpoint, error)
        except _Hangs as error:
            registry.leave(endpoint, hangs=True)
            raise RegistryUnavailable(f"etcd {endpoint.address}: {error}") from error
        except (RegistryUnavailable, asyncio.InvalidStateError) as error:
            registry.leave(endpoint)
            raise RegistryUnavailable(f"etcd {endpoint.address}: {error}") from error
        finally:
            call.cancel()

    async def _changes(self, call: Any, response: Any, after: int) -> AsyncGenerator[Changes, None]:
        events: list[Any] = []
        while True:
            if response.compact_revision:
                raise Compacted(f"compacted up to {response.compact_revision}")
            if response.canceled:
                raise RegistryUnavailable(f"etcd ended the watch: {response.cancel_reason}")
            events += response.events
            if not response.fragment:
                for revision, group in groupby(events, key=_mod_revision):
                    if revision > after:
                        after = revision
                        yield Changes(revision, tuple(map(_event, group)))
                events = []
            response = await self._next_response(call, self._registry.watch_idle)

    async def _next_response(self, call: Any, patience: float) -> Any:
        # Not wait_for: cancelling a read cancels the whole call.
        read = asyncio.ensure_future(call.read())
        read.add_done_callback(_retrieved)
        try:
            await asyncio.wait({read}, timeout=patience)
            if not read.done():
                await call.write(etcdrpc.WatchRequest(progress_request=etcdrpc.WatchProgressRequest()))
                await asyncio.wait({read}, timeout=self._registry.request_timeout)
            if not read.done():
                raise _Hangs(f"no sign of life for {patience + self._registry.request_timeout:g} s")
        finally:
            if not read.done():
                read.cancel()
        if read.cancelled():
            raise RegistryUnavailable("the connection was closed")
        response = read.result()
        if response is grpc.aio.EOF:
            raise RegistryUnavailable("the watch stream ended")
        return response


def _retrieved(read: asyncio.Future[Any]) -> None:
    # Nobody asks for the outcome of a read after a failed write: without this asyncio complains about it.
    if not read.cancelled():
        read.exception()


def _mod_revision(event: Any) -> int:
    return int(event.kv.mod_revision)


def _event(event: Any) -> Event:
    kv = event.kv
    return Event(kv.key.decode(), None if event.type == _DELETE else kv.value, kv.create_revision, kv.mod_revision)
