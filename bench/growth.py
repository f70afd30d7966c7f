"""How cost grows: what the broker's processor does for one request or one GiB, against what there is more and more of.

    python -m bench.growth [partitions|connections|consumers|records|length ...] [--most 1000] [--minutes 5] [--out DIR]

Every series should stay flat: a value that grows along it means that the whole grows faster than linearly. Processor
time is what counts here, since it changes least with what else runs on the machine. A series ends at its first step
after --minutes. Results: a table, and in --out (bench/results) growth.json, written after every step, and growth.svg.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import selectors
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from bench.peers import measuring
from bench.peers.measuring import cpu_seconds
from bench.peers.servers import Headrace
from bench.peers.throughput import exchange, produce_frame

from headrace.records.batch import HEADER_SIZE, LOG_OVERHEAD, stamp
from headrace.records.record import Record, build
from headrace.storage.config import LogConfig
from headrace.storage.files import OsFiles
from headrace.storage.log import Log
from headrace.storage.recovery import Known, open_log

STEPS = (1, 10, 100, 1000, 10_000)
REQUESTS = 4000
IN_FLIGHT = 5
BATCH = bytes(build([Record(n, 0, None, bytes(1024)) for n in range(16)]))
MIB = 1 << 20
GIB = 1 << 30
READ_BYTES = 64 * MIB
SECONDS = 3.0


class Point(NamedTuple):
    """One step of a series: how many there are, what one unit of work costs, and how fast it went."""

    x: int
    cost: float
    rate: float


Series = Iterator[Point]


class Talk:
    """Sockets that each have requests under way; every answer asks `follow` for the next request of its socket."""

    def __init__(self, address: str, count: int) -> None:
        host, port = address.rsplit(":", 1)
        self.sockets = [socket.create_connection((host, int(port))) for _ in range(count)]
        self._left: dict[socket.socket, bytearray] = {each: bytearray() for each in self.sockets}

    def run(self, first: Callable[[int], list[bytes]], follow: Callable[[int, int], bytes | None]) -> None:
        """`first` gives a socket's opening requests, `follow(socket, answer's size)` the next one, or None."""
        under_way = 0
        with selectors.DefaultSelector() as ready:
            for number, each in enumerate(self.sockets):
                ready.register(each, selectors.EVENT_READ, number)
                for frame in first(number):
                    each.sendall(frame)
                    under_way += 1
            while under_way:
                for key, _ in ready.select():
                    under_way += self._received(self.sockets[key.data], key.data, follow)

    def _received(self, sock: socket.socket, number: int, follow: Callable[[int, int], bytes | None]) -> int:
        """How many more requests are under way after what has come."""
        buffer, more = self._left[sock], 0
        buffer += sock.recv(4 * MIB)
        while len(buffer) >= 4 and len(buffer) >= (size := struct.unpack_from(">i", buffer)[0] + 4):
            del buffer[:size]
            frame = follow(number, size)
            if frame is None:
                more -= 1
            else:
                sock.sendall(frame)
        return more

    def close(self) -> None:
        for each in self.sockets:
            each.close()


def fetch_frame(topic: str, offset: int, max_bytes: int) -> bytes:
    """A Fetch v4 request for partition 0."""
    head = struct.pack(">hhih", 1, 4, 1, -1) + struct.pack(">iiiib", -1, 500, 1, max_bytes, 0)
    body = head + struct.pack(">ih", 1, len(topic)) + topic.encode() + struct.pack(">iiqi", 1, 0, offset, max_bytes)
    return struct.pack(">i", len(body)) + body


def produced(server: Headrace, frames: list[bytes], requests: int) -> tuple[float, float]:
    """Processor seconds of the brokers and seconds passed for so many requests, by one connection."""
    talk = Talk(server.bootstrap, 1)
    left = iter(range(requests - IN_FLIGHT))
    frame = (frames[number % len(frames)] for number in range(requests + IN_FLIGHT))
    used, began = cpu_seconds(server.broker_pids), time.perf_counter()
    talk.run(
        lambda _: [next(frame) for _ in range(IN_FLIGHT)],
        lambda *_: next(frame) if next(left, None) is not None else None,
    )
    talk.close()
    return cpu_seconds(server.broker_pids) - used, time.perf_counter() - began


def partitions(server: Headrace, most: int) -> Series:
    """Produce requests of a 16 KiB batch, to each partition in turn: µs a request."""
    for count in (step for step in STEPS if step <= most):
        topics = []
        for start in range(0, count, 1000):
            topics.append((topic := measuring.fresh("growth"), min(1000, count - start)))
            measuring.create(server, topic, topics[-1][1])
        frames = [produce_frame(topic, BATCH, number) for topic, size in topics for number in range(size)]
        produced(server, frames, len(frames) + IN_FLIGHT)  # files and indexes are there
        used, passed = produced(server, frames, REQUESTS)
        yield Point(count, used / REQUESTS * 1e6, REQUESTS / passed)
        for topic, _ in topics:
            measuring.delete(server, topic)


def connections(server: Headrace, most: int) -> Series:
    """Connections that each send a record of 1 KiB and wait for its answer: µs a request."""
    topic = measuring.fresh("growth")
    measuring.create(server, topic, 1)
    for count in (step for step in (*STEPS[:-1], 5000) if step <= most):
        used = cpu_seconds(server.broker_pids)
        answered, passed = asyncio.run(exchange(server.bootstrap, topic, count, SECONDS))
        used = cpu_seconds(server.broker_pids) - used
        yield Point(count, used / answered * 1e6, answered / passed)


def consumers(server: Headrace, most: int) -> Series:
    """Readers of the same partition, each from its beginning to its end: processor seconds a GiB."""
    topic = measuring.fresh("growth")
    measuring.create(server, topic, 1)
    batches = READ_BYTES // len(BATCH)
    produced(server, [produce_frame(topic, BATCH, 0)], batches)
    overhead = 4 + 4 + 4 + 4 + 2 + len(topic) + 4 + 4 + 2 + 8 + 8 + 4 + 4
    for count in (step for step in (1, 3, 10, 30, 100) if step <= most):
        at = [0] * count

        def follow(reader: int, size: int, at: list[int] = at) -> bytes | None:
            at[reader] += (size - overhead) // len(BATCH) * 16
            return fetch_frame(topic, at[reader], MIB) if at[reader] < batches * 16 else None

        talk = Talk(server.bootstrap, count)
        used, began = cpu_seconds(server.broker_pids), time.perf_counter()
        talk.run(lambda _: [fetch_frame(topic, 0, MIB)], follow)
        used, passed = cpu_seconds(server.broker_pids) - used, time.perf_counter() - began
        talk.close()
        moved = count * batches * len(BATCH) / GIB
        yield Point(count, used / moved, moved * 1024 / passed)


def records(server: Headrace, most: int) -> Series:
    """Records of so many bytes, in batches of 16 KiB or one record: processor seconds a GiB."""
    for size in (10, 100, 1000, 10_000, 100_000, 1_000_000):
        if size > 1000 * most:
            continue
        topic = measuring.fresh("growth")
        measuring.create(server, topic, 1)
        batch = bytes(build([Record(n, 0, None, bytes(size)) for n in range(max(1, 16384 // (size + 8)))]))
        requests = max(200, min(REQUESTS, 256 * MIB // len(batch)))
        used, passed = produced(server, [produce_frame(topic, batch, 0)], requests)
        moved = requests * len(batch) / GIB
        yield Point(size, used / moved, moved * 1024 / passed)
        measuring.delete(server, topic)


def length(server: Headrace, most: int) -> Series:
    """A log of so many GiB (its records are holes): µs to find a random offset, and logs opened a second."""
    chance = random.Random(1)
    for size in (size for size in (1, 3, 10, 25, 50) if size <= max(10, most)):
        with tempfile.TemporaryDirectory(prefix="growth-") as folder:
            log = open_log(OsFiles(), f"{folder}/t-0", LogConfig.of({}))
            _lengthen(log, size * GIB)
            log.close()
            began = time.process_time()
            log = open_log(
                OsFiles(), f"{folder}/t-0", LogConfig.of({}), Known(recovery_point=log.log_end_offset, clean=True)
            )
            opened = time.process_time() - began
            end = log.log_end_offset
            began = time.process_time()
            for _ in range(REQUESTS):
                log.read(chance.randrange(end), MIB, upto=end)
            yield Point(size, (time.process_time() - began) / REQUESTS * 1e6, 1 / opened)
            log.release()


def _lengthen(log: Log, size: int) -> None:
    """Adds batches of 1,000 records and 1 MiB whose records are holes in the file, until the log has `size` bytes."""
    header = bytearray(build([Record(n, 0, None, b"") for n in range(1000)])[:HEADER_SIZE])
    struct.pack_into(">i", header, 8, MIB - LOG_OVERHEAD)
    for number in range(size // MIB):
        if number % 1024 == 1023:
            log.roll()
        segment, offset = log.segments.active, number * 1000
        position = segment.size
        stamp(header, 0, offset, 0)
        segment.log.append(header)
        segment.log.truncate(position + MIB)
        segment.size = position + MIB
        segment.note(position, MIB, offset + 999, number)
        log.log_end_offset = offset + 1000


SERIES: dict[str, tuple[Callable[[Headrace, int], Series], str, str]] = {
    "partitions": (partitions, "µs a request", "requests/s"),
    "connections": (connections, "µs a request", "requests/s"),
    "consumers": (consumers, "CPU s a GiB", "MiB/s"),
    "records": (records, "CPU s a GiB", "MiB/s"),
    "length": (length, "µs a read", "logs opened/s"),
}


def draw(found: dict[str, list[Point]], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(found), figsize=(4 * len(found), 3.2), layout="constrained", squeeze=False)
    for place, (name, points) in zip(axes[0], found.items(), strict=True):
        place.plot([point.x for point in points], [point.cost for point in points], marker="o")
        place.set_xscale("log")
        place.set_ylim(bottom=0)
        place.set_xlabel(name)
        place.set_ylabel(SERIES[name][1])
    figure.savefig(path)
    pyplot.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("series", nargs="*", default=list(SERIES), metavar="SERIES")
    parser.add_argument("--most", type=int, default=1000, help="where a series ends at the latest")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    given = parser.parse_args()
    deadline = time.monotonic() + given.minutes * 60
    if unknown := set(given.series) - set(SERIES):
        print(f"no such series: {' '.join(sorted(unknown))}; there are {' '.join(SERIES)}", file=sys.stderr)
        return 2
    found: dict[str, list[Point]] = {}
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="growth-", ignore_cleanup_errors=True) as folder:
        server = Headrace(Path(folder) / "headrace", 1)
        server.start()
        try:
            for name in given.series:
                measure, cost, rate = SERIES[name]
                found[name] = []
                for point in measure(server, given.most):
                    found[name].append(point)
                    print(
                        f"{name:12} {point.x:>9,}  {point.cost:9.2f} {cost:14} {point.rate:11,.1f} {rate}", flush=True
                    )
                    (given.out / "growth.json").write_text(json.dumps(found, indent=1) + "\n")
                    if time.monotonic() > deadline:
                        break
        finally:
            server.stop()
    draw(found, given.out / "growth.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
