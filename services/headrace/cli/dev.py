"""`headrace dev`: a whole cluster on loopback, for a laptop and for tests.

One broker: all our services share this process. More: each service instance has a process of its own, started as
`headrace broker --config FILE` and so on, so that they can be killed and started again one by one. `DIR/cluster.json`
says who runs where; everything that has to survive is in DIR.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from headrace.cli import process
from headrace.cluster.configs import Settings
from headrace.config import InvalidConfig
from headrace.errors import KafkaError
from headrace.registry.local_etcd import LocalEtcd, LocalEtcdError

HOST = "127.0.0.1"
METRICS_ABOVE = 312
"""Broker i serves metrics at PORT + 312 + i: 9404 beside Kafka's 9092. Those of coordinators, controllers and metadata
replicas follow."""
_METRICS_ORDER = ("broker", "coordinator", "controller", "metadata")

_BROKERS_ONLY = frozenset({"listeners", "advertised.listeners", "log.dirs", "broker.rack"})
"""Settings of --set that say where brokers are, and would be wrong for any other service."""

READY_SECONDS = 60.0
PATIENCE_SECONDS = 2.0
PATIENCE = "still starting: what a run that was killed had registered expires first, within about ten seconds"


@dataclass(slots=True)
class Member:
    """One service instance, as cluster.json names it."""

    role: str
    id: int
    pid: int = 0
    grpc: str = ""
    kafka: str = ""
    metrics: str = ""
    config: str = ""


@dataclass(slots=True)
class Plan:
    """What to start, and where."""

    data: Path
    port: int
    brokers: int
    etcd: str
    overrides: list[str] = field(default_factory=list)

    @property
    def single(self) -> bool:
        return self.brokers == 1

    @property
    def bootstrap(self) -> str:
        """Where native clients begin: the first port after the brokers', 9094 beside one or two of them."""
        return f"{HOST}:{self.port + max(2, self.brokers)}"

    def members(self) -> list[tuple[Member, dict[str, str]]]:
        """Every instance with its settings, in the order of their start."""
        spare = 1 if self.single else 2
        found = [self._member("metadata", i, {"grpc.listener": self._metadata(i)}) for i in range(spare)]
        found += [self._member("controller", i, {}) for i in range(spare)]
        for i in range(self.brokers):
            found.append(
                self._member(
                    "broker",
                    i,
                    {
                        "listeners": f"PLAINTEXT://{HOST}:{self.port + i}",
                        "log.dirs": str(self.data / f"broker-{i}"),
                    },
                )
            )
        for i in range(spare):
            found.append(self._member("coordinator", i, {"listeners": f"PLAINTEXT://{HOST}:0"}))
        return found

    def metrics_port(self, role: str, i: int) -> int:
        spare = 1 if self.single else 2
        before = _METRICS_ORDER.index(role)
        return self.port + METRICS_ABOVE + i + (self.brokers + (before - 1) * spare if before else 0)

    def _metadata(self, i: int) -> str:
        return self.bootstrap if i == 0 else f"{HOST}:{self.port + max(2, self.brokers) + i}"

    def _member(self, role: str, i: int, own: dict[str, str]) -> tuple[Member, dict[str, str]]:
        spare = 1 if self.single else 2
        settings = {
            "node.id": str(i),
            "grpc.listener": f"{HOST}:0",
            "etcd.endpoints": self.etcd,
            "metadata.servers": ",".join(self._metadata(n) for n in range(spare)),
            "metrics.port": str(self.metrics_port(role, i)),
            "broker.session.timeout.ms": "6000",
            "default.replication.factor": str(min(3, self.brokers)),
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.replication.factor": str(min(3, self.brokers)),
            **own,
        }
        for override in self.overrides:
            name, _, value = override.partition("=")
            if role == "broker" or name.strip() not in _BROKERS_ONLY:
                settings[name.strip()] = value
        return Member(role, i), settings


def run(data: Path, port: int, brokers: int, etcd: str | None, overrides: list[str]) -> None:
    """Starts a cluster and runs it until Ctrl-C or SIGTERM."""
    if brokers < 1:
        process.fail("--brokers must be at least 1", 2)
    lock = _claim(data)
    try:
        _check_leftovers(data)
        plan = Plan(data.absolute(), port, brokers, etcd or "", overrides)
        _check_ports(plan)
        with asyncio.Runner(loop_factory=process.new_loop) as runner:
            runner.run(_run(plan, own_etcd=etcd is None))
    except (KafkaError, OSError, LocalEtcdError) as error:
        process.fail(error.message if isinstance(error, KafkaError) else str(error))
    finally:
        lock.close()


async def _run(plan: Plan, own_etcd: bool) -> None:
    stop = process.signalled()
    began = time.monotonic()
    process.log_to(plan.data / "headrace.log")
    async with AsyncExitStack() as stack:
        etcd_pid = 0
        if own_etcd:
            _say("etcd ...")
            etcd = await stack.enter_async_context(_etcd(plan))
            plan.etcd, etcd_pid = etcd.endpoint, etcd.pid or 0
        _say("headrace ...")
        members = plan.members()
        for _, given in members:
            Settings(given)  # a wrong value is said before anything is started
        cluster = _InProcess(members) if plan.single else _Processes(plan, members)
        patience = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, _say, PATIENCE)
        try:
            ended = await stack.enter_async_context(cluster.running(stop))
        finally:
            patience.cancel()
        if not stop.done():
            _write_cluster_file(plan, etcd_pid, [member for member, _ in members])
            stack.callback((plan.data / "cluster.json").unlink, missing_ok=True)
            _say_ready(plan, [member for member, _ in members], time.monotonic() - began)
        await asyncio.wait({stop, ended}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            ended.result()
        print("\nstopping ...", flush=True)
    print("stopped", flush=True)


@asynccontextmanager
async def _etcd(plan: Plan) -> AsyncIterator[LocalEtcd]:
    etcd, stopping = LocalEtcd(plan.data / "etcd"), False

    def ended(_: object) -> None:
        if not stopping:
            _say(f"etcd (pid {etcd.pid}) ended, and nothing can change without it: Ctrl-C, and start again")

    loop = asyncio.get_running_loop()
    starting = loop.run_in_executor(None, etcd.start)
    try:
        if plan.single:
            process.import_all()  # which takes as long as etcd needs to come up
        await starting
        loop.run_in_executor(None, etcd.wait).add_done_callback(ended)
        yield etcd
    finally:
        stopping = True
        await asyncio.to_thread(etcd.stop)


class _InProcess:
    """All services on this process's loop."""

    def __init__(self, members: list[tuple[Member, dict[str, str]]]) -> None:
        self._members = members

    @asynccontextmanager
    async def running(self, stop: asyncio.Future[None]) -> AsyncIterator[asyncio.Future[None]]:
        async with AsyncExitStack() as stack:
            ends = []
            for member, given in self._members:
                service = process.SERVICES[member.role]
                running = await stack.enter_async_context(service(Settings(given)))
                member.pid = os.getpid()
                member.grpc, member.kafka, member.metrics = running.grpc, running.kafka, running.metrics
                ends.append(running.lost)
            done = asyncio.ensure_future(_first(ends))
            try:
                yield done
            finally:
                done.cancel()


class _Processes:
    """A process for each service instance."""

    def __init__(self, plan: Plan, members: list[tuple[Member, dict[str, str]]]) -> None:
        self._plan = plan
        self._members = members
        self._stopping = False

    @asynccontextmanager
    async def running(self, stop: asyncio.Future[None]) -> AsyncIterator[asyncio.Future[None]]:
        children: list[tuple[Member, asyncio.subprocess.Process]] = []
        watchers: list[asyncio.Task[None]] = []
        (self._plan.data / "logs").mkdir(exist_ok=True)
        try:
            starting = []
            for member, given in self._members:
                child = await self._start(member, given)
                children.append((member, child))
                starting.append(self._ready(member, child))
            started: asyncio.Future[Any] = asyncio.gather(*starting)
            await asyncio.wait([stop, started], return_when=asyncio.FIRST_COMPLETED)
            if started.done():
                started.result()
            watchers = [asyncio.create_task(self._watch(member, child)) for member, child in children]
            yield asyncio.get_running_loop().create_future()
        finally:
            self._stopping = True
            for task in watchers:
                task.cancel()
            await self._stop(children)

    async def _start(self, member: Member, given: dict[str, str]) -> asyncio.subprocess.Process:
        name = f"{member.role}-{member.id}"
        file = self._plan.data / f"{name}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
        member.config = str(file)
        ready = self._plan.data / f"{name}.ready"
        ready.unlink(missing_ok=True)
        with (self._plan.data / "logs" / f"{name}.log").open("ab") as log:
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "headrace.cli",
                member.role,
                "--config",
                str(file),
                "--ready-file",
                str(ready),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        member.pid = child.pid
        return child

    async def _ready(self, member: Member, child: asyncio.subprocess.Process) -> None:
        file = self._plan.data / f"{member.role}-{member.id}.ready"
        deadline = time.monotonic() + READY_SECONDS
        while not file.exists():
            if child.returncode is not None:
                raise OSError(f"{self._name(member)} ended at its start:\n{self._log_tail(member)}")
            if time.monotonic() > deadline:
                raise OSError(f"{self._name(member)} is not ready after {READY_SECONDS:g} s: see {self._log(member)}")
            await asyncio.sleep(0.01)
        told = json.loads(file.read_text())
        member.grpc, member.kafka, member.metrics = told["grpc"], told["kafka"], told["metrics"]

    async def _watch(self, member: Member, child: asyncio.subprocess.Process) -> None:
        code = await child.wait()
        if not self._stopping:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            print(
                f"{self._name(member)} ended ({how}). Start it again with: "
                f"headrace {member.role} --config {member.config}",
                flush=True,
            )

    async def _stop(self, children: list[tuple[Member, asyncio.subprocess.Process]]) -> None:
        """Those that need others first, so that they can hand over; then the others."""
        for role in ("coordinator", "broker", "controller", "metadata"):
            ending = [child for member, child in children if member.role == role and child.returncode is None]
            for child in ending:
                child.terminate()
            for child in ending:
                try:
                    await asyncio.wait_for(child.wait(), 30)
                except TimeoutError:
                    child.kill()
                    await child.wait()

    def _name(self, member: Member) -> str:
        return f"{member.role} {member.id} (pid {member.pid})"

    def _log(self, member: Member) -> Path:
        return self._plan.data / "logs" / f"{member.role}-{member.id}.log"

    def _log_tail(self, member: Member) -> str:
        return "\n".join(self._log(member).read_text(errors="replace").splitlines()[-8:])


async def _first(ends: list[asyncio.Future[None]]) -> None:
    done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for each in done:
        each.result()


# --- what a person sees


def _say(words: str) -> None:
    print(words, flush=True)


def _say_ready(plan: Plan, members: list[Member], seconds: float) -> None:
    kafka = ",".join(member.kafka for member in members if member.role == "broker")
    metrics = ", ".join(f"http://{member.metrics}/metrics" for member in members if member.metrics)
    hint = "" if plan.bootstrap == f"{HOST}:9094" else f"  export HEADRACE_BOOTSTRAP={plan.bootstrap}\n"
    print(
        f"""ready in {seconds:.1f} s

  Kafka clients   {kafka}
  native clients  {plan.bootstrap}
  metrics         {metrics}
  data            {plan.data}

Try, in another terminal:
{hint}  headrace topics create hello
  echo 'first record' | headrace produce hello
  headrace consume hello --from beginning --exit
  kcat -b {kafka.split(",")[0]} -t hello -C -e

Ctrl-C stops it; starting again on the same directory brings everything back.""",
        flush=True,
    )


def _write_cluster_file(plan: Plan, etcd_pid: int, members: list[Member]) -> None:
    etcd: list[dict[str, Any]] = [{"role": "etcd", "id": 0, "pid": etcd_pid, "grpc": plan.etcd}] if etcd_pid else []
    content = {
        "bootstrap": ",".join(member.kafka for member in members if member.role == "broker"),
        "grpc": plan.bootstrap,
        "etcd": plan.etcd,
        "processes": [*etcd, *(asdict(member) for member in members)],
    }
    file = plan.data / "cluster.json"
    part = file.with_suffix(".part")
    part.write_text(json.dumps(content, indent=2) + "\n")
    part.rename(file)


# --- what can stand in the way


def _claim(data: Path) -> TextIO:
    try:
        data.mkdir(parents=True, exist_ok=True)
        lock = (data / "dev.lock").open("w")
    except OSError as error:
        process.fail(f"cannot use {data}: {error.strerror}")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        process.fail(f"{data} is in use by another `headrace dev`: stop it, or choose another directory with --data")
    return lock


def _check_leftovers(data: Path) -> None:
    """Processes of an earlier run that was killed and could not stop them."""
    try:
        known = json.loads((data / "cluster.json").read_text())["processes"]
    except (OSError, ValueError, KeyError):
        return
    alive = [p for p in known if _is_ours(p["pid"], p["role"])]
    if alive:
        names = ", ".join(f"{p['role']} {p['id']} (pid {p['pid']})" for p in alive)
        pids = " ".join(sorted({str(p["pid"]) for p in alive}))
        process.fail(f"processes of an earlier run still use {data}: {names}. Stop them with: kill {pids}")


def _is_ours(pid: int, role: str) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False
    return ("etcd" if role == "etcd" else "headrace") in command


def _check_ports(plan: Plan) -> None:
    wanted = {plan.port + i: f"broker {i}" for i in range(plan.brokers)}
    members = [member for member, _ in plan.members()]
    wanted |= {plan.metrics_port(each.role, each.id): f"{each.role} {each.id}'s metrics" for each in members}
    first = int(plan.bootstrap.rsplit(":", 1)[1])
    replicas = sum(member.role == "metadata" for member in members)
    wanted |= {first + i: f"metadata replica {i}" for i in range(replicas)}
    for port, owner in sorted(wanted.items()):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                raise InvalidConfig(
                    f"port {port}, wanted for {owner}, is taken: stop what uses it, or choose others with --port"
                ) from None
