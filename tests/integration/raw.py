"""Requests byte by byte: frames built with kio on a plain socket, so that a test can send what no client would."""

from __future__ import annotations

import contextlib
import datetime
import io
import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import fields
from types import TracebackType
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.records.schema import NewRecordBatch, Record
from kio.records.writers import write_batch
from kio.serial import entity_reader, entity_writer

CLIENT_ID = "headrace-tests"
PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, INIT_PRODUCER_ID = 0, 1, 2, 3, 18, 22


class Closed(Exception):
    """The server closed the connection instead of answering."""


def seconds(amount: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=amount)


def body(request: Any) -> bytes:
    """A request's header and body, without the length in front."""
    kind = type(request)
    header = kind.__header_schema__
    given = {
        "request_api_key": kind.__api_key__,
        "request_api_version": kind.__version__,
        "correlation_id": 1,
        "client_id": CLIENT_ID,
    }
    buffer = io.BytesIO()
    entity_writer(header)(buffer, header(**{name: given[name] for name in (field.name for field in fields(header))}))
    entity_writer(kind)(buffer, request)
    return buffer.getvalue()


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def record_batch(
    values: Iterable[bytes | None],
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    timestamp_ms: int | None = None,
) -> bytes:
    """An uncompressed record batch v2 with these values."""
    milliseconds = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    at = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    records = tuple(
        Record(attributes=0, timestamp=at, offset=number, key=None, value=value, headers=())
        for number, value in enumerate(values)
    )
    buffer = io.BytesIO()
    new = NewRecordBatch(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        records=records,
        attributes=0,
    )
    write_batch(buffer, new)
    return buffer.getvalue()


def produce_request(topic: str, records: bytes | None, *, acks: int = -1, partition: int = 0, version: int = 9) -> Any:
    kind = load_request_schema(PRODUCE, version)
    hints = _nested(kind)
    part = hints["PartitionProduceData"](index=partition, records=records)
    data = hints["TopicProduceData"](name=topic, partition_data=(part,))
    return kind(transactional_id=None, acks=acks, timeout=seconds(5), topic_data=(data,))


def fetch_request(
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    max_wait: float = 0.5,
    min_bytes: int = 1,
    max_bytes: int = 50 << 20,
    partition_max_bytes: int = 1 << 20,
    leader_epoch: int = -1,
) -> Any:
    """Fetch v11: the last version that names its topics, and without a session."""
    kind = load_request_schema(FETCH, 11)
    hints = _nested(kind)
    part = hints["FetchPartition"](
        partition=partition,
        current_leader_epoch=leader_epoch,
        fetch_offset=offset,
        log_start_offset=-1,
        partition_max_bytes=partition_max_bytes,
    )
    return kind(
        replica_id=-1,
        max_wait=seconds(max_wait),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=(hints["FetchTopic"](topic=topic, partitions=(part,)),),
        forgotten_topics_data=(),
        rack_id="",
    )


def _nested(kind: type[Any]) -> dict[str, Any]:
    """The classes of the module a request is declared in: its parts."""
    return vars(__import__(kind.__module__, fromlist=["_"]))


class Wire:
    """One connection."""

    def __init__(self, address: str, timeout: float = 20.0) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are; a server that has already hung up is no failure here, the answer tells."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def receive(self) -> bytes:
        """The next response frame without its length; raises `Closed` at the end of the stream."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, count: int) -> bytes:
        chunks = bytearray()
        while len(chunks) < count:
            try:
                chunk = self.socket.recv(min(count - len(chunks), 1 << 16))
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                raise Closed
            chunks += chunk
        return bytes(chunks)

    def call(self, request: Any) -> Any:
        """Send a request and read its answer."""
        self.send(framed(body(request)))
        return decode(self.receive(), type(request).__api_key__, type(request).__version__)


def decode(frame: bytes, api_key: int, version: int) -> Any:
    """The body of a response frame."""
    kind = load_response_schema(api_key, version)
    _, used = entity_reader(kind.__header_schema__)(frame, 0)
    response, _ = entity_reader(kind)(frame, used)
    return response


def produce(wire: Wire, topic: str, records: bytes | None, **options: Any) -> Any:
    """Produce to one partition and return that partition's part of the answer."""
    return wire.call(produce_request(topic, records, **options)).responses[0].partition_responses[0]


def fetch(wire: Wire, topic: str, offset: int, **options: Any) -> Any:
    """Fetch one partition and return that partition's part of the answer."""
    return wire.call(fetch_request(topic, offset, **options)).responses[0].partitions[0]


def api_versions(wire: Wire) -> dict[int, tuple[int, int]]:
    """What the server says it knows: API key → (oldest, newest version)."""
    answer = wire.call(load_request_schema(API_VERSIONS, 0)())
    return {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
