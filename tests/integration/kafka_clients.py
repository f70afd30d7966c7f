"""Kafka clients that others wrote, behind one pair of calls, so that each test runs with every one of them.

`produce` writes records to given partitions and returns when all of them are acknowledged; `consume` assigns partitions
(no group), reads them from the beginning, and returns what it got. Go, Node, Rust and Java run as programs of
`clients/` that take one JSON document and print one line of JSON for each record.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import aiokafka
import confluent_kafka
import kafka
import kafka.codec
from tests.integration.java import QUICK, JavaMissing, kafka_jars

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
MAX_BYTES = 4 << 20
PROGRAMS = Path(__file__).parent / "clients"
READ_SECONDS = 30.0
PROGRAM_SECONDS = 90.0
"""A JVM on a machine that does much else takes its time to start."""


@dataclass(frozen=True)
class Rec:
    """What a record carries from end to end."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None


@dataclass(frozen=True)
class Send:
    """Records for one partition, compressed with one codec."""

    topic: str
    partition: int
    records: Sequence[Rec]
    codec: str = "none"


@dataclass(frozen=True)
class Want:
    """How many records to read of one partition."""

    topic: str
    partition: int
    count: int


Read = dict[tuple[str, int], list[Rec]]


class Client(Protocol):
    name: str

    def missing(self) -> str:
        """Why this client cannot run here; empty when it can."""

    def codecs(self) -> tuple[str, ...]: ...

    def produce(self, bootstrap: str, sends: Sequence[Send]) -> None: ...

    def consume(self, bootstrap: str, wants: Sequence[Want]) -> Read: ...


class _Collected:
    """Gathers records until every partition has what was wanted; more than wanted is kept too, and so is seen."""

    def __init__(self, wants: Sequence[Want]) -> None:
        self.read: Read = {(want.topic, want.partition): [] for want in wants}
        self._left = sum(want.count for want in wants)
        self._deadline = time.monotonic() + READ_SECONDS

    def add(self, topic: str, partition: int, record: Rec) -> None:
        self.read[topic, partition].append(record)
        self._left -= 1

    def unfinished(self) -> bool:
        if self._left > 0 and time.monotonic() > self._deadline:
            got = {f"{topic}-{number}": len(records) for (topic, number), records in self.read.items()}
            raise AssertionError(f"{self._left} records are missing after {READ_SECONDS:.0f} s; read so far: {got}")
        return self._left > 0


class Confluent:
    name = "confluent-kafka"

    def missing(self) -> str:
        return ""

    def codecs(self) -> tuple[str, ...]:
        return CODECS

    def produce(self, bootstrap: str, sends: Sequence[Send]) -> None:
        for send in sends:
            failed: list[Any] = []
            producer = confluent_producer(bootstrap, **{"compression.type": send.codec})
            for record in send.records:
                producer.produce(
                    send.topic,
                    record.value,
                    record.key,
                    send.partition,
                    lambda error, _, failed=failed: failed.append(error) if error else None,
                    timestamp=record.timestamp or 0,
                    headers=list(record.headers),
                )
            assert producer.flush(30) == 0
            assert not failed, failed[0]

    def consume(self, bootstrap: str, wants: Sequence[Want]) -> Read:
        collected = _Collected(wants)
        consumer = confluent_consumer(bootstrap)
        begin = confluent_kafka.OFFSET_BEGINNING
        consumer.assign([confluent_kafka.TopicPartition(want.topic, want.partition, begin) for want in wants])
        while collected.unfinished():
            for message in consumer.consume(500, 0.2):
                assert message.error() is None, message.error()
                collected.add(message.topic(), message.partition(), confluent_record(message))
        consumer.close()
        return collected.read


def confluent_producer(bootstrap: str, **settings: Any) -> confluent_kafka.Producer:
    given = {"bootstrap.servers": bootstrap, "message.max.bytes": MAX_BYTES, "queue.buffering.max.messages": 1_000_000}
    return confluent_kafka.Producer(given | settings)


def confluent_consumer(bootstrap: str, **settings: Any) -> confluent_kafka.Consumer:
    given = {"bootstrap.servers": bootstrap, "group.id": "not-used", "enable.auto.commit": False}
    return confluent_kafka.Consumer(given | {"auto.offset.reset": "error", "fetch.wait.max.ms": 100} | settings)


def confluent_record(message: confluent_kafka.Message) -> Rec:
    return Rec(message.value(), message.key(), tuple(message.headers() or ()), message.timestamp()[1])


class KafkaPython:
    name = "kafka-python"

    def missing(self) -> str:
        return ""

    def codecs(self) -> tuple[str, ...]:
        codec = kafka.codec
        has = {
            "none": True,
            "gzip": True,
            "snappy": codec.has_snappy(),
            "lz4": codec.has_lz4(),
            "zstd": codec.has_zstd(),
        }
        return tuple(name for name in CODECS if has[name])

    def produce(self, bootstrap: str, sends: Sequence[Send]) -> None:
        for codec in dict.fromkeys(send.codec for send in sends):
            compression = None if codec == "none" else codec
            producer = kafka.KafkaProducer(
                bootstrap_servers=bootstrap, compression_type=compression, max_request_size=MAX_BYTES, linger_ms=5
            )
            futures = [
                producer.send(
                    send.topic,
                    record.value,
                    record.key,
                    headers=list(record.headers),
                    partition=send.partition,
                    timestamp_ms=record.timestamp,
                )
                for send in sends
                if send.codec == codec
                for record in send.records
            ]
            producer.flush(30)
            for future in futures:
                future.get(30)
            producer.close()

    def consume(self, bootstrap: str, wants: Sequence[Want]) -> Read:
        collected = _Collected(wants)
        with kafka_python_consumer(bootstrap) as consumer:
            partitions = [kafka.TopicPartition(want.topic, want.partition) for want in wants]
            consumer.assign(partitions)
            consumer.seek_to_beginning(*partitions)
            while collected.unfinished():
                for partition, messages in consumer.poll(200).items():
                    for message in messages:
                        headers = tuple((name, value) for name, value in message.headers)
                        found = Rec(message.value, message.key, headers, message.timestamp)
                        collected.add(partition.topic, partition.partition, found)
        return collected.read


def kafka_python_consumer(bootstrap: str, **settings: Any) -> kafka.KafkaConsumer:
    given = {"bootstrap_servers": bootstrap, "group_id": None, "enable_auto_commit": False, "fetch_max_wait_ms": 100}
    return kafka.KafkaConsumer(**(given | {"max_partition_fetch_bytes": MAX_BYTES} | settings))


class AioKafka:
    name = "aiokafka"

    def missing(self) -> str:
        return ""

    def codecs(self) -> tuple[str, ...]:
        return CODECS

    def produce(self, bootstrap: str, sends: Sequence[Send]) -> None:
        asyncio.run(self._produce(bootstrap, sends))

    async def _produce(self, bootstrap: str, sends: Sequence[Send]) -> None:
        for codec in dict.fromkeys(send.codec for send in sends):
            compression = None if codec == "none" else codec
            async with aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap, compression_type=compression, max_request_size=MAX_BYTES, linger_ms=5
            ) as producer:
                futures = [
                    await producer.send(
                        send.topic,
                        record.value,
                        record.key,
                        send.partition,
                        timestamp_ms=record.timestamp,
                        headers=list(record.headers),
                    )
                    for send in sends
                    if send.codec == codec
                    for record in send.records
                ]
                await asyncio.gather(*futures)

    def consume(self, bootstrap: str, wants: Sequence[Want]) -> Read:
        return asyncio.run(self._consume(bootstrap, wants))

    async def _consume(self, bootstrap: str, wants: Sequence[Want]) -> Read:
        collected = _Collected(wants)
        partitions = [aiokafka.TopicPartition(want.topic, want.partition) for want in wants]
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            enable_auto_commit=False,
            fetch_max_wait_ms=100,
            max_partition_fetch_bytes=MAX_BYTES,
        )
        consumer.assign(partitions)
        async with consumer:
            await consumer.seek_to_beginning(*partitions)
            while collected.unfinished():
                for partition, messages in (await consumer.getmany(timeout_ms=200)).items():
                    for message in messages:
                        found = Rec(message.value, message.key, tuple(message.headers), message.timestamp)
                        collected.add(partition.topic, partition.partition, found)
        return collected.read


class Kcat:
    """kcat takes one list of headers for a whole run, so it sends text records that share their headers."""

    name = "kcat"
    _fields = re.compile(rb"(\d+) (-?\d+) (-?\d+) (-?\d+)\n")

    def missing(self) -> str:
        return "" if install_kcat() else "kcat is missing: apt-get install kcat"

    def codecs(self) -> tuple[str, ...]:
        return CODECS

    def produce(self, bootstrap: str, sends: Sequence[Send]) -> None:
        for send in sends:
            headers = [f"-H{name}={(value or b'').decode()}" for name, value in send.records[0].headers]
            lines = b"".join((record.key or b"") + b"\t" + (record.value or b"") + b"\n" for record in send.records)
            line = ["kcat", "-P", "-K", "\t", "-X", "acks=all", "-z", send.codec, *headers]
            line += ["-b", bootstrap, "-t", send.topic, "-p", str(send.partition)]
            subprocess.run(line, input=lines, check=True, timeout=60, capture_output=True)

    def consume(self, bootstrap: str, wants: Sequence[Want]) -> Read:
        return {(want.topic, want.partition): self._consume(bootstrap, want) for want in wants}

    def _consume(self, bootstrap: str, want: Want) -> list[Rec]:
        line = ["kcat", "-C", "-q", "-b", bootstrap, "-t", want.topic, "-p", str(want.partition), "-o", "beginning"]
        line += ["-c", str(want.count), "-f", "%p %T %K %S\n%k%s%h\n"]
        out = subprocess.run(line, check=True, timeout=READ_SECONDS, capture_output=True).stdout
        records, position = [], 0
        while position < len(out):
            found = self._fields.match(out, position)
            assert found, out[position : position + 80]
            _, timestamp, key_size, size = (int(part) for part in found.groups())
            at = found.end()
            key = None if key_size < 0 else out[at : at + key_size]
            at += max(key_size, 0)
            value = None if size < 0 else out[at : at + size]
            at += max(size, 0)
            end = out.index(b"\n", at)
            records.append(Rec(value, key, tuple(_kcat_headers(out[at:end])), timestamp))
            position = end + 1
        return records


def _kcat_headers(text: bytes) -> list[tuple[str, bytes | None]]:
    pairs = [part.partition(b"=") for part in text.split(b",") if part]
    return [(name.decode(), None if value == b"NULL" else value) for name, _, value in pairs]


@cache
def install_kcat() -> bool:
    """Whether kcat is there; in CI on Debian, as root, it is installed first."""
    if not shutil.which("kcat") and os.environ.get("CI") == "true" and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "timeout": 300}
        subprocess.run(["apt-get", "update"], check=False, **quiet)
        subprocess.run(["apt-get", "install", "-y", "kcat"], check=False, **quiet)
    return shutil.which("kcat") is not None


class Program:
    """A client of another language: a program that reads what to do as JSON and prints what it read."""

    name = ""
    codec_names: tuple[str, ...] = CODECS

    def missing(self) -> str:
        raise NotImplementedError

    def command(self) -> list[str]:
        raise NotImplementedError

    def codecs(self) -> tuple[str, ...]:
        return self.codec_names

    def produce(self, bootstrap: str, sends: Sequence[Send]) -> None:
        wanted = [
            {
                "topic": send.topic,
                "partition": send.partition,
                "codec": send.codec,
                "records": [_to_json(record) for record in send.records],
            }
            for send in sends
        ]
        self._run({"bootstrap": bootstrap, "produce": wanted, "consume": []})

    def consume(self, bootstrap: str, wants: Sequence[Want]) -> Read:
        read: Read = {(want.topic, want.partition): [] for want in wants}
        consume = [{"topic": want.topic, "partition": want.partition, "count": want.count} for want in wants]
        for line in self._run({"bootstrap": bootstrap, "produce": [], "consume": consume}).splitlines():
            if line.startswith("{"):
                entry = json.loads(line)
                read[entry["topic"], entry["partition"]].append(_from_json(entry))
        return read

    def _run(self, task: dict[str, Any]) -> str:
        done = subprocess.run(
            self.command(), input=json.dumps(task), capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False
        )
        assert done.returncode == 0, f"{self.name} ended with {done.returncode}:\n{done.stderr[-4000:]}"
        return done.stdout


def _to_json(record: Rec) -> dict[str, Any]:
    headers = [[name, _hex(value)] for name, value in record.headers]
    return {"key": _hex(record.key), "value": _hex(record.value), "headers": headers, "timestamp": record.timestamp}


def _from_json(entry: dict[str, Any]) -> Rec:
    headers = tuple((name, _unhex(value)) for name, value in entry["headers"])
    return Rec(_unhex(entry["value"]), _unhex(entry["key"]), headers, entry["timestamp"])


def _hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def _unhex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def cache_folder(name: str) -> Path:
    """A folder outside the repository where a toolchain keeps what it downloads and builds."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "headrace-tests" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def building(name: str) -> Iterator[Path]:
    """`cache_folder`, for one process at a time: the tests run in several."""
    folder = cache_folder(name)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


class FranzGo(Program):
    name = "franz-go"

    @cache  # noqa: B019 - one object for the whole run
    def missing(self) -> str:
        if not shutil.which("go"):
            return "Go is missing: install Go 1.24 or newer"
        build = ["go", "build", "-trimpath", "-o", str(self._binary()), "."]
        with building("go"):
            done = subprocess.run(build, cwd=PROGRAMS / "go", capture_output=True, text=True, timeout=300, check=False)
        return "" if done.returncode == 0 else f"the Go client does not build here: {done.stderr[-600:]}"

    def _binary(self) -> Path:
        return cache_folder("go") / "client"

    def command(self) -> list[str]:
        return [str(self._binary())]


class RsKafka(Program):
    name = "rskafka"

    @cache  # noqa: B019 - one object for the whole run
    def missing(self) -> str:
        if not shutil.which("cargo"):
            return "Rust is missing: install Rust 1.85 or newer with cargo"
        # beside what it builds: cargo writes its lock file next to the sources
        build = ["cargo", "build", "--release", "--quiet"]
        with building("rust") as folder:
            shutil.copytree(PROGRAMS / "rust", folder, dirs_exist_ok=True)
            done = subprocess.run(build, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
        return "" if done.returncode == 0 else f"the Rust client does not build here: {done.stderr[-600:]}"

    def command(self) -> list[str]:
        return [str(cache_folder("rust") / "target" / "release" / "client")]


class KafkaJs(Program):
    """kafkajs brings gzip alone; the other codecs are plug-ins."""

    name = "kafkajs"
    codec_names = ("none", "gzip")

    @cache  # noqa: B019 - one object for the whole run
    def missing(self) -> str:
        if not shutil.which("node") or not shutil.which("npm"):
            return "Node is missing: install Node 18 or newer with npm"
        with building("node") as folder:
            for name in ("package.json", "package-lock.json", "client.mjs"):
                shutil.copy(PROGRAMS / "node" / name, folder / name)
            if not (folder / "node_modules" / "kafkajs").exists():
                line = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
                done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
                if done.returncode:
                    return f"kafkajs cannot be installed here: {done.stderr[-600:]}"
        return ""

    def command(self) -> list[str]:
        return ["node", str(cache_folder("node") / "client.mjs")]


class Java(Program):
    name = "java"

    def missing(self) -> str:
        try:
            kafka_jars()
        except JavaMissing as reason:
            return str(reason)
        return "" if shutil.which("javac") else "javac is not installed: apt-get install default-jdk-headless"

    def command(self) -> list[str]:
        return java_program("Assigned")


@cache
def java_classes() -> Path:
    """Where the programs of `clients/java` are compiled to."""
    sources = sorted((PROGRAMS / "java").glob("*.java"))
    content = b"".join(path.read_bytes() for path in sources)
    with building("java") as base:
        folder = base / hashlib.sha256(content).hexdigest()[:16]
        if not folder.exists():
            fresh = base / "fresh"
            subprocess.run(["javac", "-d", fresh, "-cp", kafka_jars(), *sources], check=True, timeout=120)
            fresh.rename(folder)
    return folder


def java_program(name: str) -> list[str]:
    """The command that runs a class of `clients/java` with Kafka's jars."""
    return ["java", *QUICK, "-Dlog4j2.level=OFF", "-cp", f"{java_classes()}:{kafka_jars()}", name]
