"""The native client beside kafka-python and aiokafka: records a second through one broker, in one run.

    .venv/bin/python bench/client.py [--records 50000] [--size 1024] [--rounds 3] [--batch-size 16384]

Starts `headrace dev` in a temporary directory, then produces and consumes the same records with each client in turn,
several rounds, and prints the median of each. Settings are the same for all: acks=1, one partition, linger 5 ms,
idempotence off (kafka-python has it off, acks=1 rules it out), the clients' defaults for everything else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

PORT = 24_600


class Cluster:
    """A `headrace dev` of its own."""

    def __init__(self, directory: Path, port: int) -> None:
        self.kafka = f"127.0.0.1:{port}"
        self.native = f"127.0.0.1:{port + 2}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli", "dev", "--data", str(directory), "--port", str(port)],
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while not (directory / "cluster.json").exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("headrace dev did not start: see above")
            time.sleep(0.05)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)


async def produce_ours(cluster: Cluster, topic: str, value: bytes, count: int, batch_size: int) -> float:
    from headrace.client import BufferFull, Producer

    async with Producer(bootstrap_servers=cluster.native, acks=1, linger_ms=5, batch_size=batch_size) as producer:
        await producer.send(topic, value)
        began = time.perf_counter()
        send = producer.send_nowait
        for n in range(count):
            try:
                send(topic, value)
            except BufferFull:
                await producer.room()
                send(topic, value)
            if not n & 255:
                await asyncio.sleep(0)
        await producer.flush()
        return time.perf_counter() - began


async def produce_aiokafka(cluster: Cluster, topic: str, value: bytes, count: int, batch_size: int) -> float:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        bootstrap_servers=cluster.kafka, acks=1, linger_ms=5, max_batch_size=batch_size, enable_idempotence=False
    )
    await producer.start()
    try:
        await producer.send_and_wait(topic, value)
        began = time.perf_counter()
        for _ in range(count):
            await producer.send(topic, value)
        await producer.flush()
        return time.perf_counter() - began
    finally:
        await producer.stop()


async def produce_kafka_python(cluster: Cluster, topic: str, value: bytes, count: int, batch_size: int) -> float:
    from kafka import KafkaProducer

    def work() -> float:
        producer = KafkaProducer(
            bootstrap_servers=cluster.kafka, acks=1, linger_ms=5, batch_size=batch_size, enable_idempotence=False
        )
        try:
            producer.send(topic, value).get(10)
            began = time.perf_counter()
            for _ in range(count):
                producer.send(topic, value)
            producer.flush()
            return time.perf_counter() - began
        finally:
            producer.close()

    return await asyncio.to_thread(work)


async def consume_ours(cluster: Cluster, topic: str, count: int) -> float:
    from headrace.client import Consumer, TopicPartition

    async with Consumer(bootstrap_servers=cluster.native, auto_offset_reset="earliest") as consumer:
        await consumer.assign([TopicPartition(topic, 0)])
        await consumer.seek_to_beginning()
        began, got = time.perf_counter(), 0
        async for record in consumer:
            got += bool(record.value)
            if got == count:
                break
        return time.perf_counter() - began


async def consume_aiokafka(cluster: Cluster, topic: str, count: int) -> float:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(bootstrap_servers=cluster.kafka, auto_offset_reset="earliest", group_id=None)
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 0)])
        await consumer.seek_to_beginning()
        began, got = time.perf_counter(), 0
        async for record in consumer:
            got += bool(record.value)
            if got == count:
                break
        return time.perf_counter() - began
    finally:
        await consumer.stop()


async def consume_kafka_python(cluster: Cluster, topic: str, count: int) -> float:
    from kafka import KafkaConsumer, TopicPartition

    def work() -> float:
        consumer = KafkaConsumer(bootstrap_servers=cluster.kafka, auto_offset_reset="earliest", group_id=None)
        try:
            consumer.assign([TopicPartition(topic, 0)])
            consumer.seek_to_beginning()
            began, got = time.perf_counter(), 0
            for record in consumer:
                got += bool(record.value)
                if got == count:
                    break
            return time.perf_counter() - began
        finally:
            consumer.close()

    return await asyncio.to_thread(work)


Produce = Callable[[Cluster, str, bytes, int, int], Awaitable[float]]
PRODUCERS: dict[str, Produce] = {
    "headrace": produce_ours,
    "aiokafka": produce_aiokafka,
    "kafka-python": produce_kafka_python,
}
CONSUMERS = {"headrace": consume_ours, "aiokafka": consume_aiokafka, "kafka-python": consume_kafka_python}


async def run(cluster: Cluster, args: argparse.Namespace) -> dict[str, Any]:
    from headrace.client import Admin

    value = os.urandom(args.size)
    rates: dict[str, dict[str, list[float]]] = {"produce": {}, "consume": {}}
    async with Admin(bootstrap_servers=cluster.native) as admin:
        await admin.create_topic("to-read", partitions=1)
        await produce_ours(cluster, "to-read", value, args.records, args.batch_size)
        for turn in range(args.rounds):
            for name, produce in PRODUCERS.items():
                topic = f"{name}-{turn}"
                await admin.create_topic(topic, partitions=1)
                took = await produce(cluster, topic, value, args.records, args.batch_size)
                rates["produce"].setdefault(name, []).append(args.records / took)
            for name, consume in CONSUMERS.items():
                took = await consume(cluster, "to-read", args.records)
                rates["consume"].setdefault(name, []).append(args.records / took)
    return {way: {name: statistics.median(found) for name, found in by.items()} for way, by in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16_384)
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory) / "data", args.port)
        try:
            found = asyncio.run(run(cluster, args))
        finally:
            cluster.stop()
    if args.json:
        print(json.dumps(found))
        return
    for way, by in found.items():
        ours = by["headrace"]
        for name, rate in by.items():
            print(f"{way:8} {name:13} {rate:10,.0f} records/s   headrace is {ours / rate:.2f} x")


if __name__ == "__main__":
    main()
