"""Every client reads what every other client wrote, in every codec, byte for byte."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import pytest
from tests.integration.kafka_clients import (
    CODECS,
    AioKafka,
    Client,
    Confluent,
    FranzGo,
    Java,
    KafkaJs,
    KafkaPython,
    Kcat,
    Read,
    Rec,
    RsKafka,
    Send,
    Want,
)

# Programs of other languages are built once a machine, in the time of the first test that wants them.
pytestmark = pytest.mark.timeout(900)

CLIENTS: list[Client] = [Confluent(), KafkaPython(), AioKafka(), Kcat(), Java(), FranzGo(), KafkaJs(), RsKafka()]
BY_NAME = {client.name: client for client in CLIENTS}
NAMES = [pytest.param(name, marks=pytest.mark.java) if name == "java" else name for name in BY_NAME]
BINARY = [name for name in NAMES if name != "kcat"]
# recent: what is older than retention.ms may be deleted while a test still reads it
SENT_AT = int(time.time() * 1000) - 60_000
TEXT = [
    Rec(
        f"value {number} ".encode() * (1 + number),
        f"key-{number}".encode(),
        (("origin", b"matrix"),),
        SENT_AT,
    )
    for number in range(20)
]
SHAPES = [
    Rec(b"", b""),
    Rec(None, b"tombstone"),
    Rec(b"no key", None),
    Rec(bytes(range(256)), bytes(range(255, -1, -1))),
    Rec(b"headers", b"k", (("a", b"1"), ("b", b"\xc3\xbf\xff"), ("empty", b""))),
    Rec(b"old", b"k", (), 1),
    Rec(b"new", b"k", (), SENT_AT),
]

# not every client can leave a header without a value, or name one twice
WITHOUT_VALUE = Rec(b"v", b"k", (("null", None), ("same", b"1"), ("same", b"2")))
CAN_LEAVE_OUT = ("confluent-kafka", "aiokafka", "java", "franz-go")


def runnable(name: str) -> Client:
    """The client of that name, or a skip that says how to get it."""
    client = BY_NAME[name]
    if reason := client.missing():
        pytest.skip(reason)
    return client


def carried(records: list[Rec]) -> list[tuple[object, ...]]:
    """All that a record carries but its time, for records whose client chose the time."""
    return [(record.key, record.value, record.headers) for record in records]


@pytest.fixture(scope="module")
def written(bootstrap: str, new_topic: Callable[..., str]) -> Callable[[str], dict[str, str]]:
    """Codec → topic that holds the records of one producer; each producer writes once."""

    @cache
    def write(producer: str) -> dict[str, str]:
        client = runnable(producer)
        topics = {codec: new_topic(f"matrix-{producer}-{codec}") for codec in client.codecs()}
        client.produce(bootstrap, [Send(topic, 0, TEXT, codec) for codec, topic in topics.items()])
        return topics

    return write


@pytest.fixture(scope="module")
def read(bootstrap: str, written: Callable[[str], dict[str, str]]) -> Callable[[str], Read]:
    """All topics of the matrix, as one consumer reads them; each consumer reads once."""

    @cache
    def consume(consumer: str) -> Read:
        client = runnable(consumer)
        wants = [
            Want(topic, 0, len(TEXT))
            for producer in CLIENTS
            if not producer.missing()
            for codec, topic in written(producer.name).items()
            if codec in client.codecs()
        ]
        return client.consume(bootstrap, wants)

    return consume


@pytest.mark.parametrize("consumer", NAMES)
@pytest.mark.parametrize("producer", NAMES)
def test_every_codec_crosses_from_any_client_to_any_other(
    producer: str, consumer: str, written: Callable[[str], dict[str, str]], read: Callable[[str], Read]
) -> None:
    runnable(consumer)
    topics = written(producer)
    for codec in set(topics) & set(BY_NAME[consumer].codecs()):
        got = read(consumer)[topics[codec], 0]
        assert carried(got) == carried(TEXT), codec
        if producer != "kcat":
            assert {record.timestamp for record in got} == {SENT_AT}, codec


def test_the_python_clients_have_every_codec() -> None:
    missing = sorted(set(CODECS) - set(KafkaPython().codecs()))
    if missing:
        pytest.skip(f"kafka-python cannot do {', '.join(missing)}: pip install lz4 python-snappy zstandard")


@pytest.mark.parametrize("producer", BINARY)
def test_keys_headers_times_and_tombstones_arrive_as_they_were_sent(
    producer: str, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    client = runnable(producer)
    topic = new_topic(f"shapes-{producer}", retention_ms="-1")
    sent = [WITHOUT_VALUE, *SHAPES] if producer in CAN_LEAVE_OUT else SHAPES
    client.produce(bootstrap, [Send(topic, 0, sent)])
    for consumer in (Confluent(), KafkaPython(), AioKafka()):
        got = consumer.consume(bootstrap, [Want(topic, 0, len(sent))])[topic, 0]
        assert carried(got) == carried(sent), consumer.name
        assert [record.timestamp for record in got[-2:]] == [1, SENT_AT], consumer.name


def test_kcat_sees_the_same_shapes(bootstrap: str, new_topic: Callable[..., str]) -> None:
    kcat = runnable("kcat")
    topic = new_topic("shapes-kcat", retention_ms="-1")
    Confluent().produce(bootstrap, [Send(topic, 0, SHAPES)])
    assert carried(kcat.consume(bootstrap, [Want(topic, 0, len(SHAPES))])[topic, 0]) == carried(SHAPES)


@pytest.mark.parametrize("codec", CODECS)
def test_records_from_a_byte_to_a_megabyte(
    codec: str, bootstrap: str, new_topic: Callable[..., str], large: dict[str, str]
) -> None:
    topic = new_topic(f"sizes-{codec}", **large)
    pattern = bytes(range(251))
    sizes = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 1 << 20]
    records = [Rec((pattern * (size // len(pattern) + 1))[:size], b"%d" % size) for size in sizes]
    Confluent().produce(bootstrap, [Send(topic, 0, records, codec)])
    AioKafka().produce(bootstrap, [Send(topic, 0, records, codec)])
    for consumer in (Confluent(), AioKafka()):
        got = consumer.consume(bootstrap, [Want(topic, 0, 2 * len(records))])[topic, 0]
        assert [record.value for record in got] == 2 * [record.value for record in records], consumer.name
