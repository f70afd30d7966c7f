"""Channels to other processes, one an address, kept while the process lives; and the header of every request."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import grpc

from headrace.rpc.server import OPTIONS
from headrace.v1 import common_pb2

_correlation_ids = itertools.count(1)


def request_header(client_id: str) -> common_pb2.RequestHeader:
    """A header with a correlation id that this process has not used before."""
    return common_pb2.RequestHeader(correlation_id=next(_correlation_ids), client_id=client_id)


def open_channel(address: str) -> grpc.aio.Channel:
    """gRPC connects and reconnects by itself, with a back-off that stays short on a cluster."""
    return grpc.aio.insecure_channel(
        address,
        options=[
            *OPTIONS,
            ("grpc.initial_reconnect_backoff_ms", 50),
            # That is how long connecting may take at least: a busy process answers late.
            ("grpc.min_reconnect_backoff_ms", 1_000),
            ("grpc.max_reconnect_backoff_ms", 1_000),
            # A pod that restarts has another address. gRPC would look its name up again after half a minute.
            ("grpc.dns_min_time_between_resolutions_ms", 500),
        ],
    )


class Channels:
    """Channels by address, each opened at its first use."""

    def __init__(self, open_channel: Callable[[str], grpc.aio.Channel] = open_channel) -> None:
        self._open_channel = open_channel
        self._channels: dict[str, grpc.aio.Channel] = {}

    def get(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._open_channel(address)
        return channel

    async def forget(self, address: str) -> None:
        """Closes the channel to an address nobody lives at any more."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            await channel.close()

    async def close(self) -> None:
        for address in list(self._channels):
            await self.forget(address)
