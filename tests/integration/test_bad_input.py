"""Bytes that no good client sends, over a live broker: a precise error or a closed connection, and nobody else notices.

A good client produces and reads all the while; at the end it has lost nothing, and the server holds no more memory.
"""

from __future__ import annotations

import contextlib
import random
import struct
import threading
import types
import typing
import uuid
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from tests.integration.cluster import EXTERNAL, Cluster, resident_bytes, wait_until
from tests.integration.kafka_clients import confluent_consumer, confluent_producer
from tests.integration.raw import (
    API_VERSIONS,
    METADATA,
    Closed,
    Wire,
    api_versions,
    body,
    decode,
    fetch,
    framed,
    produce,
    produce_request,
    record_batch,
)

SEED = 20
GROWTH = 32 << 20
# What a server says to another server (registrations, elections, markers) would be obeyed when it is well formed.
BETWEEN_SERVERS = {4, 5, 6, 7, 27, *range(52, 60), 62, 63, 64, 67, 70, 73, *range(80, 88)}


class Neighbour:
    """A good client: a record every few milliseconds, each acknowledged and read back in order."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self.sent = 0
        self.acknowledged = 0
        self.failed: list[Any] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce)

    def _produce(self) -> None:
        producer = confluent_producer(self._bootstrap, error_cb=self.failed.append, **{"linger.ms": 1})
        while not self._stop.wait(0.005):
            producer.produce(self._topic, b"%d" % self.sent, on_delivery=self._delivered)
            self.sent += 1
            producer.poll(0)
        producer.flush(30)

    def _delivered(self, error: Any, _: Any) -> None:
        if error:
            self.failed.append(error)
        else:
            self.acknowledged += 1

    def __enter__(self) -> Neighbour:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(40)

    def check(self) -> None:
        assert not self.failed, self.failed[0]
        assert self.sent == self.acknowledged > 0
        consumer = confluent_consumer(self._bootstrap)
        consumer.assign([TopicPartition(self._topic, 0, 0)])
        read: list[bytes | None] = []
        wait_until(lambda: read.extend(m.value() for m in consumer.consume(500, 0.2)) or len(read) >= self.sent, "all")
        consumer.close()
        assert read == [b"%d" % number for number in range(self.sent)]


@pytest.fixture(autouse=True, scope="module")
def undisturbed(request: pytest.FixtureRequest, bootstrap: str, new_topic: Callable[..., str]) -> Iterator[None]:
    """While these tests run: a good client is not disturbed and the server's memory does not grow."""
    pids: list[int] = []
    if not EXTERNAL:
        cluster: Cluster = request.getfixturevalue("own_cluster")
        pids = sorted({entry["pid"] for entry in cluster.processes if entry["role"] == "broker"})
    before = [resident_bytes(pid) for pid in pids]
    with Neighbour(bootstrap, new_topic("neighbour")) as neighbour:
        yield
    neighbour.check()
    for pid, held in zip(pids, before, strict=True):
        grown = resident_bytes(pid) - held
        assert grown < GROWTH, f"process {pid} grew by {grown >> 20} MiB"


def ends(wire: Wire) -> None:
    """The server closes this connection without an answer."""
    with pytest.raises(Closed):
        wire.receive()


def answers_or_ends(wire: Wire) -> bool:
    """Whether the server answered; a connection that stays silent fails with a timeout."""
    try:
        wire.receive()
    except Closed:
        return False
    return True


@pytest.mark.parametrize("size", [0x7FFFFFFF, 100 * 1024 * 1024 + 1, -1, -(2**31)])
def test_an_impossible_length_closes_the_connection(size: int, bootstrap: str) -> None:
    with Wire(bootstrap) as wire:
        wire.send(struct.pack(">i", size) + b"\x00" * 100)
        ends(wire)


@pytest.mark.parametrize(
    "greeting",
    [
        b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        b"\xff" * 64,
    ],
    ids=["http", "tls", "ones"],
)
def test_other_protocols_are_hung_up_on(greeting: bytes, bootstrap: str) -> None:
    with Wire(bootstrap) as wire:
        wire.send(greeting)
        ends(wire)


def test_garbage_frames(bootstrap: str) -> None:
    rng = random.Random(SEED)
    for _ in range(200):
        with Wire(bootstrap) as wire:
            wire.send(framed(b"\x7f" + rng.randbytes(rng.randint(0, 200))))
            ends(wire)


def test_half_frames_left_open_hold_up_nobody(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic("half")
    whole = framed(body(produce_request(topic, record_batch([b"x" * 1000]))))
    with contextlib.ExitStack() as open_ones:
        for cut in range(1, len(whole), len(whole) // 100):
            open_ones.enter_context(Wire(bootstrap)).send(whole[:cut])
        with Wire(bootstrap) as good:
            assert produce(good, topic, record_batch([b"good"])).base_offset == 0
    with Wire(bootstrap) as good:
        assert fetch(good, topic, 0, max_wait=0).high_watermark == 1, "no half request was carried out"


def test_a_frame_in_single_bytes_is_a_frame(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic("slow")
    with Wire(bootstrap) as wire:
        for byte in framed(body(produce_request(topic, record_batch([b"x"])))):
            wire.send(bytes([byte]))
        assert decode(wire.receive(), 0, 9).responses[0].partition_responses[0].base_offset == 0


@pytest.mark.parametrize("key", [-1, 93, 999, 32767])
def test_unknown_api_keys_close_the_connection(key: int, bootstrap: str) -> None:
    with Wire(bootstrap) as wire:
        wire.send(framed(struct.pack(">hhih", key, 0, 1, -1)))
        ends(wire)


def test_unknown_versions_are_refused_or_close_the_connection(bootstrap: str) -> None:
    unsupported = struct.pack(">h", ErrorCode.unsupported_version)
    with Wire(bootstrap) as wire:
        known = api_versions(wire)
    for key, (_, newest) in known.items():
        if key == API_VERSIONS:
            continue
        for version in (newest + 1, 32767, -1):
            with Wire(bootstrap) as wire:
                wire.send(framed(struct.pack(">hhih", key, version, 1, -1) + b"\x00" * 20))
                with contextlib.suppress(Closed):
                    assert unsupported in wire.receive(), (key, version)


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(bootstrap: str) -> None:
    with Wire(bootstrap) as wire:
        wire.send(framed(struct.pack(">hhih", API_VERSIONS, 99, 7, -1) + b"\x00"))
        frame = wire.receive()
        assert frame[:4] == struct.pack(">i", 7)
        answer = decode(frame, API_VERSIONS, 0)
        assert answer.error_code == ErrorCode.unsupported_version
        assert API_VERSIONS in [entry.api_key for entry in answer.api_keys]
        assert api_versions(wire), "and the connection goes on with a version both know"


def sample(kind: Any, rng: random.Random, name: str = "") -> Any:
    """A value of a kio type, filled in to the last field; names are such that nothing real is meant."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return sample(next(part for part in typing.get_args(kind) if part is not type(None)), rng, name)
    if origin is tuple:
        return tuple(sample(typing.get_args(kind)[0], rng, name) for _ in range(2))
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        given = {
            each.name: sample(hints[each.name], rng, each.name)
            for each in fields(kind)
            if each.default is MISSING or "tag" not in each.metadata
        }
        return kind(**given)
    return scalar(kind, rng, name)


def scalar(kind: Any, rng: random.Random, name: str) -> Any:
    if kind is bool:
        return False
    if issubclass(kind, uuid.UUID):
        return uuid.UUID(int=rng.getrandbits(128))
    if issubclass(kind, str):
        return f"no such {name}"
    if issubclass(kind, bytes | memoryview):
        return record_batch([b"x"])
    if issubclass(kind, timedelta):
        return timedelta(milliseconds=1)
    if issubclass(kind, datetime):
        return datetime.fromtimestamp(1, UTC)
    if issubclass(kind, float):
        return 1.0
    if issubclass(kind, ErrorCode):
        return ErrorCode.none
    return 1


def requests(bootstrap: str) -> Iterator[bytes]:
    """A whole valid request of the oldest and the newest version of every API the server names."""
    rng = random.Random(SEED)
    with Wire(bootstrap) as wire:
        known = api_versions(wire)
    for key, (oldest, newest) in sorted(known.items()):
        if key in BETWEEN_SERVERS:
            continue
        for version in {oldest, newest}:
            try:
                kind = load_request_schema(key, version)
            except Exception:
                # Produce 0 to 2 are named for librdkafka's sake alone: nobody can build them any more
                assert key in (0, *range(88, 200)), (key, version)
                continue
            yield body(sample(kind, rng))


def test_truncated_requests_of_every_api_are_refused_or_end_the_connection(bootstrap: str) -> None:
    rng = random.Random(SEED)
    tried = 0
    for whole in requests(bootstrap):
        start = 10 + len("headrace-tests")
        if len(whole) <= start + 1 or whole[:2] == struct.pack(">h", API_VERSIONS):
            continue
        for cut in {start + 1, len(whole) - 1, *(rng.randint(start, len(whole) - 1) for _ in range(3))}:
            with Wire(bootstrap) as wire:
                wire.send(framed(whole[:cut]))
                answers_or_ends(wire)
                tried += 1
    assert tried > 60


def test_damaged_requests_of_every_api_disturb_nobody(bootstrap: str) -> None:
    """A flipped byte may still make sense, and a wait: the answers are not looked at, only that the server lives on."""
    rng = random.Random(SEED)
    for whole in requests(bootstrap):
        key = struct.unpack(">h", whole[:2])[0]
        for _ in range(5):
            damaged = bytearray(whole)
            for _ in range(rng.randint(1, 4)):
                damaged[rng.randrange(8, len(damaged))] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            with Wire(bootstrap) as wire:
                wire.send(framed(bytes(damaged)))
                wire.send(framed(body(load_request_schema(API_VERSIONS, 0)())))
                wire.socket.settimeout(0.02)
                with contextlib.suppress(Closed, TimeoutError):
                    wire.receive()
        with Wire(bootstrap) as good:
            assert api_versions(good), key


def test_lengths_inside_a_request_that_promise_gigabytes(bootstrap: str) -> None:
    """Array and string lengths of 2^31-1 in old and new encoding: refused before anything is set aside for them."""
    old = struct.pack(">hhih", METADATA, 4, 1, -1) + struct.pack(">i", 0x7FFFFFFF) + b"\x00\x01a" * 10
    new = struct.pack(">hhih", METADATA, 12, 1, -1) + b"\x00" + b"\xff\xff\xff\xff\x07" + b"\x00" * 40
    string = struct.pack(">hhih", METADATA, 12, 1, -1) + b"\x00\x02" + b"\x00" * 16 + b"\xff\xff\xff\xff\x07" + b"a" * 9
    for frame in (old, new, string):
        for _ in range(20):
            with Wire(bootstrap) as wire:
                wire.send(framed(frame))
                ends(wire)


def test_batches_with_lying_fields_are_refused(bootstrap: str, new_topic: Callable[..., str]) -> None:
    """Every field of the batch header in turn says something else; nothing of it is kept."""
    topic = new_topic("lies")
    rng = random.Random(SEED)
    good = record_batch([b"one", b"two"])
    with Wire(bootstrap) as wire:
        for position in range(8, len(good)):
            if 12 <= position < 16:
                continue  # the leader epoch is the broker's to write
            wrong = bytearray(good)
            wrong[position] ^= rng.randrange(1, 256)
            assert produce(wire, topic, bytes(wrong)).error_code != 0, position
        assert produce(wire, topic, good).base_offset == 0


def test_oversized_records_are_refused_and_the_connection_lives(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic("oversized")
    huge = record_batch([b"x" * (20 << 20)])
    with Wire(bootstrap) as wire:
        for _ in range(5):
            assert produce(wire, topic, huge).error_code == ErrorCode.message_too_large
        assert produce(wire, topic, record_batch([b"small"])).base_offset == 0


def test_many_connections_that_say_nothing(bootstrap: str) -> None:
    with contextlib.ExitStack() as open_ones:
        for _ in range(300):
            open_ones.enter_context(Wire(bootstrap))
        with Wire(bootstrap) as good:
            assert api_versions(good)
