"""What a broker promises a producer: acknowledgements, refusals that name their reason, order, and nothing twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import aiokafka
import kafka
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from tests.integration.cluster import Cluster, wait_until
from tests.integration.kafka_clients import Confluent, Want, confluent_producer
from tests.integration.proxy import CuttingProxy
from tests.integration.raw import (
    INIT_PRODUCER_ID,
    Closed,
    Wire,
    body,
    decode,
    fetch,
    framed,
    produce,
    produce_request,
    record_batch,
    seconds,
)
from tests.integration.topics import create_topic


def values(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    return [record.value for record in Confluent().consume(bootstrap, [Want(topic, 0, count)])[topic, 0]]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_level_of_acknowledgement(acks: str, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(f"acks-{acks}")
    producer = confluent_producer(bootstrap, acks=acks)
    offsets: list[int] = []
    for number in range(50):
        producer.produce(topic, b"%d" % number, on_delivery=lambda _, message: offsets.append(message.offset()))
    assert producer.flush(30) == 0
    assert values(bootstrap, topic, 50) == [b"%d" % number for number in range(50)]
    if acks != "0":
        assert offsets == list(range(50))


def test_acks_0_gets_no_answer(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic("silent")
    with Wire(bootstrap) as wire:
        wire.send(framed(body(produce_request(topic, record_batch([b"x"]), acks=0))))
        answer = produce(wire, topic, record_batch([b"y"]))
    assert (answer.error_code, answer.base_offset) == (0, 1), "the next answer is that of the next request"


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_other_acks_are_refused(acks: int, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic("odd-acks")
    with Wire(bootstrap) as wire:
        assert produce(wire, topic, record_batch([b"x"]), acks=acks).error_code == ErrorCode.invalid_required_acks
        assert fetch(wire, topic, 0, max_wait=0).high_watermark == 0


def test_a_wrong_checksum_is_refused(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic("crc")
    good = record_batch([b"some value"])
    with Wire(bootstrap) as wire:
        for position in (17, 30, len(good) - 1):
            wrong = bytearray(good)
            wrong[position] ^= 0x10
            assert produce(wire, topic, bytes(wrong)).error_code == ErrorCode.corrupt_message, position
        assert produce(wire, topic, good).base_offset == 0, "nothing of the refused ones was kept"


def test_a_batch_that_is_no_batch_is_refused(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic("no-batch")
    good = record_batch([b"some value"])
    old_magic = good[:16] + b"\x01" + good[17:]
    with Wire(bootstrap) as wire:
        for wrong in (old_magic, good[:40], good + b"\x00" * 20):
            assert produce(wire, topic, wrong).error_code != 0
        assert produce(wire, topic, good).base_offset == 0


def test_produce_versions_of_the_ice_age_are_refused(bootstrap: str) -> None:
    """ApiVersions names Produce 0 for librdkafka's sake; a request of that age closes its connection."""
    header = b"\x00\x00\x00\x00\x00\x00\x00\x07\x00\x01x"
    with Wire(bootstrap) as wire:
        wire.send(framed(header + b"\x00\x01\x00\x00\x03\xe8\x00\x00\x00\x00"))
        with pytest.raises(Closed):
            wire.receive()


def test_unknown_topics_and_partitions_are_named(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    with Wire(bootstrap) as wire:
        missing = produce(wire, topic, record_batch([b"x"]), partition=5)
        assert missing.error_code == ErrorCode.unknown_topic_or_partition
        unknown = produce(wire, "never-was", record_batch([b"x"]))
        assert unknown.error_code == ErrorCode.unknown_topic_or_partition


def test_a_record_too_large_is_refused_alone(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic("small", max_message_bytes="5000")
    errors: list[KafkaError | None] = []
    producer = confluent_producer(bootstrap, **{"batch.num.messages": 1})
    for size in (100, 6000, 200):
        producer.produce(topic, b"x" * size, on_delivery=lambda error, _: errors.append(error))
        producer.flush(30)
    assert [error.code() if error else 0 for error in errors] == [0, KafkaError.MSG_SIZE_TOO_LARGE, 0]
    with Wire(bootstrap) as wire:
        assert produce(wire, topic, record_batch([b"x" * 6000])).error_code == ErrorCode.message_too_large


def new_producer_id(wire: Wire) -> tuple[int, int]:
    kind = load_request_schema(INIT_PRODUCER_ID, 4)
    answer = wire.call(kind(transactional_id=None, transaction_timeout=seconds(60), producer_id=-1, producer_epoch=-1))
    assert answer.error_code == 0
    return answer.producer_id, answer.producer_epoch


def test_a_repeated_batch_is_answered_with_its_old_offset(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic("repeat")
    with Wire(bootstrap) as wire:
        number, epoch = new_producer_id(wire)
        batches = [
            record_batch([b"a", b"b"], producer_id=number, producer_epoch=epoch, base_sequence=2 * count)
            for count in range(5)
        ]
        assert [produce(wire, topic, batch).base_offset for batch in batches] == [0, 2, 4, 6, 8]
        again = [produce(wire, topic, batch) for batch in batches]
        assert [(answer.error_code, answer.base_offset) for answer in again] == [(0, 0), (0, 2), (0, 4), (0, 6), (0, 8)]

        gap = record_batch([b"c"], producer_id=number, producer_epoch=epoch, base_sequence=99)
        assert produce(wire, topic, gap).error_code == ErrorCode.out_of_order_sequence_number
        assert fetch(wire, topic, 0, max_wait=0).high_watermark == 10


def test_two_producers_never_share_an_id(bootstrap: str) -> None:
    with Wire(bootstrap) as wire:
        assert len({new_producer_id(wire) for _ in range(20)}) == 20


def test_five_in_flight_keep_their_order(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic("in-flight")
    with Wire(bootstrap) as wire:
        number, epoch = new_producer_id(wire)
        requests = [
            produce_request(
                topic, record_batch([b"%d" % count], producer_id=number, producer_epoch=epoch, base_sequence=count)
            )
            for count in range(200)
        ]
        for start in range(0, 200, 5):
            wire.send(b"".join(framed(body(request)) for request in requests[start : start + 5]))
            for count in range(start, start + 5):
                answer = decode(wire.receive(), 0, 9).responses[0].partition_responses[0]
                assert (answer.error_code, answer.base_offset) == (0, count)
    assert values(bootstrap, topic, 200) == [b"%d" % count for count in range(200)]


COUNT = 3000
PAYLOAD = b"x" * 100


def confluent_sends(address: str, topic: str) -> None:
    settings = {"enable.idempotence": True, "linger.ms": 1, "batch.num.messages": 20, "retry.backoff.ms": 20}
    settings |= {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100, "message.timeout.ms": 100_000}
    producer = confluent_producer(address, **settings)
    failed: list[KafkaError] = []
    for number in range(COUNT):
        producer.produce(
            topic, b"%d " % number + PAYLOAD, on_delivery=lambda error, _: failed.append(error) if error else None
        )
        producer.poll(0)
    assert producer.flush(100) == 0
    assert not failed, failed[0]


def kafka_python_sends(address: str, topic: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=address,
        enable_idempotence=True,
        batch_size=3000,
        retry_backoff_ms=20,
        reconnect_backoff_ms=10,
        reconnect_backoff_max_ms=100,
    )
    futures = [producer.send(topic, b"%d " % number + PAYLOAD, partition=0) for number in range(COUNT)]
    producer.flush(100)
    for future in futures:
        future.get(30)
    producer.close()


def aiokafka_sends(address: str, topic: str) -> None:
    async def send() -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=address, enable_idempotence=True, max_batch_size=3000, retry_backoff_ms=20
        ) as producer:
            futures = [await producer.send(topic, b"%d " % number + PAYLOAD, partition=0) for number in range(COUNT)]
            await asyncio.gather(*futures)

    asyncio.run(send())


@pytest.mark.parametrize("send", [confluent_sends, kafka_python_sends, aiokafka_sends])
def test_connection_cuts_lose_nothing_and_repeat_nothing(
    send: Callable[[str, str], None], proxied: tuple[Cluster, CuttingProxy]
) -> None:
    _, proxy = proxied
    admin = AdminClient({"bootstrap.servers": proxy.address})
    topic = create_topic(admin, f"cut-{send.__name__}")
    before, proxy.cutting = proxy.cuts, True
    raised: list[BaseException] = []

    def run() -> None:
        try:
            send(proxy.address, topic)
        except BaseException as error:
            raised.append(error)

    sending = threading.Thread(target=run)
    sending.start()
    try:
        wait_until(lambda: proxy.cuts - before >= 10 or not sending.is_alive(), "ten cuts", 60)
    finally:
        proxy.cutting = False
    sending.join(100)
    assert not sending.is_alive()
    assert not raised, raised
    assert proxy.cuts - before >= 5, "the proxy cut too little for this to show anything"
    got = values(proxy.address, topic, COUNT)
    assert [int((value or b"").split()[0]) for value in got] == list(range(COUNT))
    with Wire(proxy.address) as wire:
        assert fetch(wire, topic, 0, max_wait=0, partition_max_bytes=1).high_watermark == COUNT
