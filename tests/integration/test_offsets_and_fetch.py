"""Where a consumer starts, what it may see, and how much a fetch brings."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import kafka
import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, TopicPartition
from kio.schema.errors import ErrorCode
from tests.integration.cluster import wait_until
from tests.integration.kafka_clients import (
    Confluent,
    Rec,
    Send,
    Want,
    confluent_consumer,
    confluent_producer,
    kafka_python_consumer,
)
from tests.integration.raw import (
    Wire,
    body,
    decode,
    fetch,
    fetch_request,
    framed,
    produce,
    produce_request,
    record_batch,
)

TIMES = [int(time.time()) * 1000 - 60_000 + 1000 * number for number in range(20)]


@pytest.fixture(scope="module")
def timed(bootstrap: str, new_topic: Callable[..., str]) -> str:
    """A topic of twenty records, one each second."""
    topic = new_topic("timed")
    records = [Rec(b"%d" % number, timestamp=at) for number, at in enumerate(TIMES)]
    for record in records:
        Confluent().produce(bootstrap, [Send(topic, 0, [record])])
    return topic


def test_offsets_are_found_by_timestamp(bootstrap: str, timed: str) -> None:
    consumer = confluent_consumer(bootstrap)
    asked = [TIMES[0] - 5, TIMES[0], TIMES[7], TIMES[7] + 1, TIMES[-1]]
    found = [consumer.offsets_for_times([TopicPartition(timed, 0, at)], 10)[0].offset for at in asked]
    assert found == [0, 0, 7, 8, 19]
    assert consumer.offsets_for_times([TopicPartition(timed, 0, TIMES[-1] + 1)], 10)[0].offset == OFFSET_END
    assert consumer.get_watermark_offsets(TopicPartition(timed, 0), 10) == (0, 20)
    consumer.close()


def test_kafka_python_finds_the_same(bootstrap: str, timed: str) -> None:
    partition = kafka.TopicPartition(timed, 0)
    with kafka_python_consumer(bootstrap) as consumer:
        found = consumer.offsets_for_times({partition: TIMES[7] + 1})[partition]
        assert (found.offset, found.timestamp) == (8, TIMES[8])
        assert consumer.offsets_for_times({partition: TIMES[-1] + 1})[partition] is None
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 20}
        consumer.assign([partition])
        consumer.seek(partition, 15)
        values = [message.value for message in next(iter(wait_until(lambda: consumer.poll(500), "a poll").values()))]
        assert values[0] == b"15"


def test_a_consumer_seeks(bootstrap: str, timed: str) -> None:
    consumer = confluent_consumer(bootstrap)
    consumer.assign([TopicPartition(timed, 0, 5)])
    assert consumer.poll(10).value() == b"5"
    consumer.seek(TopicPartition(timed, 0, 17))
    assert consumer.poll(10).value() == b"17"
    consumer.seek(TopicPartition(timed, 0, OFFSET_BEGINNING))
    assert consumer.poll(10).value() == b"0"
    consumer.close()


@pytest.mark.parametrize(("reset", "first"), [("earliest", b"0"), ("latest", b"late"), ("error", None)])
def test_an_offset_out_of_range_is_reset(
    reset: str, first: bytes | None, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(f"reset-{reset}")
    Confluent().produce(bootstrap, [Send(topic, 0, [Rec(b"%d" % number) for number in range(5)])])
    consumer = confluent_consumer(bootstrap, **{"auto.offset.reset": reset, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 1000)])
    message = wait_until(lambda: consumer.poll(1), "an answer to the wrong offset")
    if reset == "latest":
        assert message.error().code() == KafkaError._PARTITION_EOF
        Confluent().produce(bootstrap, [Send(topic, 0, [Rec(b"late")])])
        message = wait_until(lambda: consumer.poll(1), "the record after the reset")
    if first is None:
        assert message.error().code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)
    else:
        assert message.value() == first
    consumer.close()


def test_a_fetch_out_of_range_says_so(bootstrap: str, timed: str) -> None:
    with Wire(bootstrap) as wire:
        for offset in (21, 1 << 40):
            assert fetch(wire, timed, offset).error_code == ErrorCode.offset_out_of_range
        at_the_end = fetch(wire, timed, 20, max_wait=0)
        assert (at_the_end.error_code, at_the_end.high_watermark, at_the_end.records or b"") == (0, 20, b"")
        unknown = fetch(wire, "never-was", 0)
        assert unknown.error_code == ErrorCode.unknown_topic_or_partition
        assert fetch(wire, timed, 0, partition=7).error_code == ErrorCode.unknown_topic_or_partition
        assert fetch(wire, timed, 0, leader_epoch=1000).error_code == ErrorCode.unknown_leader_epoch


def test_a_fetch_brings_at_least_one_batch_and_stays_below_its_limits(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic("limits")
    with Wire(bootstrap) as wire:
        for _ in range(10):
            assert produce(wire, topic, record_batch([b"x" * 10_000])).error_code == 0
        size = len(record_batch([b"x" * 10_000]))
        assert len(fetch(wire, topic, 0).records) == 10 * size
        assert len(fetch(wire, topic, 0, partition_max_bytes=1).records) == size, "the first batch comes whole"
        assert len(fetch(wire, topic, 0, max_bytes=1).records) == size
        assert 3 * size <= len(fetch(wire, topic, 0, partition_max_bytes=3 * size).records) < 4 * size
        assert 3 * size <= len(fetch(wire, topic, 0, max_bytes=3 * size).records) < 4 * size


def test_a_fetch_waits_for_its_bytes_or_its_time(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic("waits")
    with Wire(bootstrap) as wire, Wire(bootstrap) as other:
        began = time.monotonic()
        assert not fetch(wire, topic, 0, max_wait=0.4).records
        assert time.monotonic() - began >= 0.3, "nothing there: the answer comes when the wait is over"

        answers: list[bytes] = []
        waiting = threading.Thread(
            target=lambda: answers.append(fetch(wire, topic, 0, max_wait=15, min_bytes=1000).records)
        )
        waiting.start()
        produce(other, topic, record_batch([b"too little"]))
        waiting.join(0.3)
        assert waiting.is_alive(), "too few bytes wake nobody"
        produce(other, topic, record_batch([b"x" * 2000]))
        waiting.join(10)
        assert not waiting.is_alive()
        assert len(answers[0]) > 2000


def test_requests_of_one_connection_are_answered_in_order(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic("pipelined")

    requests = [
        fetch_request(topic, 0, max_wait=0.2),
        produce_request(topic, record_batch([b"x"])),
        fetch_request(topic, 0),
    ]
    with Wire(bootstrap) as wire:
        wire.send(b"".join(framed(body(request)) for request in requests))
        answers = [decode(wire.receive(), type(each).__api_key__, type(each).__version__) for each in requests]
    # The first fetch waits, and may see the record that is produced meanwhile; its answer comes first all the same.
    assert answers[0].responses[0].partitions[0].error_code == ErrorCode.none
    assert answers[1].responses[0].partition_responses[0].base_offset == 0
    assert answers[2].responses[0].partitions[0].records


def test_the_brokers_time_replaces_the_producers(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic("append-time", message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    for codec in ("none", "zstd"):
        Confluent().produce(bootstrap, [Send(topic, 0, [Rec(b"x", timestamp=1000), Rec(b"y", timestamp=2000)], codec)])
    after = int(time.time() * 1000)
    consumer = confluent_consumer(bootstrap)
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    messages = [wait_until(lambda: consumer.poll(1), "a record") for _ in range(4)]
    consumer.close()
    kinds, times = zip(*(message.timestamp() for message in messages), strict=True)
    assert set(kinds) == {2}, "the type is LogAppendTime"
    assert all(before - 1 <= at <= after + 1 for at in times)


def test_a_time_far_in_the_future_is_refused(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic("future")
    with Wire(bootstrap) as wire:
        answer = produce(wire, topic, record_batch([b"x"], timestamp_ms=4_102_444_800_000))
    assert answer.error_code == ErrorCode.invalid_timestamp


def test_a_thousand_partitions(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic("thousand", partitions=1000)
    producer = confluent_producer(bootstrap, acks="all")
    failed: list[object] = []
    for partition in range(1000):
        producer.produce(
            topic,
            b"%d" % partition,
            partition=partition,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(60) == 0
    assert not failed
    read = Confluent().consume(bootstrap, [Want(topic, partition, 1) for partition in range(1000)])
    assert {key[1]: [record.value for record in records] for key, records in read.items()} == {
        partition: [b"%d" % partition] for partition in range(1000)
    }
