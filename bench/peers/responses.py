"""How long things take: end to end at a low rate, a topic of 1,000 partitions, start-up, memory, failover."""

from __future__ import annotations

import re
import struct
import threading
import time
from pathlib import Path

from bench.peers import measuring
from bench.peers.measuring import Figures, Job, Run
from bench.peers.servers import Server
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

RATE, SECONDS, WARM_UP = 200, 10, 2
LOOPED = 5000
WIDE = 1000
SESSION_SECONDS = 9.0


def paced(acks: str) -> Job:
    """confluent-kafka, one partition, 100 B records, 200 a second; `ack` is the time until the producer has its ack."""

    def measure(run: Run) -> Figures:
        topic = measuring.fresh("latency")
        measuring.create(run.server, topic, 1)
        total = int(RATE * (SECONDS * run.scale + WARM_UP))
        run.meter.start()
        seconds, acked = _exchange(run.bootstrap, topic, acks, total)
        used = run.meter.figures(None)
        measuring.delete(run.server, topic)
        if len(seconds) < total or len(acked) < total:
            raise RuntimeError(f"{len(acked)} acked and {len(seconds)} read of {total}")
        kept, acked = seconds[RATE * WARM_UP :], acked[RATE * WARM_UP :]
        return {
            "p50_ms": measuring.percentile(kept, 0.5) * 1e3,
            "p99_ms": measuring.percentile(kept, 0.99) * 1e3,
            "ack_p50_ms": measuring.percentile(acked, 0.5) * 1e3,
            "ack_p99_ms": measuring.percentile(acked, 0.99) * 1e3,
            "others_busy_share": used["others_busy_share"],
        }

    return measure


def _exchange(bootstrap: str, topic: str, acks: str, total: int) -> tuple[list[float], list[float]]:
    """Seconds from produce() to the consumer's hands, and to the ack, of each record."""
    seconds: list[float] = []
    acked: list[float] = []
    consumer = Consumer(measuring.settings(bootstrap, group_id="bench-latency", socket_nagle_disable=True))
    consumer.assign([TopicPartition(topic, 0, 0)])

    def read() -> None:
        give_up = time.monotonic() + 60 + total / RATE
        while len(seconds) < total and time.monotonic() < give_up:
            message = consumer.poll(1)
            if message and not message.error():
                seconds.append(time.perf_counter() - struct.unpack_from("d", message.value())[0])

    def delivered(error: KafkaError | None, message: Message) -> None:
        if not error:
            acked.append(message.latency())

    reader = threading.Thread(target=read)
    reader.start()
    producer = Producer(measuring.settings(bootstrap, acks=acks, linger_ms=0, socket_nagle_disable=True))
    began = time.perf_counter()
    for number in range(total):
        while (left := began + number / RATE - time.perf_counter()) > 0:
            producer.poll(left)
        producer.produce(topic, struct.pack("d", time.perf_counter()) + bytes(92), on_delivery=delivered)
        producer.poll(0)
    producer.flush(30)
    reader.join()
    consumer.close()
    return seconds, acked


def looped(acks: str) -> Job:
    """Kafka's own EndToEndLatency, one record at a time (it rounds its percentiles down to a millisecond)."""

    def measure(run: Run) -> Figures:
        topic = measuring.fresh("loop")
        measuring.create(run.server, topic, 1)
        run.meter.start()
        out = measuring.java(
            "EndToEndLatency",
            *("--bootstrap-server", run.bootstrap, "--topic", topic, "--num-records", run.count(LOOPED)),
            *("--producer-acks", acks, "--record-size", 100),
        )
        used = run.meter.figures(None)
        measuring.delete(run.server, topic)
        average = re.search(r"Avg latency: ([\d.]+)", out)
        shares = re.search(r"50th = (\d+), 99th = (\d+)", out)
        if average is None or shares is None:
            raise RuntimeError(f"EndToEndLatency printed no figures: {out[-300:]}")
        return {
            "avg_ms": float(average[1]),
            "p50_ms_floor": float(shares[1]),
            "p99_ms_floor": float(shares[2]),
            "others_busy_share": used["others_busy_share"],
        }

    return measure


def wide(run: Run) -> Figures:
    """A topic of 1,000 partitions: until the request is answered, each has a leader, each took a record."""
    topic, count = measuring.fresh("wide"), run.named(WIDE)
    admin = AdminClient(measuring.settings(run.bootstrap))
    new = NewTopic(topic, count, min(3, run.server.brokers))
    run.meter.start()
    began = time.perf_counter()
    admin.create_topics([new], operation_timeout=60, request_timeout=90)[topic].result()
    answered = time.perf_counter() - began
    while not measuring.led(admin, topic, count):
        time.sleep(0.01)
    ready = time.perf_counter() - began
    _write_each(run.bootstrap, topic, count)
    written = time.perf_counter() - began
    used = run.meter.figures(None)
    began = time.perf_counter()
    measuring.delete(run.server, topic)
    deleted = time.perf_counter() - began
    times = {"answered_s": answered, "leaders_s": ready, "all_written_s": written, "delete_s": deleted}
    return {**times, "others_busy_share": used["others_busy_share"]}


def _write_each(bootstrap: str, topic: str, count: int) -> None:
    """One acknowledged record in every partition."""
    producer = Producer(measuring.settings(bootstrap, acks="all", linger_ms=0))
    acked: list[int] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if not error:
            acked.append(message.partition())

    for partition in range(count):
        producer.produce(topic, b"x", partition=partition, on_delivery=delivered)
    producer.flush(120)
    if len(acked) < count:
        raise RuntimeError(f"{len(acked)} of {count} partitions took a record")


def own(run: Run, name: str, session_seconds: float | None = None) -> Server:
    """A second cluster of the same side, for jobs that start and kill it."""
    folder = run.server.folder.with_name(f"{run.server.folder.name}-{name}")
    made = type(run.server)(Path(folder), run.server.brokers, session_seconds)
    made.forget()
    return made


def start_up(run: Run) -> Figures:
    """From the start of the processes to the first metadata answer: fresh, and with 1,000 partitions of data."""
    server = own(run, "start")
    run.meter.start()
    fresh = server.start()
    try:
        topic = measuring.fresh("kept")
        measuring.create(server, topic, run.named(WIDE))
        _write_each(server.bootstrap, topic, run.named(WIDE))
        server.stop()
        again = server.start()
    finally:
        server.stop()
        server.forget()
    return {"fresh_s": fresh, "with_data_s": again, **run.meter.disturbance()}


def memory(partitions: int) -> Job:
    """What a broker holds in memory with so many partitions, each written once."""

    def measure(run: Run) -> Figures:
        server, count, made = own(run, "memory"), run.named(partitions), 0
        run.meter.start()
        server.start()
        try:
            while made < count:
                step = min(WIDE, count - made)
                topic = measuring.fresh("held")
                measuring.create(server, topic, step)
                _write_each(server.bootstrap, topic, step)
                made += step
            brokers = [measuring.memory_mib(pid) for pid in server.broker_pids]
        finally:
            server.stop()
            server.forget()
        return {"broker_rss_MiB": sum(brokers) / len(brokers), **run.meter.disturbance()}

    return measure


def fail_over(run: Run) -> Figures:
    """100 records a second, acks=all, one partition of three replicas; kill -9 of its leader to the next ack."""
    server = own(run, "failover", SESSION_SECONDS)
    run.meter.start()
    server.start()
    try:
        seconds = _kill_leader(server)
    finally:
        server.stop()
        server.forget()
    return {"next_ack_s": seconds, **run.meter.disturbance()}


def _kill_leader(server: Server) -> float:
    topic = measuring.fresh("failover")
    measuring.create(server, topic, 1)
    producer = Producer(measuring.settings(server.bootstrap, acks="all", linger_ms=0, delivery_timeout_ms=120_000))
    acks: list[tuple[float, float]] = []

    def send() -> None:
        sent = time.perf_counter()

        def delivered(error: KafkaError | None, message: Message) -> None:
            if not error:
                acks.append((sent, time.perf_counter()))

        producer.produce(topic, b"x" * 100, on_delivery=delivered)
        while (left := sent + 0.01 - time.perf_counter()) > 0:
            producer.poll(left)

    began = time.perf_counter()
    while time.perf_counter() < began + 5 or len(acks) < 300 or acks[-1][1] < time.perf_counter() - 0.2:
        if time.perf_counter() > began + 60:
            raise RuntimeError("no steady acks before the failover")
        send()
    leader = producer.list_topics(topic, timeout=30).topics[topic].partitions[0].leader
    killed = time.perf_counter()
    server.kill_broker(leader)
    while not any(sent > killed for sent, _ in acks[-200:]):
        if time.perf_counter() > killed + 110:
            raise RuntimeError("no ack within 110 s of the leader's death")
        send()
    producer.flush(30)
    return min(acked for sent, acked in acks if sent > killed) - killed


JOBS: dict[str, Job] = {
    **{f"latency/paced/acks={acks}": paced(acks) for acks in ("1", "all")},
    **{f"latency/loop/acks={acks}": looped(acks) for acks in ("1", "all")},
    "partitions/1000": wide,
    "start": start_up,
    "memory/1000": memory(1000),
    "memory/10000": memory(10_000),
    "failover": fail_over,
}
