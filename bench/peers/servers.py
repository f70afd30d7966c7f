"""The two sides: Apache Kafka (KRaft, combined mode) and `headrace dev`, started alike on loopback.

Both keep their data in a folder of their own, run with the settings of their own start scripts, and differ only in what
their makers chose. `cpu_pids` are all processes of a side (Kafka's brokers are its controllers too, so our controller,
metadata service, coordinators and etcd count as well); `broker_pids` are those whose memory is a broker's.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from tests.integration.cluster import Cluster, free_port
from tests.integration.java import kafka_jars

START_SECONDS = 120.0
STOP_SECONDS = 60.0
# the flags of Kafka's own start scripts
BROKER_FLAGS = (
    *("-Xms1G", "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
    "-Dlog4j2.level=WARN",
)
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}
COORDINATORS = 1_000_000
CLUSTER_ID = "aGVhZHJhY2UtYmVuY2gtMA"


class Server(ABC):
    """A cluster of one side. `start` returns the seconds until metadata named every broker."""

    name: str
    bootstrap: str

    def __init__(self, folder: Path, brokers: int, session_seconds: float | None = None) -> None:
        self.folder = folder
        self.brokers = brokers
        self.session_seconds = session_seconds

    @abstractmethod
    def start(self) -> float: ...

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def kill_broker(self, number: int) -> None: ...

    @property
    @abstractmethod
    def cpu_pids(self) -> list[int]: ...

    @property
    @abstractmethod
    def broker_pids(self) -> list[int]: ...

    def forget(self) -> None:
        """Remove what it stored."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Kafka(Server):
    name = "kafka"

    def __init__(self, folder: Path, brokers: int, session_seconds: float | None = None) -> None:
        super().__init__(folder, brokers, session_seconds)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._ports = {number: (free_port(), free_port()) for number in range(1, brokers + 1)}
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port, _ in self._ports.values())

    def start(self) -> float:
        self.folder.mkdir(parents=True, exist_ok=True)
        for number in self._ports:
            config = self._configure(number)
            line = ["java", "-Dlog4j2.level=WARN", "-cp", kafka_jars(), "kafka.tools.StorageTool", "format"]
            options = ["--ignore-formatted", "-t", CLUSTER_ID, "-c", str(config)]
            subprocess.run([*line, *options], check=True, capture_output=True, timeout=START_SECONDS)
        began = time.monotonic()
        for number in self._ports:
            with (self.folder / f"broker-{number}.log").open("ab") as log:
                line = ["java", *BROKER_FLAGS, "-cp", kafka_jars(), "kafka.Kafka", str(self._config(number))]
                self._processes[number] = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        await_metadata(self.bootstrap, self.brokers)
        return time.monotonic() - began

    def _config(self, number: int) -> Path:
        return self.folder / f"broker-{number}.properties"

    def _configure(self, number: int) -> Path:
        client, control = self._ports[number]
        voters = ",".join(f"{other}@127.0.0.1:{port}" for other, (_, port) in self._ports.items())
        settings = {
            "process.roles": "broker,controller",
            "node.id": number,
            "listeners": f"BROKER://127.0.0.1:{client},CONTROLLER://127.0.0.1:{control}",
            "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "BROKER",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": voters,
            "log.dirs": self.folder / f"data-{number}",
            "offsets.topic.replication.factor": self.brokers,
            "transaction.state.log.replication.factor": self.brokers,
            **SETTINGS,
        }
        if self.session_seconds:
            settings["broker.session.timeout.ms"] = int(self.session_seconds * 1000)
        self._config(number).write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return self._config(number)

    def stop(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def kill_broker(self, number: int) -> None:
        self._processes[number].kill()

    @property
    def cpu_pids(self) -> list[int]:
        return [process.pid for process in self._processes.values() if process.poll() is None]

    broker_pids = cpu_pids


class Headrace(Server):
    name = "headrace"

    def __init__(self, folder: Path, brokers: int, session_seconds: float | None = None) -> None:
        super().__init__(folder, brokers, session_seconds)
        settings = dict(SETTINGS)
        if session_seconds:
            settings["broker.session.timeout.ms"] = str(int(session_seconds * 1000))
        folder.mkdir(parents=True, exist_ok=True)
        self._cluster = Cluster(folder / "data", brokers, settings=settings)
        self.bootstrap = ",".join(f"127.0.0.1:{self._cluster.port + number}" for number in range(brokers))

    def start(self) -> float:
        self.folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            ready = pool.submit(self._cluster.start)
            await_metadata(self.bootstrap, self.brokers)
            seconds = time.monotonic() - began
            ready.result()
        return seconds

    def stop(self) -> None:
        self._cluster.stop()

    def kill_broker(self, number: int) -> None:
        self._cluster.kill("broker", number)

    @property
    def cpu_pids(self) -> list[int]:
        return sorted({int(entry["pid"]) for entry in self._cluster.processes if runs(int(entry["pid"]))})

    @property
    def broker_pids(self) -> list[int]:
        brokers = (int(entry["pid"]) for entry in self._cluster.processes if entry["role"] == "broker")
        return [pid for pid in brokers if runs(pid)]


def runs(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}/stat")


def await_metadata(bootstrap: str, brokers: int) -> None:
    """Wait for the first metadata answer that names every broker."""
    quick = {"bootstrap.servers": bootstrap, "broker.address.family": "v4", "log_level": 0}
    admin = AdminClient({**quick, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 10})
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            if named(admin, 2) >= brokers:
                return
        except KafkaException:
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"{bootstrap} gave no metadata with {brokers} brokers in {START_SECONDS:.0f} s")
        time.sleep(0.005)


def named(admin: AdminClient, timeout: float) -> int:
    """How many brokers a metadata answer names; our coordinators have numbers above theirs."""
    return sum(1 for node in admin.list_topics(timeout=timeout).brokers if node < COORDINATORS)
