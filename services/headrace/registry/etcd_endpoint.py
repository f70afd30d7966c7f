"""A connection to one etcd member, and how Headrace spells things in etcd's protocol."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio

from headrace.registry.etcd_protos import etcdrpc

logger = logging.getLogger(__name__)

# A member that has lost its quorum answers at once instead of hanging, and ends its streams.
REQUIRE_LEADER = (("hasleader", "true"),)
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    # A channel made because another one hangs must not share that one's connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A member that restarts as a pod has another address; by default its name is looked up every half minute at most.
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    # etcd closes connections that are pinged more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)


class Compacted(Exception):
    """The history that was asked for is gone."""


class Pems(NamedTuple):
    """What a connection is secured with, as gRPC takes it: whom to trust, and a client's own key and certificate."""

    roots: bytes
    key: bytes | None = None
    certificate: bytes | None = None


class Certificates:
    """The TLS files of a client. Whoever renews certificates replaces them while the process runs."""

    def __init__(self, ca: Path, certificate: Path, key: Path) -> None:
        """Raises OSError when `ca` cannot be read; the two others are a client's own, and need not be there."""
        self._ca, self._own = ca, (key, certificate)
        self._pems = self._read()

    def now(self) -> Pems:
        """What the files hold; what they held before while they cannot be read, as in the middle of a change."""
        try:
            found = self._read()
        except OSError as error:
            logger.warning("etcd's certificates cannot be read, the ones from before are used: %s", error)
            return self._pems
        if found != self._pems:
            logger.info("etcd's certificates were replaced: what connects from now on uses the new ones")
            self._pems = found
        return found

    def _read(self) -> Pems:
        own = [path.read_bytes() if path.is_file() else b"" for path in self._own]
        # gRPC ends the process when one is there without the other.
        return Pems(self._ca.read_bytes(), *own) if all(own) else Pems(self._ca.read_bytes())


class Endpoint:
    """A channel to one etcd member, and the stubs on it.

    One that hangs is replaced, not repaired; so is one whose certificates are out of date, as a channel connects again
    and again with those it was made with.
    """

    def __init__(self, address: str, certificates: Certificates | None) -> None:
        self.address = address
        self._certificates = certificates
        self._pems = certificates.now() if certificates is not None else None
        self._credentials = grpc.ssl_channel_credentials(*self._pems) if self._pems is not None else None
        if self._credentials is None:
            self._channel = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(address, self._credentials, options=_CHANNEL_OPTIONS)
        self.kv = etcdrpc.KVStub(self._channel)
        self.lease = etcdrpc.LeaseStub(self._channel)
        self.watch = etcdrpc.WatchStub(self._channel)
        self._blocking: grpc.Channel | None = None

    def keep_alive(self, lease: int, timeout: float) -> Any:
        """One keep-alive and its answer (None: the stream ended); blocks, so call it in a thread.

        In the loop each of its steps would wait for a turn of its own, and a process with slow turns (many clients,
        little CPU) would lose a lease that etcd is glad to renew.
        """
        if self._blocking is None:
            if self._credentials is None:
                self._blocking = grpc.insecure_channel(self.address, options=_CHANNEL_OPTIONS)
            else:
                self._blocking = grpc.secure_channel(self.address, self._credentials, options=_CHANNEL_OPTIONS)
        # A stream for each keep-alive: one that hangs is noticed by its own deadline and the next goes elsewhere.
        answers = etcdrpc.LeaseStub(self._blocking).LeaseKeepAlive(
            iter((etcdrpc.LeaseKeepAliveRequest(ID=lease),)), timeout=timeout, metadata=REQUIRE_LEADER
        )
        try:
            return next(answers, None)
        finally:
            answers.cancel()

    def again(self) -> Endpoint:
        """A new channel to the same member."""
        return Endpoint(self.address, self._certificates)

    def outdated(self) -> bool:
        """Whether the certificates are others now than those of the channel. Reads three small files."""
        return self._certificates is not None and self._certificates.now() != self._pems

    async def connect(self, timeout: float) -> bool:
        """Whether the connection is up; False as soon as connecting failed, or after `timeout`."""
        try:
            async with asyncio.timeout(timeout):
                state = self._channel.get_state(try_to_connect=True)
                while state is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        return False
                    await self._channel.wait_for_state_change(state)
                    state = self._channel.get_state(try_to_connect=True)
                return True
        except TimeoutError:
            return False

    async def close(self, grace: float | None = None) -> None:
        if self._blocking is not None:
            self._blocking.close()
        await self._channel.close(grace)


def prefix_range(prefix: str) -> tuple[bytes, bytes]:
    """The key and range end that mean every key starting with `prefix`. UTF-8 has no byte 0xff, so + 1 is enough."""
    start = prefix.encode()
    return (start, start[:-1] + bytes((start[-1] + 1,))) if start else (b"\0", b"\0")


def cancelled_by_channel() -> bool:
    """Whether a CancelledError came from a channel that was closed, and not from somebody cancelling this task."""
    task = asyncio.current_task()
    return task is not None and not task.cancelling()
