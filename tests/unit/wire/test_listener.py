"""A live listener: order, pipelining, limits, and what it does with bad input."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import struct

import pytest
from conftest import frame, read_frame, until

from headrace.errors import ErrorCode
from headrace.wire.errors import ConnectionClosed, RequestTimedOut
from headrace.wire.protocol import ApiKey, request_header


async def test_answers_come_in_the_order_of_the_requests(live) -> None:
    one = await live()
    client = await one.client()
    first = client.send(0, 3, [b"later 1"])
    second = client.send(0, 3, [b"now 2"])
    third = client.send(0, 3, [b"later 3"])
    await until(lambda: len(one.service.started) == 3)
    one.service.parked[1].complete(b"three")
    done, _ = await asyncio.wait([first, second, third], timeout=0.05)
    assert not done, "an answer overtook the first request's"
    order: list[int] = []
    for number, future in enumerate((first, second, third)):
        future.add_done_callback(lambda _, number=number: order.append(number))
    one.service.parked[0].complete([b"o", b"ne"])
    assert [bytes(each) for each in await asyncio.gather(first, second, third)] == [b"one", b"now 2", b"three"]
    assert order == [0, 1, 2]


async def test_a_request_can_wait_for_its_turn(live) -> None:
    one = await live()
    client = await one.client()
    asked = [client.send(0, 3, [b"later"]), client.send(8, 3, [b""]), client.send(0, 3, [b"later"])]
    asked += [client.send(8, 3, [b""]), client.send(8, 3, [b""])]
    await until(lambda: len(one.service.started) == 5)
    one.service.parked[0].complete(b"first")
    assert [bytes(each) for each in await asyncio.gather(*asked[:2])] == [b"first", b"1"]
    one.service.parked[1].complete(b"second")
    assert [bytes(each) for each in await asyncio.gather(*asked[2:])] == [b"second", b"2", b"2"]
    assert bytes(await client.send(8, 3, [b""])) == b"2", "at once when nothing waits"
    client.send(0, 3, [b"later"])
    client.send(8, 3, [b""])
    await until(lambda: len(one.service.started) == 8)
    client.close()
    await until(lambda: not one.listener.tasks)


async def test_a_pipeline_is_bounded_and_goes_on(live) -> None:
    one = await live(max_in_flight=4)
    client = await one.client()
    futures = [client.send(0, 3, [b"later %d" % number]) for number in range(20)]
    await until(lambda: len(one.service.parked) == 4)
    await asyncio.sleep(0.05)
    assert len(one.service.started) == 4
    for number in range(20):
        await until(lambda number=number: len(one.service.parked) > number)
        one.service.parked[number].complete(b"%d" % number)
    assert [bytes(each) for each in await asyncio.gather(*futures)] == [b"%d" % number for number in range(20)]


async def test_many_small_requests_in_one_write(live) -> None:
    one = await live()
    reader, writer = await one.raw()
    writer.write(b"".join(frame(b"now %d" % number, correlation_id=number) for number in range(3000)))
    for number in range(3000):
        assert await read_frame(reader) == struct.pack(">i", number) + b"now %d" % number


@pytest.mark.parametrize("size", [1, 100, 65536 - 4, 65536, 200_000, 3_000_000])
async def test_frames_of_every_size_whole_and_in_pieces(live, size) -> None:
    one = await live()
    reader, writer = await one.raw()
    body = bytes(number * 7 & 0xFF for number in range(size))
    whole = frame(body)
    writer.write(whole + whole)
    for _ in range(2):
        assert await read_frame(reader) == struct.pack(">i", 1) + body
    for cut in (1, 3, 4, 5, 15, len(whole) - 1):
        writer.write(whole[:cut])
        await writer.drain()
        await asyncio.sleep(0.001)
        writer.write(whole[cut:] + whole[:2])
        assert await read_frame(reader) == struct.pack(">i", 1) + body
        writer.write(whole[2:])
        assert await read_frame(reader) == struct.pack(">i", 1) + body
    await until(lambda: one.listener.memory.used == 0)


async def test_lent_memory_is_each_requests_own_for_as_long_as_it_is_handled(live) -> None:
    one = await live()
    clients = [await one.raw() for _ in range(3)]
    bodies = [bytes((number + size * 7) & 0xFF for number in range(size)) for size in (1, 90_000, 17, 60_000, 300_000)]
    whole = b"".join(frame(body, ApiKey.LIST_OFFSETS, 1) for body in bodies)
    for cut in (0, 5, 70_000, 100_000, len(whole) - 3):
        for _, writer in clients:
            writer.write(whole[:cut])
            await writer.drain()
        for _, writer in clients:
            writer.write(whole[cut:])
        for reader, _ in clients:
            for body in bodies:
                assert await read_frame(reader) == struct.pack(">i", 1) + hashlib.sha256(body).digest()
    await until(lambda: one.listener.memory.used == 0)


async def test_memory_that_is_kept_in_an_answer_is_not_lent(live) -> None:
    one = await live()
    reader, writer = await one.raw()
    bodies = [bytes([number]) * 50_000 for number in range(1, 120)]
    for body in bodies:
        writer.write(frame(body))
    await until(lambda: one.listener.metrics.of(ApiKey.PRODUCE).requests > 20)
    other = await one.client()
    await other.send(ApiKey.LIST_OFFSETS, 1, [bytes(200_000)])
    for body in bodies:
        assert await read_frame(reader) == struct.pack(">i", 1) + body


async def test_no_answer_when_the_handler_says_so(live) -> None:
    one = await live()
    client = await one.client()
    client.send(0, 3, [b"none"], answered=False)
    assert bytes(await client.send(0, 3, [b"now"])) == b"now"


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x7f\xff\xff\xff",
        b"\x80\x00\x00\x00",
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        b"\0\0\0\x05hello",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        struct.pack(">ihhih", 10, 99, 0, 1, -1),
        struct.pack(">ihhih", 10, -5, 0, 1, -1),
        struct.pack(">ihhih", 10, 0, 3, 1, 9),
        struct.pack(">ihhih", 10, 0, 3, 1, -2),
        struct.pack(">ihhihb", 11, 0, 9, 1, -1, -1),
        struct.pack(">ihhih", 10, 0, 1, 1, -1),
        struct.pack(">ihhih", 10, 3, 99, 1, -1),
        struct.pack(">ihhih", 10, 3, 0, 1, -1) + b"\x7f",
    ],
)
async def test_garbage_closes_its_own_connection_only(live, garbage, caplog) -> None:
    one = await live(socket_request_max_bytes=1_000_000)
    client = await one.client()
    reader, writer = await one.raw()
    writer.write(garbage + b"\0" * 100)
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 5) == b""
    assert "closing the connection" in caplog.text
    assert one.listener.metrics.connections_dropped == 1
    assert bytes(await client.send(0, 3, [b"now"])) == b"now"


async def test_a_malformed_body_is_answered_where_the_api_has_an_error_code(live) -> None:
    one = await live()
    client = await one.client()
    answer = await client.send(22, 3, [b"\xff\xff\xff\xff\x0f"])
    assert struct.unpack_from(">ih", answer) == (0, ErrorCode.INVALID_REQUEST)
    assert bytes(await client.send(0, 3, [b"now"])) == b"now"


async def test_an_unknown_version_of_a_known_api(live) -> None:
    one = await live()
    client = await one.client()
    answer = await client.request(22, 5, {"transactional_id": None, "transaction_timeout": 1})
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_api_versions_says_what_is_served(live) -> None:
    one = await live()
    client = await one.client()
    served = {0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 12), 8: (2, 7), 18: (0, 4), 22: (0, 4)}
    assert await client.learn_versions() == served
    for version in (0, 1, 2, 4):
        answer = await client.request(18, version, {"client_software_name": "a", "client_software_version": "1"})
        assert {each.api_key for each in answer.api_keys} == set(served)
    (connection,) = one.listener.connections
    assert connection.client_software == ("a", "1")


async def test_api_versions_of_the_future_is_answered_in_the_oldest_form(live) -> None:
    one = await live()
    reader, writer = await one.raw()
    header = request_header(ApiKey.API_VERSIONS, 99, 5, "new")
    writer.write(struct.pack(">i", len(header)) + header)
    answer = await read_frame(reader)
    assert struct.unpack_from(">ihi", answer) == (5, ErrorCode.UNSUPPORTED_VERSION, 7)
    assert struct.unpack_from(">hhh", answer, 10) == (0, 0, 13)
    assert len(answer) == 10 + 7 * 6


async def test_api_versions_with_a_bad_software_name(live) -> None:
    one = await live()
    client = await one.client()
    answer = await client.request(18, 3, {"client_software_name": " ", "client_software_version": "1"})
    assert answer.error_code == ErrorCode.INVALID_REQUEST


async def test_a_refusal_is_the_apis_own_error_response(live) -> None:
    one = await live()
    client = await one.client()
    answer = await client.request(ApiKey.METADATA, 9, {"topics": None})
    assert answer.topics[0].error_code == ErrorCode.BROKER_NOT_AVAILABLE


async def test_a_failing_handler_costs_its_own_connection_at_most(live, caplog) -> None:
    one = await live()
    client, other = await one.client(), await one.client()
    with pytest.raises(ConnectionClosed):
        await client.send(0, 3, [b"boom"])
    assert "a mistake in a handler" in caplog.text
    assert bytes(await other.send(0, 3, [b"now"])) == b"now"


async def test_coroutines_are_bounded_over_all_connections(live) -> None:
    one = await live(queued_max_requests=3)
    clients = [await one.client() for _ in range(8)]
    message = {"transactional_id": None, "transaction_timeout": 1}
    asked = [asyncio.ensure_future(client.request(22, 4, message)) for client in clients]
    for number in range(8):
        await until(lambda number=number: len(one.service.gates) > number)
        one.service.gates[number].set()
    assert {answer.producer_id for answer in await asyncio.gather(*asked)} == {7}
    assert one.service.most_running == 3


async def test_waiting_connections_are_not_forgotten(live) -> None:
    one = await live(queued_max_requests=2)
    busy = [await one.client() for _ in range(2)]
    idle = [await one.client() for _ in range(6)]
    message = {"transactional_id": None, "transaction_timeout": 1}
    held = [asyncio.ensure_future(client.request(22, 4, message)) for client in busy]
    await until(lambda: len(one.service.gates) == 2)
    echoes = [client.send(0, 3, [b"now"]) for client in idle]
    await until(lambda: one.listener.metrics.requests_waiting >= 6)
    for gate in one.service.gates:
        gate.set()
    assert [bytes(each) for each in await asyncio.gather(*echoes)] == [b"now"] * 6
    await asyncio.gather(*held)


async def test_a_coroutines_error_reaches_its_client(live) -> None:
    one = await live()
    client = await one.client()
    asked = asyncio.ensure_future(client.request(22, 2, {"transactional_id": "refused", "transaction_timeout": 1}))
    await until(lambda: one.service.gates)
    one.service.gates[0].set()
    assert (await asked).error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def test_connections_per_address_are_bounded(live) -> None:
    one = await live(max_connections_per_ip=2)
    first, second = await one.client(), await one.client()
    reader, _ = await one.raw()
    assert await asyncio.wait_for(reader.read(), 5) == b""
    assert bytes(await first.send(0, 3, [b"now"])) == b"now"
    second.close()
    await until(lambda: len(one.listener.connections) == 1)
    third = await one.client()
    assert bytes(await third.send(0, 3, [b"now"])) == b"now"


async def test_a_connection_too_many_waits_for_one_to_leave(live) -> None:
    one = await live(max_connections=2)
    first, second = await one.client(), await one.client()
    await until(lambda: len(one.listener.connections) == 2)
    third = await one.client()
    with pytest.raises(RequestTimedOut):
        await third.send(0, 3, [b"now"], timeout=0.1)
    first.close()
    assert bytes(await third.send(0, 3, [b"now"])) == b"now"
    assert bytes(await second.send(0, 3, [b"now"])) == b"now"


async def test_idle_connections_are_closed_busy_ones_are_not(live) -> None:
    one = await live(connections_max_idle_ms=150)
    reader, _ = await one.raw()
    waiting = await one.client()
    parked = waiting.send(0, 3, [b"later"])
    assert await asyncio.wait_for(reader.read(), 5) == b""
    assert one.listener.metrics.connections_expired == 1
    assert not waiting.closed
    one.service.parked[0].complete(b"at last")
    assert bytes(await parked) == b"at last"


async def test_many_connections(live) -> None:
    one = await live()
    clients = [await one.client() for _ in range(300)]
    for _ in range(3):
        answers = await asyncio.gather(*(client.send(0, 3, [b"now %d" % n]) for n, client in enumerate(clients)))
        assert [bytes(each) for each in answers] == [b"now %d" % n for n in range(300)]
    for client in clients:
        client.close()
    await until(lambda: not one.listener.connections)
    assert one.listener.metrics.connections == 0


async def test_a_muted_connection_waits_and_others_do_not(live) -> None:
    one = await live()
    client, other = await one.client(), await one.client()
    await client.send(0, 3, [b"now"])
    connection = next(each for each in one.listener.connections if each.bytes_moved())
    connection.mute(0.15)
    started = asyncio.get_running_loop().time()
    late = client.send(0, 3, [b"now late"])
    assert bytes(await other.send(0, 3, [b"now"])) == b"now"
    assert bytes(await late) == b"now late"
    assert asyncio.get_running_loop().time() - started >= 0.14


async def test_a_stop_answers_what_is_in_flight(live) -> None:
    one = await live()
    client = await one.client()
    future = client.send(0, 3, [b"later"])
    await until(lambda: one.service.parked)
    stopping = asyncio.ensure_future(one.listener.stop(5.0))
    await asyncio.sleep(0.01)
    one.service.parked[0].complete(b"in time")
    assert bytes(await future) == b"in time"
    await stopping
    with pytest.raises(ConnectionClosed):
        await one.client()


async def test_a_stop_has_a_deadline(live) -> None:
    one = await live()
    client = await one.client()
    future = client.send(0, 3, [b"later"])
    await until(lambda: one.service.parked)
    await one.listener.stop(0.05)
    with pytest.raises(ConnectionClosed):
        await future
    one.service.parked[0].complete(b"nobody is there")


async def test_a_client_that_leaves_is_noticed(live) -> None:
    one = await live()
    gone: list[int] = []
    client = await one.client()
    client.send(0, 3, [b"later"])
    await until(lambda: one.service.parked)
    one.service.parked[0].connection.on_close.append(lambda: gone.append(1))
    client.close()
    await until(lambda: gone)
    one.service.parked[0].complete(b"too late")


async def test_counters(live) -> None:
    one = await live()
    client = await one.client()
    await client.send(0, 3, [b"now"])
    api = one.listener.metrics.apis[0]
    assert (api.requests, sum(api.buckets), api.bytes_in, api.bytes_out) == (1, 1, 10 + len("headrace") + 3, 11)
    assert one.listener.metrics.connections == one.listener.metrics.connections_opened == 1


async def test_a_taken_port_is_said(live) -> None:
    one = await live()
    other = await live()
    with pytest.raises(OSError, match="in use"):
        await other.listener.start(*one.listener.address)


async def test_small_answers_are_not_delayed(live) -> None:
    one = await live()
    await one.client()
    await until(lambda: one.listener.connections)
    (connection,) = one.listener.connections
    assert connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
