"""The registry on etcd: etcd3's generated stubs over `grpc.aio` channels.

Several endpoints: one is used until it fails, then the next. A call is sent only over a connection that is up, so a
write that raises `RegistryUnavailable` because nobody could be reached surely did not happen; one that was sent and not
answered may have happened, and is never repeated here. Reads are linearizable and are tried on each endpoint once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from math import ceil
from typing import Any, NoReturn

import grpc
import grpc.aio

from headrace.ports import Clock, SystemClock
from headrace.registry.api import (
    Change,
    Changes,
    Condition,
    Delete,
    KeyValue,
    LeaseLost,
    ModRevision,
    RegistryUnavailable,
    Snapshot,
    TxnResult,
    check_txn,
)
from headrace.registry.etcd_endpoint import (
    REQUIRE_LEADER,
    Certificates,
    Compacted,
    Endpoint,
    cancelled_by_channel,
    prefix_range,
)
from headrace.registry.etcd_protos import etcdrpc
from headrace.registry.etcd_watch import EtcdWatch
from headrace.registry.session import LeaseSession

logger = logging.getLogger(__name__)

_PAGE = 5_000


class EtcdRegistry:
    """Implements `api.Registry`. Make it inside the running loop and close it there.

    `request_timeout` bounds every call. A watch that hears nothing for `watch_idle` seconds asks etcd for a sign of
    life and reconnects when none comes within `request_timeout`.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        request_timeout: float = 5.0,
        watch_idle: float = 5.0,
        max_txn_ops: int = 128,
        certificates: Certificates | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not endpoints:
            raise ValueError("at least one etcd endpoint (host:port) is needed")
        self.clock = clock or SystemClock()
        self.request_timeout = request_timeout
        self.watch_idle = watch_idle
        self._max_txn_ops = max_txn_ops
        self._endpoints = [Endpoint(_address(endpoint), certificates) for endpoint in endpoints]
        self._current = 0
        self._closed = False
        self._retiring: set[asyncio.Task[None]] = set()
        self._sessions: set[LeaseSession] = set()
        self._watches: set[EtcdWatch] = set()

    @property
    def max_txn_ops(self) -> int:
        return self._max_txn_ops

    async def get(self, key: str) -> KeyValue | None:
        answer = await self._read(etcdrpc.RangeRequest(key=key.encode()))
        return _key_value(answer.kvs[0]) if answer.kvs else None

    async def snapshot(self, prefix: str) -> Snapshot:
        while True:
            try:
                return await self._pages(prefix)
            except Compacted:
                logger.info("%s was compacted while it was read: reading again", prefix)

    async def txn(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> TxnResult:
        check_txn(conditions, changes, self._max_txn_ops)
        request = etcdrpc.TxnRequest(
            compare=[_compare(condition) for condition in conditions], success=[_operation(c) for c in changes]
        )
        answer = await self._call("txn", lambda endpoint: endpoint.kv.Txn, request)
        return TxnResult(answer.succeeded, answer.header.revision)

    @asynccontextmanager
    async def watch(self, prefix: str, after: int | None = None) -> AsyncIterator[AsyncIterator[Snapshot | Changes]]:
        watch = EtcdWatch(self, prefix, after)
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.discard(watch)
            await watch.close()

    async def session(self, ttl: float) -> LeaseSession:
        sent = self.clock.monotonic()
        answer = await self._call(
            "lease grant", lambda endpoint: endpoint.lease.LeaseGrant, etcdrpc.LeaseGrantRequest(TTL=ceil(ttl))
        )
        session = LeaseSession(self, self.clock, answer.ID, float(answer.TTL), sent, self._sessions.discard)
        self._sessions.add(session)
        return session

    async def keep_alive(self, lease: int, timeout: float) -> float:
        endpoint = await self.connected(timeout)
        try:
            answer = await asyncio.to_thread(endpoint.keep_alive, lease, timeout)
        except grpc.RpcError as error:
            self.refused("keep-alive", endpoint, error)
        except ValueError as error:
            raise RegistryUnavailable(f"keep-alive: the connection to {endpoint.address} was closed") from error
        if answer is None:
            self.leave(endpoint)
            raise RegistryUnavailable(f"keep-alive: etcd {endpoint.address} ended the stream")
        return float(answer.TTL)

    async def revoke(self, lease: int) -> None:
        try:
            await self._call(
                "lease revoke", lambda endpoint: endpoint.lease.LeaseRevoke, etcdrpc.LeaseRevokeRequest(ID=lease)
            )
        except LeaseLost:
            logger.debug("lease %x was gone already", lease)

    async def compact(self, revision: int) -> None:
        """Forgets the history up to `revision`. etcd does it by itself when it is set up to."""
        request = etcdrpc.CompactionRequest(revision=revision, physical=True)
        await self._call("compact", lambda endpoint: endpoint.kv.Compact, request)

    async def close(self) -> None:
        self._closed = True
        for session in list(self._sessions):
            session.abandon()
        for watch in list(self._watches):
            await watch.close()
        for task in list(self._retiring):
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)
        for endpoint in self._endpoints:
            await endpoint.close()

    async def connected(self, timeout: float) -> Endpoint:
        """The endpoint in use once its connection is up, else the next one that is."""
        if self._closed:
            raise RegistryUnavailable("this registry client is closed")
        deadline = self.clock.monotonic() + timeout
        tried = 0
        while (remaining := deadline - self.clock.monotonic()) > 0:
            endpoint = self._endpoints[self._current]
            share = remaining if len(self._endpoints) == 1 else min(remaining, max(timeout / 4, 0.1))
            if await endpoint.connect(share):
                return endpoint
            self.leave(endpoint)
            tried += 1
            if tried % len(self._endpoints) == 0:
                await self.clock.sleep(min(0.05, max(0.0, deadline - self.clock.monotonic())))
        addresses = ", ".join(endpoint.address for endpoint in self._endpoints)
        raise RegistryUnavailable(f"no connection to etcd at {addresses} within {timeout:g} s")

    def leave(self, endpoint: Endpoint, hangs: bool = False) -> None:
        """Uses the next endpoint from now on, unless somebody has moved on from this one already.

        When it `hangs` its connection is given up too: gRPC alone would wait for its own pings to time out. So it is
        when its certificates were replaced: what failed may have failed for the old ones, and would ever again.
        """
        if endpoint not in self._endpoints:
            return
        index = self._endpoints.index(endpoint)
        if not self._closed and (hangs or endpoint.outdated()):
            self._endpoints[index] = endpoint.again()
            task = asyncio.create_task(endpoint.close(self.request_timeout), name=f"retire {endpoint.address}")
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)
        if self._current == index:
            self._current = (index + 1) % len(self._endpoints)

    def refused(self, what: str, endpoint: Endpoint, error: grpc.RpcError) -> NoReturn:
        """Raises what an etcd error means to the caller."""
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.NOT_FOUND and "lease" in details:
            raise LeaseLost(f"{what}: {details}") from error
        if code is grpc.StatusCode.OUT_OF_RANGE and "compacted" in details:
            raise Compacted(details) from error
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            raise ValueError(f"{what}: {details}") from error
        self.leave(endpoint, hangs=code is grpc.StatusCode.DEADLINE_EXCEEDED)
        raise RegistryUnavailable(f"{what}: etcd {endpoint.address}: {code.name} {details}") from error

    async def _pages(self, prefix: str) -> Snapshot:
        start, end = prefix_range(prefix)
        items: list[KeyValue] = []
        revision = 0
        while True:
            request = etcdrpc.RangeRequest(key=start, range_end=end, limit=_PAGE, revision=revision)
            answer = await self._read(request)
            revision = revision or answer.header.revision
            items += map(_key_value, answer.kvs)
            if not answer.more:
                return Snapshot(revision, tuple(items))
            start = answer.kvs[-1].key + b"\0"

    async def _read(self, request: Any) -> Any:
        last: RegistryUnavailable | None = None
        for _ in self._endpoints:
            try:
                return await self._call("read", lambda endpoint: endpoint.kv.Range, request)
            except RegistryUnavailable as error:
                last = error
        assert last is not None
        raise last

    async def _call(self, what: str, method: Callable[[Endpoint], Callable[..., Awaitable[Any]]], request: Any) -> Any:
        sent = self.clock.monotonic()
        endpoint = await self.connected(self.request_timeout)
        remaining = self.request_timeout - (self.clock.monotonic() - sent)
        try:
            return await method(endpoint)(request, timeout=max(remaining, 0.1), metadata=REQUIRE_LEADER)
        except grpc.aio.AioRpcError as error:
            self.refused(what, endpoint, error)
        except asyncio.CancelledError:
            if cancelled_by_channel():
                raise RegistryUnavailable(f"{what}: the connection to {endpoint.address} was closed") from None
            raise


def _address(endpoint: str) -> str:
    scheme, separator, rest = endpoint.partition("://")
    return rest.rstrip("/") if separator and scheme in ("http", "https") else endpoint


def _key_value(kv: Any) -> KeyValue:
    return KeyValue(kv.key.decode(), kv.value, kv.create_revision, kv.mod_revision, kv.lease)


def _compare(condition: Condition) -> Any:
    if isinstance(condition, ModRevision):
        return etcdrpc.Compare(key=condition.key.encode(), target=etcdrpc.Compare.MOD, mod_revision=condition.revision)
    return etcdrpc.Compare(
        key=condition.key.encode(), target=etcdrpc.Compare.CREATE, create_revision=condition.revision
    )


def _operation(change: Change) -> Any:
    if isinstance(change, Delete):
        key, end = prefix_range(change.key) if change.prefix else (change.key.encode(), b"")
        return etcdrpc.RequestOp(request_delete_range=etcdrpc.DeleteRangeRequest(key=key, range_end=end))
    put = etcdrpc.PutRequest(key=change.key.encode(), value=change.value, lease=change.lease)
    return etcdrpc.RequestOp(request_put=put)
