"""What one request costs, counted in calls and not in time: a layer that is added to the hot path is noticed here.

The bounds are what was counted when they were written. Lower them with what you save; raise them only for something
that is worth it, and say what.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.peers.throughput import produce_frame as many_connections_frame
from tests.unit.broker.hot_path import TOPIC, Calls, HotPath, counted, fetch_frame, produce_frame

from headrace.records.record import Record, build
from headrace.wire import connection

WARM_UP = 3
names_calls = pytest.mark.skipif(
    connection.__file__.endswith(".so"), reason="what compiled code calls cannot be seen; `make test` sees it"
)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[HotPath]:
    made = HotPath(tmp_path, partitions=50)
    yield made
    made.close()


def calls(path: HotPath, *frames: bytes) -> Calls:
    """What the broker calls for requests that come in one go; none of them is the first of its kind."""
    path.send(*frames)
    with counted() as found:
        path.loop.turn()
    for _ in frames:
        path.answer()
    return found


def read_all(path: HotPath) -> None:
    """A turn that does not end."""
    for callback in list(path.loop.readers.values()):
        callback()


def within(found: Calls, python: int, c: int) -> None:
    assert found.python.total() <= python, found
    assert found.c.total() <= c, found


def produced(path: HotPath, partitions: int, batch_bytes: int, acks: int = 1, record_bytes: int = 1024) -> Calls:
    frame = produce_frame(partitions, batch_bytes, acks, record_bytes)
    for _ in range(WARM_UP):
        path.ask(frame)
    return calls(path, frame)


def session_of(path: HotPath, partitions: int) -> int:
    """A fetch session that has read all there is; its next epoch is 2."""
    [answer] = path.ask(fetch_frame(0, 0, dict.fromkeys(range(partitions), 0)))
    session: int = struct.unpack_from(">i", answer, 11)[0]
    return session


def fetched(path: HotPath, partitions: int) -> Calls:
    """A consumer at the end of `partitions` gets the next batch of each."""
    session = session_of(path, partitions)
    ends = {index: path.replicas.get("t", index).log.log_end_offset for index in range(partitions)}
    path.ask(fetch_frame(session, 1, ends))
    path.ask(produce_frame(partitions, 16384))
    return calls(path, fetch_frame(session, 2, ends))


def test_a_produce_request(path: HotPath) -> None:
    within(produced(path, 1, 16384), python=49, c=63)


def test_a_produce_request_of_an_old_client(path: HotPath) -> None:
    batch = bytes(build([Record(0, int(time.time() * 1000), None, bytes(1024))]))
    frame = many_connections_frame(TOPIC, batch, 0)
    for _ in range(WARM_UP):
        path.ask(frame)
    within(calls(path, frame), python=42, c=60)


def test_each_further_partition_of_a_produce_request(path: HotPath) -> None:
    one, eleven = produced(path, 1, 1024), produced(path, 11, 1024)
    assert (eleven.python.total() - one.python.total()) / 10 <= 12, eleven


@names_calls
def test_a_produce_request_reads_writes_and_answers_once(path: HotPath) -> None:
    found = produced(path, 1, 16384)
    assert [found.c[name] for name in ("socket.recv_into", "write", "socket.send", "crc32c")] == [1, 1, 1, 1], found


def test_no_step_looks_at_a_record(path: HotPath) -> None:
    few, many = produced(path, 1, 16384, record_bytes=8192), produced(path, 1, 16384, record_bytes=10)
    assert many.total == few.total, many


def test_acks_all_costs_a_lone_leader_nothing_more(path: HotPath) -> None:
    one, all_of_them = produced(path, 1, 16384, acks=1), produced(path, 1, 16384, acks=-1)
    assert all_of_them.total <= one.total + 2, all_of_them


@names_calls
def test_requests_that_come_together_are_read_and_answered_together(path: HotPath) -> None:
    frame = produce_frame(1, 1024)
    path.ask(frame)
    one, five = calls(path, frame), calls(path, *[frame] * 5)
    assert (five.c["socket.recv_into"], five.c["socket.sendmsg"], five.c["socket.send"]) == (1, 1, 0), five
    assert five.python.total() < 5 * one.python.total() - 40, five


def test_all_connections_that_have_something_are_read_before_any_is_answered(path: HotPath) -> None:
    """A client that its answer wakes finds more of them: otherwise both sides pay for a wake-up with each request."""
    frame = produce_frame(1, 1024)
    path.send(frame)
    read_all(path)
    with pytest.raises(BlockingIOError):
        path.client.recv(1, socket.MSG_DONTWAIT)
    path.loop.turn()
    assert path.answer()


def test_an_answer_waits_only_so_long_for_a_turn_to_end(tmp_path: Path) -> None:
    """That of uvloop goes on for as long as 1,024 sockets have something to read."""
    path = HotPath(tmp_path, longest_turn_ms=0)
    path.send(produce_frame(1, 1024))
    read_all(path)
    assert path.client.recv(1, socket.MSG_DONTWAIT)
    path.close()


@pytest.mark.parametrize("last", [None, b"\xff\xff\xff\xff"], ids=["nothing more", "garbage"])
def test_what_was_asked_before_the_end_of_a_connection_is_answered(path: HotPath, last: bytes | None) -> None:
    path.send(produce_frame(1, 1024))
    read_all(path)
    if last is None:
        path.client.shutdown(socket.SHUT_WR)
    else:
        path.send(last)
    read_all(path)
    assert path.connection.closed
    assert path.answer()


def test_a_fetch_request(path: HotPath) -> None:
    within(fetched(path, 1), python=109, c=119)


@names_calls
def test_a_fetch_answer_of_small_batches_is_read_and_sent_once(path: HotPath) -> None:
    found = fetched(path, 1)
    assert [found.c[name] for name in ("preadv", "socket.sendmsg", "sendfile", "socket.send")] == [1, 1, 0, 0], found


def test_each_further_partition_of_a_fetch_request(path: HotPath) -> None:
    one, eleven = fetched(path, 1), fetched(path, 11)
    assert (eleven.python.total() - one.python.total()) / 10 <= 37, eleven


def test_a_fetch_that_names_nothing_does_not_walk_over_its_session(path: HotPath) -> None:
    few, many = session_of(path, 2), session_of(path, 50)
    counts = []
    for session in (few, many):
        path.ask(fetch_frame(session, 1, {}))
        counts.append(calls(path, fetch_frame(session, 2, {})).total)
    assert counts[0] == counts[1]
