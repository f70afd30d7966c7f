"""What groups cost: 1,000 groups of 10 members with a heartbeat every 3 s, and offset commits at a given rate.

`python bench/groups.py` starts a cluster of its own (two brokers, one coordinator), plays the members over Kafka's
protocol, and prints the CPU time of the coordinator's process as a share of one core, and commits a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any, ClassVar

from headrace.errors import ErrorCode
from headrace.wire import messages
from headrace.wire.client import Client
from headrace.wire.protocol import ApiKey, request_header

TOPIC = "bench"
PARTITIONS = 10
HEARTBEAT_SECONDS = 3.0
CONNECTIONS = 250
WAITING = 1000
"""Commits that are not answered yet: 5,000 a second come from many consumers, each of which waits for its own."""
SUBSCRIPTION = struct.pack(">hi", 0, 1) + struct.pack(">h", len(TOPIC)) + TOPIC.encode() + struct.pack(">i", -1)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Cluster:
    """`headrace dev` with two brokers, of whose coordinators one is stopped."""

    def __init__(self, data: Path, port: int) -> None:
        command = [str(Path(sys.executable).parent / "headrace"), "dev", "--brokers", "2"]
        command += ["--data", str(data), "--port", str(port), "--set", "group.max.session.timeout.ms=1800000"]
        self._log = data / "logs" / "coordinator-0.log"
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        described = data / "cluster.json"
        deadline = time.monotonic() + 60
        while not described.exists():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise SystemExit("the cluster did not start")
            time.sleep(0.05)
        found: dict[str, Any] = json.loads(described.read_text())
        self.bootstrap = found["bootstrap"].split(",")[0]
        self.processes = {f"{each['role']}-{each['id']}": each for each in found["processes"]}
        os.kill(self.processes["coordinator-1"]["pid"], signal.SIGTERM)
        self.coordinator = self.processes["coordinator-0"]

    def warnings(self) -> str:
        """What the coordinator complained about: why it refused something it should not have."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return "\n".join(line for line in lines if " WARNING " in line or " ERROR " in line)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


async def connect(address: str) -> Client:
    host, _, port = address.rpartition(":")
    return await Client.connect(host, int(port), client_id="bench", request_timeout=120, max_in_flight=4096)


async def create_topic(bootstrap: str) -> None:
    client = await connect(bootstrap)
    topic = {"name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": 1, "assignments": [], "configs": []}
    await client.request(ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout": 10_000, "validate_only": False})
    client.close()


async def owns_everything(address: str) -> None:
    """Until the one coordinator that is left serves every group."""
    client = await connect(address)
    for number in range(200):
        request = {"coordinator_keys": [f"g-{n}" for n in range(number, 1000, 200)], "key_type": 0}
        while True:
            found = await client.request(ApiKey.FIND_COORDINATOR, 4, request)
            if all(each.node_id == 1_000_000 for each in found.coordinators):
                break
            await asyncio.sleep(0.2)
    client.close()


class Member:
    """One member of a classic group, on a connection of its own."""

    refusals: ClassVar[Counter[str]] = Counter()

    def __init__(self, client: Client, group: str) -> None:
        self.client = client
        self.group = group
        self.beat = b""

    async def join(self) -> None:
        request = {
            "group_id": self.group,
            "session_timeout": 300_000,
            "rebalance_timeout": 300_000,
            "member_id": "",
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
            "reason": None,
        }
        while True:
            joined = await self.client.request(ApiKey.JOIN_GROUP, 9, request)
            request["member_id"] = joined.member_id
            if joined.error_code:
                if joined.error_code in (14, 15, 16):
                    await asyncio.sleep(0.2)
                continue
            shares = [{"member_id": m.member_id, "assignment": b""} for m in joined.members]
            synced = await self.client.request(
                ApiKey.SYNC_GROUP,
                5,
                {
                    "group_id": self.group,
                    "generation_id": joined.generation_id,
                    "member_id": joined.member_id,
                    "group_instance_id": None,
                    "protocol_type": "consumer",
                    "protocol_name": "range",
                    "assignments": shares,
                },
            )
            if not synced.error_code:
                break
        beat = {
            "group_id": self.group,
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
            "group_instance_id": None,
        }
        self.beat = messages.encode(ApiKey.HEARTBEAT, 4, beat, "request")

    async def rejoin_until_quiet(self) -> None:
        while True:
            await self.join()
            answer = messages.decode(
                ApiKey.HEARTBEAT, 4, await self.client.send(ApiKey.HEARTBEAT, 4, [self.beat]), "response"
            )
            if not answer.error_code:
                return

    def send_heartbeat(self) -> None:
        self.client.send(ApiKey.HEARTBEAT, 4, [self.beat]).add_done_callback(self._answered)

    def _answered(self, answer: asyncio.Future[memoryview]) -> None:
        if answer.exception() is not None:
            self.refusals["unanswered"] += 1
            return
        # throttle time, error code
        code = struct.unpack_from(">h", answer.result(), 4)[0]
        if code:
            self.refusals[ErrorCode(code).name] += 1


async def heartbeats(cluster: Cluster, groups: int, members: int, seconds: float) -> None:
    address = cluster.coordinator["kafka"]
    began = time.monotonic()
    everyone: list[Member] = []
    beaten = 0
    for number in range(groups):
        joining = [Member(await connect(address), f"g-{number}") for _ in range(members)]
        await asyncio.gather(*(member.join() for member in joining))
        # Whoever came after the group had formed made it form again.
        while not all(await asyncio.gather(*(_steady(member) for member in joining))):
            await asyncio.gather(*(member.rejoin_until_quiet() for member in joining))
        everyone += joining
        # All of them in turn, often enough: on a busy machine the last group forms after the first one's session.
        for _ in range(min(10 * members, len(everyone))):
            everyone[beaten % len(everyone)].send_heartbeat()
            beaten += 1
    formed = time.monotonic() - began
    pid = cluster.coordinator["pid"]
    sent, step = 0, HEARTBEAT_SECONDS / len(everyone)
    Member.refusals.clear()
    start, before = time.monotonic(), cpu_seconds(pid)
    while (passed := time.monotonic() - start) < seconds:
        while sent < passed / step:
            everyone[sent % len(everyone)].send_heartbeat()
            sent += 1
        await asyncio.sleep(0.005)
    used = cpu_seconds(pid) - before
    await asyncio.sleep(2)
    refused = dict(Member.refusals) or "none"
    print(f"groups {groups} x {members} members, formed in {formed:.1f} s ({groups / formed:.0f} groups/s)")
    share = 100 * used / passed
    print(f"heartbeats {sent / passed:,.0f}/s for {passed:.0f} s: {share:.0f}% of a core, refused: {refused}")
    if Member.refusals:
        print(cluster.warnings())
    for member in everyone:
        member.client.close()


async def _steady(member: Member) -> bool:
    answer = await member.client.send(ApiKey.HEARTBEAT, 4, [member.beat])
    return struct.unpack_from(">h", answer, 4)[0] == 0


class CommitLoad:
    """Commits over many connections, from frames made before, with one system call or two for each: this process has
    to be much cheaper than what it measures, which runs on the same cores."""

    def __init__(self, address: str, groups: int) -> None:
        host, _, port = address.rpartition(":")
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._sent: dict[int, deque[float]] = {}
        for _ in range(CONNECTIONS):
            sock = socket.create_connection((host, int(port)))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._poll.register(sock, select.EPOLLIN)
            self._sockets[sock.fileno()] = sock
            self._sent[sock.fileno()] = deque()
        self._frames = [self._frame(number, groups) for number in range(10 * groups)]
        self._free = deque(list(self._sockets) * (WAITING // CONNECTIONS))
        self._rest: dict[int, bytes] = {}
        self.latencies: list[float] = []
        self.errors: Counter[str] = Counter()
        self.sent = 0

    @staticmethod
    def _frame(number: int, groups: int) -> bytes:
        partition = {
            "partition_index": number % PARTITIONS,
            "committed_offset": number,
            "committed_leader_epoch": 0,
            "committed_metadata": "",
        }
        request = {
            "group_id": f"c-{number % groups}",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": TOPIC, "partitions": [partition]}],
        }
        body = messages.encode(ApiKey.OFFSET_COMMIT, 8, request, "request")
        header = request_header(ApiKey.OFFSET_COMMIT, 8, number, "bench")
        return struct.pack(">i", len(header) + len(body)) + header + body

    def run(self, rate: int, seconds: float) -> float:
        """Commits at `rate` a second (0: as many as may wait); returns how long it took."""
        start = time.monotonic()
        while (passed := time.monotonic() - start) < seconds:
            due = int(passed * rate) if rate else self.sent + WAITING
            while self.sent < due and self._free:
                self._send(self._free.popleft())
            self._receive(0.002 if rate else 1.0)
        passed = time.monotonic() - start
        self.sent_in_time, self.done_in_time = self.sent, len(self.latencies)
        while len(self.latencies) < self.sent:
            self._receive(1.0)
        return passed

    def _send(self, descriptor: int) -> None:
        frame = self._frames[self.sent % len(self._frames)]
        if self._sockets[descriptor].send(frame) != len(frame):
            raise SystemExit("a socket did not take a whole commit")
        self._sent[descriptor].append(time.monotonic())
        self.sent += 1

    def _receive(self, timeout: float) -> None:
        ready = self._poll.poll(timeout)
        now = time.monotonic()
        for descriptor, _ in ready:
            data = self._rest.pop(descriptor, b"") + self._sockets[descriptor].recv(65536)
            if not data:
                raise SystemExit("the coordinator closed a connection")
            at, sent = 0, self._sent[descriptor]
            while len(data) - at >= 4 and len(data) - at >= (size := 4 + int.from_bytes(data[at : at + 4])):
                at += size
                self.latencies.append(now - sent.popleft())
                self._free.append(descriptor)
                # An answer's last bytes are the error code and three empty tag sections.
                if code := int.from_bytes(data[at - 5 : at - 3]):
                    self.errors[ErrorCode(code).name] += 1
            if at < len(data):
                self._rest[descriptor] = data[at:]

    def close(self) -> None:
        self._poll.close()
        for sock in self._sockets.values():
            sock.close()


def commits(cluster: Cluster, rate: int, groups: int, seconds: float) -> None:
    """Commits at a given rate (0: as many as there may be waiting)."""
    load = CommitLoad(cluster.coordinator["kafka"], groups)
    pids = {name: each["pid"] for name, each in cluster.processes.items() if name in _WATCHED}
    pids["this load"] = os.getpid()
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    passed = load.run(rate, seconds)
    used = {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}
    load.close()
    shares = ", ".join(
        f"{name} {100 * seconds / passed:.0f}% ({1e6 * seconds / load.sent:.0f} us each)"
        for name, seconds in used.items()
    )
    latencies = sorted(load.latencies)
    middle, high = latencies[len(latencies) // 2], latencies[int(len(latencies) * 0.99)]
    asked = f"{rate:,}/s asked" if rate else "as many as possible"
    print(
        f"commits ({asked}) {load.done_in_time / passed:,.0f}/s for {passed:.0f} s, refused: {dict(load.errors) or 0},"
        f" {1000 * middle:.1f} ms median, {1000 * high:.1f} ms p99; CPU {shares}"
    )


_WATCHED = ("coordinator-0", "broker-0", "broker-1")


async def run(options: argparse.Namespace, cluster: Cluster) -> None:
    await create_topic(cluster.bootstrap)
    await owns_everything(cluster.bootstrap)
    if options.rate:
        commits(cluster, options.rate, 500, options.seconds)
        commits(cluster, 0, 500, options.seconds)
    await heartbeats(cluster, options.groups, options.members, options.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--rate", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--port", type=int, default=23000)
    options = parser.parse_args()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        cluster = Cluster(Path(folder), options.port)
        try:
            asyncio.run(run(options, cluster))
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
