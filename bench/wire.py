"""The wire listener against plain asyncio streams, in one run: requests a second of small requests, megabytes a second
of large ones, and the processor time a server takes for one request, which other load on the machine changes least.
Both servers do the same (read a frame, answer with its correlation id); the client is a process of its own.

    python bench/wire.py [--seconds 2] [--rounds 3]

What counts is the ratio: both run on the same machine at the same load, turn by turn.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import socket
import statistics
import struct
import time
from typing import Any

from headrace.wire.api import Api, Context, handles
from headrace.wire.listener import Listener
from headrace.wire.protocol import ApiKey

IN_FLIGHT = 5


@handles(ApiKey.PRODUCE, versions=(3, 13), raw=True)
def null(service: object, context: Context, body: memoryview) -> bytes:
    return b"\0\0\0\0"


async def serve_ours(ready: Any) -> None:
    listener = Listener(Api(None, [null.__handles__]))  # type: ignore[attr-defined]
    ready.put((await listener.start("127.0.0.1", 0))[1])
    await asyncio.Event().wait()


async def serve_streams(ready: Any) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                writer.write(struct.pack(">ii", 8, struct.unpack_from(">i", frame, 4)[0]) + b"\0\0\0\0")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    ready.put(server.sockets[0].getsockname()[1])
    await asyncio.Event().wait()


def serve(kind: str, ready: Any) -> None:
    asyncio.run({"ours": serve_ours, "streams": serve_streams}[kind](ready))


def drive(port: int, body: int, seconds: float) -> float:
    """Requests a second, with `IN_FLIGHT` of them unanswered, from one blocking socket."""
    request = struct.pack(">hhih", 0, 3, 1, 1) + b"b" + bytes(body)
    frame = struct.pack(">i", len(request)) + request
    answer = 12
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(IN_FLIGHT):
            sock.sendall(frame)
        done = got = 0
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            got += len(sock.recv(65536))
            fresh, got = divmod(got, answer)
            sock.sendall(frame * fresh)
            done += fresh
        return done / (time.perf_counter() - started)


def cpu_seconds(pid: int) -> float:
    """Processor time a process has taken, in the kernel too."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    servers: dict[str, tuple[Any, int]] = {}
    for kind in ("ours", "streams"):
        ready = context.Queue()
        server = context.Process(target=serve, args=(kind, ready), daemon=True)
        server.start()
        servers[kind] = (server, ready.get(timeout=60))
    for body, unit, scale in ((1024, "requests/s", 1.0), (131072, "MB/s", 131072 / 1e6)):
        rates: dict[str, list[float]] = {"ours": [], "streams": []}
        costs: dict[str, list[float]] = {"ours": [], "streams": []}
        for _ in range(options.rounds):
            for kind, (server, port) in servers.items():
                before = cpu_seconds(server.pid)
                rate = drive(port, body, options.seconds)
                costs[kind].append((cpu_seconds(server.pid) - before) / (rate * options.seconds) * 1e6)
                rates[kind].append(rate * scale)
        print(f"{body // 1024} KiB, {IN_FLIGHT} in flight")
        for name, values, best in ((unit, rates, "larger"), ("µs of CPU a request", costs, "smaller")):
            ours, streams = (statistics.median(values[kind]) for kind in ("ours", "streams"))
            print(f"  {name}: ours {ours:,.1f}, streams {streams:,.1f}, ratio {ours / streams:.2f} ({best} is better)")
    for server, _ in servers.values():
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
