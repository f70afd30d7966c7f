"""Apache Kafka itself, for the tests that compare with it: its jars from Maven Central, its tools, a broker.

Jars are fetched once, into the cache the benchmarks use. Without a JVM or Maven the tests that ask for them are
skipped, and the reason is printed with them.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

KAFKA_VERSION = "4.3.1"
SPARK_KAFKA_VERSION = "4.2.0"
_POM = Path(__file__).parent / "java" / "pom.xml"
_SPARK_POM = Path(__file__).parent / "java" / "spark" / "pom.xml"
QUICK = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
"""For programs that are over before the optimising compiler pays for itself."""
_CLUSTER_ID = "aGVhZHJhY2UtdGVzdHMtMA"
_FETCH_SECONDS = 600
_TOOL_SECONDS = 60
_START_SECONDS = 60
_STOP_SECONDS = 30


class JavaMissing(Exception):
    """What a comparison with Kafka needs is not on this machine."""


def kafka_jars() -> str:
    """The classpath of Kafka's jars, fetched if they are not there yet."""
    return f"{_jars('kafka', f'kafka-tools-{KAFKA_VERSION}.jar', _POM)}/*"


def spark_kafka_jars() -> list[str]:
    """The jars of Spark's own Kafka source, fetched if they are not there yet."""
    libs = _jars("spark-kafka", f"spark-sql-kafka-0-10_2.13-{SPARK_KAFKA_VERSION}.jar", _SPARK_POM)
    # The folder may hold those of another version too.
    return sorted(
        str(jar) for jar in libs.glob("*.jar") if "sql-kafka" not in jar.name or SPARK_KAFKA_VERSION in jar.name
    )


def _jars(name: str, last: str, pom: Path) -> Path:
    _require_program("java", "default-jre-headless")
    libs = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace-bench" / name / "libs"
    if not (libs / last).exists():
        _require_program("mvn", "maven")
        _fetch(libs, pom)
    return libs


def _require_program(name: str, package: str) -> None:
    if shutil.which(name) is None:
        raise JavaMissing(f"{name} is not installed: apt-get install {package}")


def _fetch(libs: Path, pom: Path) -> None:
    fresh = libs.with_name(f"libs-{os.getpid()}")
    fresh.mkdir(parents=True, exist_ok=True)
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={fresh}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS)
        if done.returncode:
            reason = (done.stdout + done.stderr).strip().splitlines()
            raise JavaMissing(
                f"Maven could not fetch the jars of {pom.parent.name}: {reason[0] if reason else 'no reason given'}"
            )
        libs.mkdir(exist_ok=True)
        for jar in fresh.iterdir():
            jar.replace(libs / jar.name)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def require_java() -> None:
    """A JVM, or the test is skipped with the reason."""
    try:
        _require_program("java", "default-jre-headless")
    except JavaMissing as error:
        pytest.skip(str(error))


def require_spark_kafka() -> list[str]:
    """`spark_kafka_jars`, or the test is skipped with the reason."""
    try:
        return spark_kafka_jars()
    except JavaMissing as error:
        pytest.skip(str(error))


def require_kafka() -> str:
    """`kafka_jars`, or the test is skipped with the reason."""
    try:
        return kafka_jars()
    except JavaMissing as error:
        pytest.skip(str(error))


class Ran(NamedTuple):
    """What a Java program printed."""

    status: int
    stdout: str
    stderr: str


def run_java(tool: str, *args: str | Path) -> Ran:
    """Run a class of Kafka's jars, such as `org.apache.kafka.tools.DumpLogSegments`."""
    options = [*QUICK, "-Dlog4j2.level=OFF", "-Dfile.encoding=UTF-8"]
    command = ["java", *options, "-cp", kafka_jars(), tool, *map(str, args)]
    done = subprocess.run(command, capture_output=True, timeout=_TOOL_SECONDS)
    return Ran(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


class Broker(NamedTuple):
    """A running Kafka broker."""

    bootstrap: str
    log_dir: Path


@contextmanager
def kafka_broker(folder: Path, **settings: str | int) -> Iterator[Broker]:
    """A single Kafka broker on a free port of the loopback, stopped cleanly at the end. `log_dir` outlives it."""
    client, controller = _free_port(), _free_port()
    log_dir = folder / "data"
    properties = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "listeners": f"BROKER://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
        "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "BROKER",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "log.dirs": log_dir,
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 1,
    } | {name.replace("_", "."): value for name, value in settings.items()}
    config = folder / "broker.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    formatted = run_java("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", config)
    assert formatted.status == 0, formatted.stdout + formatted.stderr
    output = folder / "broker.log"
    command = ["java", *QUICK, "-Dlog4j2.level=WARN", "-cp", kafka_jars(), "kafka.Kafka", str(config)]
    with output.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        _await_port(process, client, output)
        yield Broker(f"127.0.0.1:{client}", log_dir)
        process.send_signal(signal.SIGTERM)
        process.wait(_STOP_SECONDS)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await_port(process: subprocess.Popen[bytes], port: int, output: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"Kafka does not listen:\n{output.read_text()}") from None
            time.sleep(0.05)
