"""Groups through the native client and the command, on a real coordinator."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import uuid
from collections import Counter

import pytest
from tests.integration.cluster import Cluster, command

from headrace.client import Admin, Consumer, ErrorCode, KafkaError, OffsetAndMetadata, Producer, TopicPartition

FAST = {"heartbeat_interval_ms": 200, "session_timeout_ms": 6_000, "auto_offset_reset": "earliest"}


@pytest.fixture
def servers(own_cluster: Cluster) -> str:
    if not any(process["role"] == "coordinator" for process in own_cluster.processes):
        pytest.skip("this cluster runs no coordinator, so it has no groups")
    return str(own_cluster.process("metadata")["grpc"])


@pytest.fixture
async def topic(servers: str) -> str:
    """A topic of 4 partitions with 200 records."""
    name = f"grouped-{uuid.uuid4().hex[:8]}"
    async with Admin(bootstrap_servers=servers) as admin:
        await admin.create_topic(name, partitions=4)
    async with Producer(bootstrap_servers=servers) as producer:
        await asyncio.gather(*(producer.send(name, b"%d" % n, partition=n % 4) for n in range(200)))
    return name


async def drain(consumer: Consumer, count: int) -> list[int]:
    """Polls until `count` records came."""
    found: list[int] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found += [int(record.value) for record in await consumer.poll(0.2)]
    return found


async def test_a_group_goes_on_where_it_was(servers: str, topic: str) -> None:
    async with Consumer(bootstrap_servers=servers, group_id=topic, **FAST) as consumer:
        await consumer.subscribe([topic])
        first = await drain(consumer, 200)
        assert sorted(first) == list(range(200))
    async with Producer(bootstrap_servers=servers) as producer:
        await producer.send(topic, b"200")
    async with Consumer(bootstrap_servers=servers, group_id=topic, **FAST) as consumer:
        await consumer.subscribe([topic])
        assert await drain(consumer, 1) == [200], "closing committed everything that was handed out"
        assert sum(at.offset for at in (await consumer.committed(*consumer.assignment())).values()) == 200


async def test_records_that_were_not_asked_past_are_not_committed(servers: str, topic: str) -> None:
    async with Consumer(bootstrap_servers=servers, group_id=topic, **FAST) as consumer:
        await consumer.subscribe([topic])
        handled = 0
        async for _record in consumer:
            if handled == 20:
                break
            handled += 1
    async with Admin(bootstrap_servers=servers) as admin:
        assert sum(at.offset for at in (await admin.list_group_offsets(topic)).values()) == 20


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
async def test_members_share_and_take_over(servers: str, topic: str, strategy: str) -> None:
    group, settings = f"{topic}-{strategy}", {**FAST, "partition_assignment_strategy": strategy}
    seen: Counter[int] = Counter()

    async def poll(*members: Consumer) -> None:
        for records in await asyncio.gather(*(member.poll(0.2) for member in members)):
            seen.update(int(record.value) for record in records)

    async with asyncio.timeout(60), Consumer(bootstrap_servers=servers, group_id=group, **settings) as one:
        await one.subscribe([topic])
        async with Consumer(bootstrap_servers=servers, group_id=group, **settings) as two:
            await two.subscribe(re.compile(re.escape(topic)))
            while not len(one.assignment()) == len(two.assignment()) == 2:
                await poll(one, two)
            assert not one.assignment() & two.assignment()
            while len(seen) < 200:
                await poll(one, two)
        while len(one.assignment()) < 4:
            await poll(one)
        async with Producer(bootstrap_servers=servers) as producer:
            await asyncio.gather(*(producer.send(topic, b"%d" % n) for n in range(200, 240)))
        while len(seen) < 240:
            await poll(one)
    assert set(seen.values()) == {1}, "nothing came twice: every hand-over committed first"


async def test_a_member_beside_one_of_another_client(own_cluster: Cluster, servers: str, topic: str) -> None:
    from aiokafka import AIOKafkaConsumer

    theirs = AIOKafkaConsumer(
        topic, bootstrap_servers=own_cluster.bootstrap, group_id=topic, auto_offset_reset="earliest",
        heartbeat_interval_ms=200, session_timeout_ms=6_000,
    )  # fmt: skip
    # aiokafka's first assignor is "roundrobin".
    settings = {**FAST, "partition_assignment_strategy": "roundrobin"}
    async with asyncio.timeout(60), Consumer(bootstrap_servers=servers, group_id=topic, **settings) as ours:
        await ours.subscribe([topic])
        while len(ours.assignment()) < 4:
            await ours.poll(0.2)
        starting = asyncio.create_task(theirs.start())
        try:
            while not len(ours.assignment()) == len(theirs.assignment()) == 2:
                await ours.poll(0.2)
            mine = {tuple(partition) for partition in ours.assignment()}
            assert not mine & {tuple(partition) for partition in theirs.assignment()}
        finally:
            await starting
            await theirs.stop()


async def test_offsets_from_outside(servers: str, topic: str) -> None:
    where = TopicPartition(topic, 0)
    async with Admin(bootstrap_servers=servers) as admin:
        await admin.alter_group_offsets(topic, {where: OffsetAndMetadata(7, "by hand")})
        assert (await admin.list_group_offsets(topic))[where].offset == 7
        assert topic in await admin.list_groups()
        async with Consumer(bootstrap_servers=servers, group_id=topic, **FAST) as consumer:
            await consumer.subscribe([topic])
            async with asyncio.timeout(60):
                while len(consumer.assignment()) < 4:
                    await consumer.poll(0.2)
            described = await admin.describe_group(topic)
            assert described.state == "Stable"
            assert len(described.members[0].assignment) == 4
            with pytest.raises(KafkaError) as raised:
                await admin.alter_group_offsets(topic, {where: OffsetAndMetadata(0)})
            assert raised.value.code is ErrorCode.NON_EMPTY_GROUP
            assert topic in await admin.list_groups(["Stable"], ["classic"])
            assert topic not in await admin.list_groups(types=["consumer"])
            (member,) = described.members
            assert await admin.remove_group_members(topic) == {member.member_id: None}
            (gone,) = (await admin.remove_group_members(topic, ["nobody"])).values()
            assert gone is not None
            assert gone.code is ErrorCode.UNKNOWN_MEMBER_ID
        assert await admin.delete_groups([topic]) == {topic: None}
        with pytest.raises(KafkaError, match="GROUP_ID_NOT_FOUND"):
            await admin.describe_group(topic)


def test_the_command(servers: str, topic: str) -> None:
    env = {**os.environ, "HEADRACE_BOOTSTRAP": servers}

    def run(*args: str) -> str:
        done = subprocess.run([*command(), *args], env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    read = run("consume", topic, "--group", topic, "--from", "beginning", "--exit").split()
    assert sorted(map(int, read)) == list(range(200))
    described = json.loads(run("groups", "describe", topic, "-o", "json"))
    assert described["state"] == "Empty"
    assert [row["lag"] for row in described["partitions"]] == [0, 0, 0, 0]
    run("groups", "reset-offsets", topic, "--to", "-10", "--yes")
    assert len(run("consume", topic, "--group", topic, "--exit").split()) == 40
    rows = json.loads(run("groups", "reset-offsets", topic, "--shift", "-3", "-o", "json"))
    assert [(row["before"], row["after"]) for row in rows] == [(50, 47)] * 4
    assert topic in run("groups", "list", "--type", "classic")
    assert run("groups", "delete", topic, "--yes") == f"deleted {topic}\n"
