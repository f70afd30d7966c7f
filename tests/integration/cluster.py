"""A cluster of real processes for the tests: `headrace dev` on free loopback ports, in a directory of its own.

`HEADRACE_TEST_BOOTSTRAP=host:port` runs the client tests against a server that is already there, and
`HEADRACE_TEST_COMMAND` names another command that takes the arguments of `headrace dev`. With either one the tests can
be tried on Apache Kafka itself: a test that Kafka fails is a wrong test.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

EXTERNAL = os.environ.get("HEADRACE_TEST_BOOTSTRAP", "")
START_SECONDS = 60.0
STOP_SECONDS = 60.0
READY = re.compile(r"\bready\b", re.IGNORECASE)


def wait_until(condition: Callable[[], Any], what: str, seconds: float = 30.0) -> Any:
    """The first true value of `condition`; fails with `what` when there is none before the deadline."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.02)
    return value


def free_port() -> int:
    """A loopback port nobody uses now, and neither those that a dev cluster takes beside it.

    It lies below the range from which the kernel gives ports to outgoing connections: those come and go at any moment.
    Each process of one test run draws from a share of its own, so that no two find the same port free.
    """
    worker, workers = (
        os.environ.get("PYTEST_XDIST_WORKER", "gw0"),
        int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")),
    )
    share = 20_000 // workers
    first = 10_000 + share * int(worker.removeprefix("gw"))
    while True:
        port = random.SystemRandom().randrange(first, first + share - 320)
        if all(map(_is_free, [*range(port, port + 8), *range(port + 312, port + 328)])):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def command() -> list[str]:
    """How `headrace` is started."""
    given = os.environ.get("HEADRACE_TEST_COMMAND")
    return shlex.split(given) if given else [str(Path(sys.executable).parent / "headrace")]


def arguments(data: Path, port: int, brokers: int = 1, settings: Mapping[str, str] | None = None) -> list[str]:
    """The whole command line of a dev cluster."""
    line = [*command(), "dev", "--brokers", str(brokers), "--port", str(port), "--data", str(data)]
    for name, value in (settings or {}).items():
        line += ["--set", f"{name}={value}"]
    return line


class Cluster:
    """One `headrace dev`; it can be stopped, killed and started again on the same directory and port."""

    def __init__(
        self, data: Path, brokers: int = 1, port: int | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        self.data = data
        self.brokers = brokers
        self.port = port or free_port()
        self.settings = dict(settings or {})
        self.log = data.with_name(data.name + ".log")
        self._process: subprocess.Popen[bytes] | None = None
        self._seen = 0

    def start(self) -> Cluster:
        self._seen = self.log.stat().st_size if self.log.exists() else 0
        (self.data / "cluster.json").unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                arguments(self.data, self.port, self.brokers, self.settings),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            wait_until(self._is_ready, f"a ready line of {command()[0]} dev", START_SECONDS)
        except BaseException:
            self.kill_all()
            raise AssertionError(f"the cluster did not start; it said:\n{self.output()}") from None
        return self

    def _is_ready(self) -> bool:
        assert self._process is not None
        code = self._process.poll()
        assert code is None, f"ended with {code} before it was ready"
        return READY.search(self.output()) is not None and (self.data / "cluster.json").exists()

    def output(self) -> str:
        """What the running (or last) process said since it was started."""
        with self.log.open("rb") as log:
            log.seek(self._seen)
            return log.read().decode(errors="replace")

    @property
    def description(self) -> dict[str, Any]:
        """`cluster.json` as it is now."""
        found: dict[str, Any] = json.loads((self.data / "cluster.json").read_text())
        return found

    @property
    def bootstrap(self) -> str:
        return str(self.description["bootstrap"])

    @property
    def processes(self) -> list[dict[str, Any]]:
        return list(self.description["processes"])

    def process(self, role: str, number: int = 0) -> dict[str, Any]:
        """The entry of one service instance."""
        for entry in self.processes:
            if entry["role"] == role and entry["id"] == number:
                return entry
        raise AssertionError(f"no {role} {number} in {self.processes}")

    def kill(self, role: str, number: int, how: int = signal.SIGKILL) -> None:
        """Signal the process of one service instance."""
        os.kill(self.process(role, number)["pid"], how)

    def kill_all(self) -> None:
        """kill -9 of everything at once, as a node that loses power (but keeps its page cache)."""
        pids: set[int] = set()
        with contextlib.suppress(OSError, ValueError, KeyError):
            pids = {int(entry["pid"]) for entry in self.processes}
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(STOP_SECONDS)
        wait_until(lambda: not any(_runs(pid) for pid in pids), "the killed processes to be gone")
        (self.data / "cluster.json").unlink(missing_ok=True)

    def stop(self) -> int:
        """SIGTERM, as Ctrl-C or Kubernetes would; returns the exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill_all()
            raise AssertionError(f"did not stop on SIGTERM; it said:\n{self.output()}") from None

    def dispose(self) -> None:
        """Leave nothing running, whatever state a test left it in."""
        if self._process is not None and self._process.poll() is None:
            self.kill_all()


def _runs(pid: int) -> bool:
    """Whether a process is there and is not a zombie that only waits for its parent."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def resident_bytes(pid: int) -> int:
    """The memory a process holds now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
