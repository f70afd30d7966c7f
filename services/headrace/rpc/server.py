"""How every Headrace process starts its gRPC port: health and reflection included, so probes and grpcurl just work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from headrace.rpc.errors import ErrorInterceptor

OPTIONS: tuple[tuple[str, int], ...] = (
    # A batch may be as large as a topic allows: the record engine, not gRPC, says what is too large.
    ("grpc.max_receive_message_length", 128 << 20),
    ("grpc.max_send_message_length", 128 << 20),
    # A peer that vanished without a word is noticed within half a minute.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)


LIVENESS = "liveness"
"""A name for probes: it answers SERVING as long as the process's loop runs, also while nothing else is served yet."""


class RpcServer:
    """A running gRPC port. `port` is the one that was bound (useful when 0 was asked for)."""

    def __init__(self, server: grpc.aio.Server, health: health_aio.HealthServicer, names: Sequence[str], port: int):
        self._server = server
        self._health = health
        self._names = names
        self.port = port

    async def set_serving(self, serving: bool) -> None:
        """What probes see, for the process and for each of its services."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *self._names):
            await self._health.set(name, status)

    async def stop(self, grace: float = 2.0) -> None:
        await self.set_serving(False)
        await self._server.stop(grace)
        await asyncio.wait_for(self._server.wait_for_termination(), grace + 1)


class Serve(Protocol):
    """How a process opens its port: `serve`, or what stands for it in a simulation."""

    async def __call__(
        self,
        host: str,
        port: int,
        services: Sequence[tuple[str, Callable[[grpc.aio.Server], None]]],
        *,
        serving: bool = True,
    ) -> RpcServer: ...


async def serve(
    host: str,
    port: int,
    services: Sequence[tuple[str, Callable[[grpc.aio.Server], None]]],
    *,
    serving: bool = True,
) -> RpcServer:
    """Binds host:port and serves `services`: pairs of full service name and the call that adds the servicer.

    >>> rpc = await serve("127.0.0.1", 0, [("headrace.v1.Metadata",
    ...     lambda server: metadata_pb2_grpc.add_MetadataServicer_to_server(servicer, server))])  # doctest: +SKIP
    """
    server = grpc.aio.server(interceptors=[ErrorInterceptor()], options=[*OPTIONS, ("grpc.so_reuseport", 0)])
    names = [name for name, _ in services]
    for _, add in services:
        add(server)
    health = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    reflection.enable_server_reflection(
        (*names, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME), server
    )
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError:
        bound = 0
    if bound == 0:
        raise OSError(f"cannot listen on {host}:{port}: the port is taken or the address is not this machine's")
    await server.start()
    running = RpcServer(server, health, names, bound)
    await health.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
    await running.set_serving(serving)
    return running
