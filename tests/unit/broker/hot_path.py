"""The hot path in one thread: the broker's own handlers on real logs, behind a real connection on a real socket pair.

Only the loop is a stand-in, so that a test says when a turn happens, and what the loop itself does is not counted.
"""

from __future__ import annotations

import gc
import math
import random
import socket
import struct
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

from headrace.broker.authorizer import AllowAll
from headrace.broker.fetch_session import Sessions
from headrace.broker.partition import Partition
from headrace.broker.replica_manager import ReplicaManager
from headrace.broker.stats import Stats
from headrace.cluster.image import Image
from headrace.cluster.image import Partition as State
from headrace.records.record import Record, build
from headrace.storage.config import LogConfig
from headrace.storage.files import OsFiles
from headrace.storage.recovery import open_log
from headrace.timing.purgatory import Purgatory
from headrace.timing.wheel import TimerEntry, TimingWheel
from headrace.wire.api import Api
from headrace.wire.connection import Connection
from headrace.wire.listener import Listener, ListenerConfig
from headrace.wire.primitives import write_uvarint

TOPIC, TOPIC_ID = "t", uuid.UUID(int=7)
PRODUCE, FETCH = (0, 13), (1, 18)
BUFFER_BYTES = 8 << 20


class Turns:
    """What a connection needs of a loop; `turn` does what was asked for."""

    def __init__(self) -> None:
        self.readers: dict[int, Callable[[], None]] = {}
        self.soon: list[Callable[[], None]] = []
        self._wheel = TimingWheel(0)

    def add_reader(self, sock: socket.socket, callback: Callable[[], None]) -> None:
        self.readers[sock.fileno()] = callback

    def remove_reader(self, sock: socket.socket) -> None:
        del self.readers[sock.fileno()]

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def time(self) -> float:
        return time.monotonic()

    def turn(self) -> None:
        """Every socket is read once, then what was put off is done."""
        for callback in list(self.readers.values()):
            callback()
        while self.soon:
            soon, self.soon = self.soon, []
            for callback in soon:
                callback()

    # a purgatory's timer
    def schedule(self, entry: TimerEntry, delay_ms: float) -> None:
        self._wheel.add(entry, int(delay_ms))

    def cancel(self, entry: TimerEntry) -> bool:
        return self._wheel.cancel(entry)


class WallClock:
    def time_ms(self) -> int:
        return int(time.time() * 1000)

    monotonic = staticmethod(time.monotonic)


class HotPath:
    """A broker that leads all partitions of one topic, and one client's socket to it."""

    def __init__(self, folder: Path, partitions: int = 3, longest_turn_ms: float = math.inf) -> None:
        self.loop = Turns()
        image = Image()
        self.replicas = ReplicaManager(
            0,
            WallClock(),  # type: ignore[arg-type]
            Stats(),
            Purgatory("Produce", self.loop),
            Purgatory("Fetch", self.loop),
            self.loop.call_soon,
            lambda: image,
        )
        for index in range(partitions):
            log = open_log(OsFiles(), str(folder / f"{TOPIC}-{index}"), LogConfig.of({}))
            partition = Partition(TOPIC, TOPIC_ID, index, 0, log, 0)
            self.replicas.add(partition)
            partition.lead(State(0, 0, (0,), (0,), 0), time.monotonic())
        broker = SimpleNamespace(
            replicas=self.replicas,
            authorizer=AllowAll(),
            sessions=Sessions(1000, 120.0, random.Random(1)),
            config={"fetch.max.bytes": 57_671_680},
            topic_name=lambda topic: TOPIC,
            count_read=lambda topic, size: None,
        )
        config = ListenerConfig(longest_turn_ms=longest_turn_ms)
        self.listener = Listener(Api.of(broker, "headrace.broker.handlers"), config)
        self.listener.loop = self.loop  # type: ignore[assignment]
        ours, self.client = socket.socketpair()
        for each in (ours, self.client):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        ours.setblocking(False)
        self.connection = Connection(self.listener, ours, ("client", 1), self.listener.api)
        self.connection.start()

    def ask(self, *frames: bytes) -> list[bytes]:
        """Sends requests, lets the broker have one turn, and returns the answers."""
        self.send(*frames)
        self.loop.turn()
        return [self.answer() for _ in frames]

    def send(self, *frames: bytes) -> None:
        for frame in frames:
            self.client.sendall(frame)

    def answer(self) -> bytes:
        """The next answer, without its size."""
        (size,) = struct.unpack(">i", self._receive(4))
        return self._receive(size)

    def _receive(self, size: int) -> bytes:
        return self.client.recv(size, socket.MSG_WAITALL)

    def close(self) -> None:
        self.connection.close("the end")
        self.client.close()
        self.listener.executor.shutdown()


def produce_frame(partitions: int, batch_bytes: int, acks: int = 1, record_bytes: int = 1024) -> bytes:
    """A Produce v13 request as Kafka's own client sends it: a batch for each of some partitions of one topic."""
    now = int(time.time() * 1000)
    count = max(1, batch_bytes // (record_bytes + 10))
    batch = build([Record(i, now, None, bytes(record_bytes)) for i in range(count)])
    body = bytearray(b"\0" + struct.pack(">hi", acks, 30_000) + b"\x02" + TOPIC_ID.bytes)
    write_uvarint(body, partitions + 1)
    for index in range(partitions):
        body += struct.pack(">i", index)
        write_uvarint(body, len(batch) + 1)
        body += batch + b"\0"
    body += b"\0\0"
    return _framed(PRODUCE, bytes(body))


def fetch_frame(
    session: int, epoch: int, offsets: dict[int, int], max_wait_ms: int = 0, partition_max_bytes: int = 1 << 20
) -> bytes:
    """A Fetch v18 request as Kafka's own client sends it, for the partitions that are named."""
    body = bytearray(struct.pack(">iiib", max_wait_ms, 1, 50 << 20, 0) + struct.pack(">ii", session, epoch))
    if offsets:
        body += b"\x02" + TOPIC_ID.bytes
        write_uvarint(body, len(offsets) + 1)
        for index, offset in offsets.items():
            body += struct.pack(">iiqiqi", index, 0, offset, -1, -1, partition_max_bytes) + b"\0"
        body += b"\0"
    else:
        body += b"\x01"
    body += b"\x01\x01\0"  # nothing forgotten, no rack, no tags
    return _framed(FETCH, bytes(body))


def _framed(api: tuple[int, int], body: bytes) -> bytes:
    whole = struct.pack(">hhih", *api, 1, 18) + b"perf-producer-clie\0" + body
    return struct.pack(">i", len(whole)) + whole


class Calls:
    """Python functions and C functions that were called, by name."""

    def __init__(self) -> None:
        self.python: Counter[CodeType] = Counter()
        self.c: Counter[str] = Counter()

    def note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self.python[frame.f_code] += 1
        elif event == "c_call":
            self.c[argument.__qualname__] += 1

    @property
    def total(self) -> int:
        return self.python.total() + self.c.total()

    def __repr__(self) -> str:
        named = [(f"{Path(code.co_filename).name}:{code.co_name}", n) for code, n in self.python.most_common()]
        lines = [f"{n:6} {name}" for name, n in [*named, *self.c.most_common()]]
        return "\n".join([f"{self.python.total()} Python calls, {self.c.total()} C calls", *lines])


@contextmanager
def counted() -> Iterator[Calls]:
    """What is called meanwhile; not by the collector, which would finalise what other tests left behind."""
    calls = Calls()
    gc.disable()
    sys.setprofile(calls.note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        gc.enable()
        calls.c["setprofile"] -= 1
