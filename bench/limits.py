"""What this machine and plain Python reach at best, for a broker in Python to be measured against: page-cache writes,
loopback TCP into a file, sendfile, a loop of asyncio that does what a bare broker does, and grpcio's asyncio API.

    python -m bench.limits [PATTERN ...] [--rounds 3] [--scale 1.0] [--json] [--list]
    python -m bench.limits 'tcp/*' 'asyncio/*'

Server and client are processes of their own, on loopback.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc.aio
from bench.peers.measuring import MIB, cpu_seconds
from bench.repeated import Figures, Job, run

VOLUME = 2048 * MIB
ANSWER_BYTES = 40
SERVE_SECONDS = 600
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_forked = multiprocessing.get_context("fork")

Serve = Callable[[Connection, Path, int], None]
"""Sends its port, then serves until it is ended; gets a folder of its own and the bytes of the whole job."""

Use = Callable[[int, int], Figures]


def write(chunk: int, *, sync: bool = False) -> Job:
    """One process writes a file, `chunk` bytes a call."""

    def measure(scale: float) -> Figures:
        total, data = int(VOLUME * scale), os.urandom(chunk)
        with tempfile.TemporaryFile(buffering=0) as file:
            descriptor = file.fileno()
            began = time.perf_counter()
            for _ in range(total // chunk):
                os.write(descriptor, data)
            if sync:
                os.fsync(descriptor)
            seconds = time.perf_counter() - began
        return {"MiB_per_s": total / MIB / seconds, "calls_per_s": total / chunk / seconds}

    return measure


def between(serve: Serve, use: Use) -> Job:
    """`serve` in a process of its own, `use` in another: grpc must not have begun where somebody forks."""

    def measure(scale: float) -> Figures:
        total = int(VOLUME * scale)
        here, there = _forked.Pipe()
        with tempfile.TemporaryDirectory(prefix="limits-") as folder:
            server = _forked.Process(target=serve, args=(there, Path(folder), total), daemon=True)
            server.start()
            port = here.recv()
            before = cpu_seconds([server.pid or 0])
            client = _forked.Process(target=lambda: there.send(use(port, total)), daemon=True)
            client.start()
            try:
                figures: Figures = here.recv()
                used = cpu_seconds([server.pid or 0]) - before
            finally:
                for process in (client, server):
                    process.terminate()
                    process.join()
        return {**figures, "server_cpu_s": used}

    return measure


def _accept(pipe: Connection) -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send(listener.getsockname()[1])
    return listener.accept()[0]


def receive(size: int, *, to_file: bool) -> Job:
    """A server takes what it can, at most `size` bytes a call."""

    def serve(pipe: Connection, folder: Path, total: int) -> None:
        connection, buffer = _accept(pipe), memoryview(bytearray(size))
        with (folder / "received").open("wb", buffering=0) as file:
            got = 0
            while got < total:
                count = connection.recv_into(buffer)
                if to_file:
                    os.write(file.fileno(), buffer[:count])
                got += count
        connection.sendall(b"k")
        time.sleep(SERVE_SECONDS)

    def use(port: int, total: int) -> Figures:
        connection, data, sent = socket.create_connection(("127.0.0.1", port)), os.urandom(MIB), 0
        began = time.perf_counter()
        while sent < total:
            connection.sendall(data)
            sent += len(data)
        connection.recv(1)
        return {"MiB_per_s": sent / MIB / (time.perf_counter() - began)}

    return between(serve, use)


def send_file() -> Job:
    def serve(pipe: Connection, folder: Path, total: int) -> None:
        data = os.urandom(MIB)
        with (folder / "sent").open("w+b", buffering=0) as file:
            for _ in range(total // MIB):
                file.write(data)
            connection, done = _accept(pipe), 0
            connection.recv(1)
            while done < total // MIB * MIB:
                done += os.sendfile(connection.fileno(), file.fileno(), done, MIB)
            time.sleep(SERVE_SECONDS)

    def use(port: int, total: int) -> Figures:
        connection, buffer, got = socket.create_connection(("127.0.0.1", port)), bytearray(MIB), 0
        began = time.perf_counter()
        connection.sendall(b"g")
        while got < total // MIB * MIB:
            got += connection.recv_into(buffer)
        return {"MiB_per_s": got / MIB / (time.perf_counter() - began)}

    return between(serve, use)


class _Appender(asyncio.Protocol):
    """Writes each frame to a file and answers it: a bare broker."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        position, answers = 0, 0
        with memoryview(self._buffer) as view:
            while len(view) - position >= 4:
                (size,) = struct.unpack_from(">i", view, position)
                if len(view) - position - 4 < size:
                    break
                os.write(self._descriptor, view[position + 4 : position + 4 + size])
                answers += 1
                position += 4 + size
        del self._buffer[:position]
        if answers:
            self._transport.write(bytes(ANSWER_BYTES * answers))


def requests(size: int, depth: int, count: int) -> Job:
    """Requests of `size` bytes with a length in front, `depth` of them in flight."""

    def serve(pipe: Connection, folder: Path, total: int) -> None:
        async def main() -> None:
            with (folder / "requests").open("wb", buffering=0) as file:
                server = await asyncio.get_running_loop().create_server(
                    lambda: _Appender(file.fileno()), "127.0.0.1", 0
                )
                pipe.send(server.sockets[0].getsockname()[1])
                await asyncio.sleep(SERVE_SECONDS)

        asyncio.run(main())

    def use(port: int, total: int) -> Figures:
        connection, frame = socket.create_connection(("127.0.0.1", port)), struct.pack(">i", size) + os.urandom(size)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wanted, got, sent = max(1, count * total // VOLUME), 0, 0
        began = time.perf_counter()
        while got < wanted * ANSWER_BYTES:
            while sent < wanted and sent - got // ANSWER_BYTES < depth:
                connection.sendall(frame)
                sent += 1
            got += len(connection.recv(65536))
        return _rates(wanted, size, time.perf_counter() - began)

    return between(serve, use)


def rpc(size: int, callers: int, count: int, *, streaming: bool) -> Job:
    """grpcio's asyncio API with bytes for messages (no protobuf), answered with ten bytes."""

    async def unary(request: bytes, context: Any) -> bytes:
        return bytes(10)

    async def stream(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for _ in messages:
            yield bytes(10)

    def serve(pipe: Connection, folder: Path, total: int) -> None:
        async def main() -> None:
            server = grpc.aio.server(options=UNLIMITED)
            handlers = {
                "unary": grpc.unary_unary_rpc_method_handler(unary),
                "stream": grpc.stream_stream_rpc_method_handler(stream),
            }
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", handlers),))
            pipe.send(server.add_insecure_port("127.0.0.1:0"))
            await server.start()
            await asyncio.sleep(SERVE_SECONDS)

        asyncio.run(main())

    def use(port: int, total: int) -> Figures:
        each = max(1, count * total // VOLUME // callers)
        return asyncio.run(call(port, each))

    async def call(port: int, each: int) -> Figures:
        data = os.urandom(size)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", UNLIMITED) as channel:
            one, many = channel.unary_unary("/bench/unary"), channel.stream_stream("/bench/stream")
            await one(data)

            async def messages() -> AsyncIterator[bytes]:
                for _ in range(each):
                    yield data

            async def caller() -> None:
                if streaming:
                    async for _ in many(messages()):
                        pass
                else:
                    for _ in range(each):
                        await one(data)

            began = time.perf_counter()
            await asyncio.gather(*(caller() for _ in range(callers)))
            return _rates(each * callers, size, time.perf_counter() - began)

    return between(serve, use)


def _rates(count: int, size: int, seconds: float) -> Figures:
    return {"calls_per_s": count / seconds, "MiB_per_s": count * size / MIB / seconds}


JOBS: dict[str, Job] = {
    "write/1MiB": write(MIB),
    "write/16KiB": write(16384),
    "write/1MiB+fsync": write(MIB, sync=True),
    "tcp/recv-64KiB": receive(65536, to_file=False),
    "tcp/recv-1MiB": receive(MIB, to_file=False),
    "tcp/recv-64KiB-to-file": receive(65536, to_file=True),
    "tcp/recv-1MiB-to-file": receive(MIB, to_file=True),
    "tcp/sendfile": send_file(),
    "asyncio/1KiB/depth=1": requests(1024, 1, 30_000),
    "asyncio/1KiB/depth=5": requests(1024, 5, 100_000),
    "asyncio/16KiB/depth=5": requests(16384, 5, 50_000),
    "asyncio/128KiB/depth=5": requests(131072, 5, 10_000),
    "grpc/unary/1KiB/1": rpc(1024, 1, 3_000, streaming=False),
    "grpc/unary/1KiB/32": rpc(1024, 32, 10_000, streaming=False),
    "grpc/unary/1MiB/1": rpc(MIB, 1, 400, streaming=False),
    "grpc/unary/1MiB/4": rpc(MIB, 4, 800, streaming=False),
    "grpc/stream/1KiB/1": rpc(1024, 1, 20_000, streaming=True),
    "grpc/stream/1KiB/4": rpc(1024, 4, 20_000, streaming=True),
    "grpc/stream/1MiB/1": rpc(MIB, 1, 800, streaming=True),
}

if __name__ == "__main__":
    run(JOBS, __doc__)
