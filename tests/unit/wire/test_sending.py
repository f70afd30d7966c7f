"""What a live listener sends: ranges of files across partial writes, cold data, slow readers."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import Range, frame, read_frame, until

from headrace.wire import page_cache, sending
from headrace.wire.errors import ConnectionClosed

DATA = os.urandom(1 << 20) * 12


@pytest.fixture
def log_file(tmp_path: Path):
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(DATA)
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


async def test_ranges_and_bytes_arrive_in_order_across_partial_writes(live, log_file) -> None:
    one = await live(socket_send_buffer_bytes=131072)
    client = await one.client()
    ranges = [Range(log_file, 1, 3_000_000), Range(log_file, 5_000_000, 7), Range(log_file, 100, 6_000_001)]
    zero = Range(log_file, 0, 0)
    one.service.answers = [b"head", ranges[0], b"", ranges[1], zero, b"x" * 9000, bytearray(b"y"), ranges[2], b"tail"]
    files = [DATA[each.position :][: each.length] for each in ranges]
    expected = b"".join([b"head", files[0], files[1], b"x" * 9000, b"y", files[2], b"tail"])
    answers = await asyncio.gather(*(client.send(1, 4, [b""]) for _ in range(2)))
    assert [bytes(answer) == expected for answer in answers] == [True, True]
    assert [each.released for each in (*ranges, zero)] == [2, 2, 2, 2]


async def test_cold_data_is_read_ahead_by_a_worker(live, log_file, monkeypatch) -> None:
    one = await live()
    client, other = await one.client(), await one.client()
    go = threading.Event()
    ahead: list[tuple[int, int]] = []

    def slow_disk(descriptor: int, position: int, length: int) -> None:
        ahead.append((position, length))
        assert threading.current_thread() is not threading.main_thread()
        go.wait(10)

    monkeypatch.setattr(page_cache, "is_cached", lambda descriptor, position, length: False)
    monkeypatch.setattr(page_cache, "read_ahead", slow_disk)
    one.service.answers = [Range(log_file, 10, 2_500_000)]
    cold = client.send(1, 4, [b""])
    await until(lambda: ahead)
    assert bytes(await other.send(0, 3, [b"now"])) == b"now", "a slow reader of old data was felt by another"
    assert not cold.done()
    go.set()
    assert bytes(await cold) == DATA[10:2_500_010]
    assert ahead == [(10, 1 << 20), (10 + (1 << 20), 1 << 20), (10 + (2 << 20), 2_500_000 - (2 << 20))]


async def test_a_file_is_kept_open_while_a_worker_reads_it(live, log_file, monkeypatch) -> None:
    one = await live()
    client = await one.client()
    go, begun = threading.Event(), threading.Event()

    def slow_disk(descriptor: int, position: int, length: int) -> None:
        begun.set()
        go.wait(10)

    monkeypatch.setattr(page_cache, "read", lambda descriptor, position, length: None)
    monkeypatch.setattr(page_cache, "is_cached", lambda descriptor, position, length: False)
    monkeypatch.setattr(page_cache, "read_ahead", slow_disk)
    first, second = Range(log_file, 0, 100), Range(log_file, 0, 100)
    one.service.answers = [first, second]
    client.send(1, 4, [b""])
    await until(begun.is_set)
    client.close()
    await until(lambda: not one.listener.connections)
    assert (first.released, second.released) == (0, 1)
    go.set()
    await until(lambda: first.released)
    assert (first.released, second.released) == (1, 1)


def test_the_probe_knows_what_is_cached(log_file) -> None:
    assert page_cache.is_cached(log_file, 0, len(DATA))
    os.fsync(log_file)
    os.posix_fadvise(log_file, 0, 0, os.POSIX_FADV_DONTNEED)
    if page_cache.is_cached(log_file, 1 << 20, 1 << 20):
        pytest.skip("this filesystem keeps everything in memory")
    assert page_cache.read(log_file, 1 << 20, 1 << 20) is None
    page_cache.read_ahead(log_file, 1 << 20, 1 << 20)
    assert page_cache.read(log_file, 1 << 20, 1 << 20) == DATA[: 1 << 20]
    assert page_cache.is_cached(log_file, 1 << 20, 1 << 20)
    page_cache.read_ahead(log_file, 0, len(DATA) + 100)
    assert page_cache.read(log_file, len(DATA) - 10, 20) is None


async def test_a_file_that_ends_early_closes_the_connection(live, log_file, caplog) -> None:
    one = await live()
    client = await one.client()
    one.service.answers = [Range(log_file, len(DATA) - 10, 20)]
    with pytest.raises(ConnectionClosed):
        await client.send(1, 4, [b""])
    assert "file ends" in caplog.text


async def test_a_slow_reader_is_pushed_back(live) -> None:
    one = await live(max_output_bytes=100_000, socket_send_buffer_bytes=131072)
    other = await one.client()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 131072)
    sock.connect(one.listener.address)
    reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    whole = frame(b"now" + b"x" * 50_000)
    for _ in range(200):
        writer.write(whole)
    await until(lambda: len(one.service.started) >= 3)
    await asyncio.sleep(0.1)
    slow = next(each for each in one.listener.connections if each.bytes_moved() > 1000)
    assert slow._output.pending <= 100_000 + 51_000
    assert len(one.service.started) < 100
    assert bytes(await other.send(0, 3, [b"now"])) == b"now"
    reader._transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(200):
        assert len(await read_frame(reader)) == 4 + 50_003
    writer.close()


async def test_a_reader_that_leaves_lets_go_of_its_files(live, log_file) -> None:
    one = await live(socket_send_buffer_bytes=131072)
    client = await one.client()
    part = Range(log_file, 0, len(DATA))
    one.service.answers = [part]
    client._loop.remove_reader(client._socket)
    client.send(1, 4, [b""])
    await until(lambda: any(each._output.pending for each in one.listener.connections))
    client.close()
    await until(lambda: part.released == 1)


def test_a_small_answer_that_is_sent_in_pieces() -> None:
    """The socket takes three bytes, then nothing for a while, then the rest."""
    took: list[bytes] = []
    loop = Mock()

    def send(part: bytes) -> int:
        if len(took) == 1 and not loop.add_writer.called:
            raise BlockingIOError
        took.append(bytes(part[:3] if not took else part))
        return len(took[-1])

    sock = Mock(send=send, fileno=lambda: 7)
    drained = Mock()
    output = sending.Output(sock, loop, None, drained, Mock())
    output.put(b"an answer", 9)
    assert not output.flush()
    assert (output.pending, output.bytes_out) == (6, 3)
    loop.add_writer.call_args[0][1]()
    assert b"".join(took) == b"an answer"
    assert (output.pending, output.bytes_out, drained.call_count) == (0, 9, 1)


class Grudging:
    """A socket that takes `most` bytes and then nothing until it is waited for."""

    def __init__(self, most: int) -> None:
        self.took: list[bytes] = []
        self.loop = Mock()
        self._most, self._full = most, False

    def fileno(self) -> int:
        return 7

    def send(self, part: bytes) -> int:
        return self.sendmsg([part])

    def sendmsg(self, parts: list[bytes], *_: object) -> int:
        self._full = not self._full
        if not self._full:
            raise BlockingIOError
        self.took.append(b"".join(parts)[: self._most])
        return len(self.took[-1])

    def sendfile(self, _: int, descriptor: int, position: int, length: int) -> int:
        return self.sendmsg([os.pread(descriptor, length, position)])


@pytest.mark.parametrize("most", [1, 2, 7, 36, 37, 38, 10_000])
def test_small_ranges_go_out_with_what_lies_between_them_and_in_any_pieces(log_file, monkeypatch, most) -> None:
    sock = Grudging(most)
    monkeypatch.setattr(sending.os, "sendfile", sock.sendfile)
    output = sending.Output(sock, sock.loop, None, Mock(), Mock())  # type: ignore[arg-type]
    small, zero, other = Range(log_file, 5, 30), Range(log_file, 9, 0), Range(log_file, 1, 8)
    for part in (small, b"head", b"", zero, bytearray(b"xyz"), other, b"tail"):
        output.put(part, part.length if isinstance(part, Range) else len(part))
    done = output.flush()
    while not done:
        output._writing = False  # the loop says that it takes more
        done = output.flush()
    assert b"".join(sock.took) == DATA[5:35] + b"headxyz" + DATA[1:9] + b"tail"
    assert most < 49 or len(sock.took) == 1
    assert (output.pending, output.bytes_out) == (0, 49)
    assert [each.released for each in (small, zero, other)] == [1, 1, 1]
