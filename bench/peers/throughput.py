"""Throughput: Kafka's own ProducerPerformance and ConsumerPerformance, librdkafka, and many small connections."""

from __future__ import annotations

import asyncio
import itertools
import re
import struct
import time

from bench.peers import measuring
from bench.peers.measuring import MIB, PARTITIONS, Figures, Job, Run
from bench.peers.servers import Server
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.records.record import Record, build

PRODUCED = {1024: 500_000, 100: 2_000_000}
CONSUMED = {1024: 1_000_000, 100: 5_000_000}
CHUNK = 1000
CONNECTIONS = 1000
CONNECTED_SECONDS = 10.0
LINE = re.compile(
    r"([\d.]+) records/sec \(([\d.]+) MB/sec\), ([\d.]+) ms avg latency, .*?(\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th"
)


def send(server: Server, topic: str, size: int, acks: str, batch: int, codec: str, count: int) -> Figures:
    """Send as fast as it goes; the first tenth warms up and is left out of the figures."""
    out = measuring.java(
        "ProducerPerformance",
        *("--bootstrap-server", server.bootstrap, "--topic", topic, "--num-records", count),
        *("--warmup-records", count // 10, "--throughput", -1, "--payload-file", measuring.payloads(size)),
        *("--reporting-interval", 3_600_000, "--command-property", f"acks={acks}", f"batch.size={batch}"),
        *("linger.ms=5", f"compression.type={codec}"),
    )
    rate, mib, _, p50, _, p99 = map(float, LINE.findall(out)[-1])
    return {"records_per_s": rate, "MiB_per_s": mib, "p50_ms": p50, "p99_ms": p99, "MiB": count * size / MIB}


def produce(size: int, acks: str, batch: int, codec: str) -> Job:
    def measure(run: Run) -> Figures:
        count = run.count(PRODUCED[size])
        topic = measuring.fresh("produce")
        measuring.create(run.server, topic)
        run.meter.start()
        figures = send(run.server, topic, size, acks, batch, codec, count)
        figures |= run.meter.figures(figures["MiB"])
        measuring.expect_held(run.server, topic, count)
        measuring.delete(run.server, topic)
        return figures

    return measure


def consume(size: int, codec: str, *, cold: bool = False) -> Job:
    """Over a topic that is written first and then kept for the next round; `cold` reads it from the disk."""

    def measure(run: Run) -> Figures:
        count = run.count(CONSUMED[size])
        topic = f"bench-consume-{size}-{codec}-{count}-{PARTITIONS}"
        there = measuring.held(run.server, topic)
        if not there:
            measuring.create(run.server, topic)
        if there < count:
            send(run.server, topic, size, "all", 131_072, codec, count)
            measuring.settle(run.server)
        if cold:
            measuring.settle(run.server, forget=True)
        else:
            measuring.read_through(run.server, topic)
        run.meter.start()
        out = measuring.java(
            "ConsumerPerformance",
            *("--bootstrap-server", run.bootstrap, "--topic", topic, "--num-records", count),
            *("--group", measuring.fresh("group"), "--timeout", 60_000, "--hide-header"),
            *("--reporting-interval", 3_600_000),
        )
        # start, end, MB, MB/s, records, records/s, rebalance ms, fetch ms, fetch MB/s, fetch records/s
        row = [cell.strip() for cell in out.strip().splitlines()[-1].split(",")]
        if int(row[4]) < count:
            raise RuntimeError(f"read {row[4]} of {count} records")
        rates = {"records_per_s": float(row[9]), "MiB_per_s": float(row[8]), "rebalance_ms": float(row[6])}
        return {**rates, "MiB": float(row[2]), **run.meter.figures(float(row[2]))}

    return measure


def librdkafka(size: int, acks: str) -> Job:
    """The cross-check with a client in C."""

    def measure(run: Run) -> Figures:
        count = max(CHUNK, run.count(PRODUCED[size]) // CHUNK * CHUNK)
        topic = measuring.fresh("rdkafka")
        measuring.create(run.server, topic)
        mib = count * size / MIB
        run.meter.start()
        wrote = _write(run.bootstrap, topic, size, acks, count)
        writing = run.meter.figures(mib)
        measuring.expect_held(run.server, topic, count)
        run.meter.start()
        took = _read(run.bootstrap, topic, count)
        reading = run.meter.figures(mib)
        measuring.delete(run.server, topic)
        return {
            "produce_MiB_per_s": mib / wrote,
            "produce_cpu_s_per_GiB": writing["cpu_s_per_GiB"],
            "consume_MiB_per_s": mib / took,
            "consume_cpu_s_per_GiB": reading["cpu_s_per_GiB"],
            "others_busy_share": max(writing["others_busy_share"], reading["others_busy_share"]),
        }

    return measure


def _write(bootstrap: str, topic: str, size: int, acks: str, count: int) -> float:
    values = [{"value": line.encode()} for line in measuring.payloads(size).read_text().splitlines()]
    chunks = [values[start : start + CHUNK] for start in range(0, len(values), CHUNK)]
    producer = Producer(
        measuring.settings(bootstrap, acks=acks, linger_ms=5, batch_size=131_072, queue_buffering_max_messages=100_000)
    )
    producer.list_topics(topic, timeout=30)
    began = time.perf_counter()
    for chunk, _ in zip(itertools.cycle(chunks), range(count // CHUNK), strict=False):
        while len(producer) > 90_000:
            producer.poll(0.001)
        producer.produce_batch(topic, chunk)
    while producer.flush(60):
        pass
    return time.perf_counter() - began


def _read(bootstrap: str, topic: str, count: int) -> float:
    # by default librdkafka pauses fetching for a second when 100,000 records or 64 MiB are queued
    consumer = Consumer(
        measuring.settings(bootstrap, group_id="bench-read", queued_min_messages=1_000_000, fetch_queue_backoff_ms=5)
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    got, began = 0, time.perf_counter()
    while got < count:
        messages = consumer.consume(10_000, timeout=30)
        if not messages or any(message.error() for message in messages):
            raise RuntimeError(f"read {got} of {count}")
        got += len(messages)
    seconds = time.perf_counter() - began
    consumer.close()
    return seconds


def connections(count: int) -> Job:
    """Each connection sends one record of 1 KiB and waits for its answer before the next (Produce v8, acks 1)."""

    def measure(run: Run) -> Figures:
        topic = measuring.fresh("connections")
        measuring.create(run.server, topic, 1)
        address = run.bootstrap.split(",")[0]
        run.meter.start()
        answered, seconds = asyncio.run(
            exchange(address, topic, run.named(count), CONNECTED_SECONDS * min(1.0, run.scale))
        )
        figures = run.meter.figures(answered / 1024)
        measuring.expect_held(run.server, topic, answered)
        measuring.delete(run.server, topic)
        return {
            "requests_per_s": answered / seconds,
            "cpu_us_per_request": figures["server_cpu_s"] * 1e6 / answered,
            "others_busy_share": figures["others_busy_share"],
        }

    return measure


async def exchange(address: str, topic: str, count: int, seconds: float) -> tuple[int, float]:
    host, port = address.rsplit(":", 1)
    # Of now: retention would take an old record away before it is counted.
    frame = produce_frame(topic, bytes(build([Record(0, time.time_ns() // 1_000_000, None, bytes(1024), ())])), 0)
    answered = 0
    ends: list[float] = [0.0]
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    class Caller(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport = transport
            self.left = -1

        def begin(self) -> None:
            self.transport.write(frame)

        def data_received(self, data: bytes) -> None:
            nonlocal answered
            if self.left < 0:
                self.left = struct.unpack_from(">i", data)[0] + 4
            self.left -= len(data)
            if self.left:
                return
            self.left = -1
            answered += 1
            if time.perf_counter() < ends[0]:
                self.transport.write(frame)
            elif not done.done():
                done.set_result(None)

        def connection_lost(self, error: Exception | None) -> None:
            if not done.done():
                done.set_exception(error or ConnectionError("the server closed a connection"))

    made = [await loop.create_connection(Caller, host, int(port)) for _ in range(count)]
    began = time.perf_counter()
    ends[0] = began + seconds
    for _, caller in made:
        caller.begin()
    await done
    took = time.perf_counter() - began
    for transport, _ in made:
        transport.abort()
    return answered, took


def produce_frame(topic: str, batch: bytes, partition: int) -> bytes:
    """A Produce v8 request: the last version without tagged fields, which both sides take."""
    head = struct.pack(">hhih", 0, 8, 1, -1) + struct.pack(">hhi", -1, 1, 30_000)
    named = struct.pack(">ih", 1, len(topic)) + topic.encode()
    body = head + named + struct.pack(">iii", 1, partition, len(batch)) + batch
    return struct.pack(">i", len(body)) + body


JOBS: dict[str, Job] = {
    **{
        f"produce/{size}B/acks={acks}/batch={batch}/{codec}": produce(size, acks, batch, codec)
        for size, acks, batch, codec in itertools.product((1024, 100), ("1", "all"), (16_384, 131_072), ("none", "lz4"))
    },
    **{
        f"consume/{size}B/{codec}": consume(size, codec)
        for size, codec in itertools.product((1024, 100), ("none", "lz4"))
    },
    "cold/1024B": consume(1024, "none", cold=True),
    **{
        f"librdkafka/{size}B/acks={acks}": librdkafka(size, acks)
        for size, acks in itertools.product((1024, 100), ("1", "all"))
    },
    f"connections/{CONNECTIONS}": connections(CONNECTIONS),
}
