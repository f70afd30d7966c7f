"""A second peer: NATS JetStream with file storage, by its own `nats bench`.

    python -m bench.nats [PATTERN ...] [--rounds 3] [--scale 1.0] [--json] [--list]

One publisher that does not wait for each acknowledgement, though every message gets one, then one consumer. Server and
client are built with Go the first time, a few minutes, and kept in the cache of the benchmarks.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.peers.measuring import MIB, cpu_seconds, memory_mib
from bench.repeated import Figures, Job, run
from tests.integration.cluster import free_port

SERVER = "github.com/nats-io/nats-server/v2@v2.15.2"
CLIENT, CLIENT_PROGRAM = "github.com/nats-io/natscli@v0.1.5", "github.com/nats-io/natscli/nats"
PROGRAMS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace-bench" / "nats"
PUBLISHED = {1024: 300_000, 100: 500_000}
SECONDS = 300
READY_SECONDS = 30
PUBLISH = "publish-async"
WAYS = {
    PUBLISH: ("--pub", "1", "--purge"),
    "consume-ordered": ("--sub", "1"),
    "consume-pull": ("--sub", "1", "--pull"),
}
RATE = re.compile(r"(?:Pub|Sub) stats: ([\d,]+) msgs/sec")


def build() -> None:
    """Both programs, unless they are there."""
    if all((PROGRAMS / name).exists() for name in ("nats-server", "nats")):
        return
    if shutil.which("go") is None:
        raise SystemExit(
            "a comparison with NATS builds it and needs Go: https://go.dev/dl, or apt-get install golang-go"
        )
    print(f"Building NATS into {PROGRAMS} (a few minutes, once)", file=sys.stderr, flush=True)
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    subprocess.run(["go", "install", SERVER], env={**os.environ, "GOBIN": str(PROGRAMS)}, check=True)
    with tempfile.TemporaryDirectory(prefix="natscli-") as module:  # its own replacements forbid `go install`
        for command in (
            ["go", "mod", "init", "bench"],
            ["go", "get", CLIENT],
            ["go", "build", "-mod=mod", "-o", str(PROGRAMS / "nats"), CLIENT_PROGRAM],
        ):
            subprocess.run(command, cwd=module, check=True)


class Nats:
    """A server on a port of its own, started when it is first used."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path()

    def start(self) -> int:
        """Its process id."""
        if self._process is None:
            build()
            self._folder, self._port = Path(tempfile.mkdtemp(prefix="nats-")), free_port()
            line = [
                str(PROGRAMS / "nats-server"),
                "-a",
                "127.0.0.1",
                "-p",
                str(self._port),
                "-js",
                "-sd",
                str(self._folder),
            ]
            with (self._folder / "log").open("wb") as log:
                self._process = subprocess.Popen(line, stdout=log, stderr=log)
            self._await_answer()
        return self._process.pid

    def _await_answer(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while self.client("rtt", "1").returncode:
            if time.monotonic() > deadline:
                raise RuntimeError(f"NATS does not answer: {(self._folder / 'log').read_text()[-800:]}")
            time.sleep(0.05)

    def client(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        line = [str(PROGRAMS / "nats"), "-s", f"nats://127.0.0.1:{self._port}", *arguments]
        return subprocess.run(line, capture_output=True, text=True, timeout=SECONDS)

    def bench(self, size: int, count: int, *way: str) -> float:
        """Messages a second."""
        what = ("--size", str(size), "--msgs", str(count))
        done = self.client(
            "bench", "bench", "--js", "--no-progress", "--storage", "file", "--maxbytes", "4GB", *what, *way
        )
        rate = RATE.search(done.stdout + done.stderr)
        if rate is None:
            raise RuntimeError(f"nats bench printed no figures: {(done.stdout + done.stderr)[-800:]}")
        return float(rate[1].replace(",", ""))

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(SECONDS)
            shutil.rmtree(self._folder)


def job(server: Nats, way: str, size: int) -> Job:
    def measure(scale: float) -> Figures:
        pid, count = server.start(), max(1, int(PUBLISHED[size] * scale))
        server.client("stream", "rm", "-f", "benchstream")
        if way != PUBLISH:
            server.bench(size, count, *WAYS[PUBLISH])
        before = cpu_seconds([pid])
        records = server.bench(size, count, *WAYS[way])
        mib = count * size / MIB
        return {
            "records_per_s": records,
            "MiB_per_s": records * size / MIB,
            "server_cpu_s_per_GiB": (cpu_seconds([pid]) - before) * 1024 / mib,
            "server_rss_MiB": memory_mib(pid),
        }

    return measure


if __name__ == "__main__":
    nats = Nats()
    try:
        run({f"nats/{way}/{size}B": job(nats, way, size) for size in PUBLISHED for way in WAYS}, __doc__)
    finally:
        nats.stop()
