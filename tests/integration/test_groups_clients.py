"""More of groups with real clients: every assignor of kafka-python and aiokafka, patterns, mixed protocols, a crash."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import Callable
from typing import Any

import aiokafka
import kafka
import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from tests.integration.cluster import wait_until
from tests.integration.group_members import Member, committed, members, polling, produce_values, wait_for_shares

TopicFactory = Callable[..., str]


def group_id() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


def all_of(topic: str, partitions: int) -> set[tuple[str, int]]:
    return {(topic, index) for index in range(partitions)}


@pytest.mark.parametrize(
    "assignor", [RangePartitionAssignor, RoundRobinPartitionAssignor, CooperativeStickyAssignor], ids=lambda a: a.name
)
def test_kafka_python_shares_with_its_other_assignors(
    assignor: type[Any], bootstrap: str, new_topic: TopicFactory
) -> None:
    topic, group = new_topic("kp", 4), group_id()
    produce_values(bootstrap, topic, 4, [b"%d" % number for number in range(20)])
    everyone = [
        kafka.KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[assignor],
        )
        for _ in range(2)
    ]
    with polling(everyone) as found:
        wait_until(
            lambda: len(found) == 20 and all(len(consumer.assignment()) == 2 for consumer in everyone),
            "all records, two partitions each",
        )
    for consumer in everyone:
        consumer.close()
    assert committed(bootstrap, group, topic, 4) == [5, 5, 5, 5], "closing commits"


@pytest.mark.parametrize("assignor", [AioRange, AioRoundRobin], ids=lambda a: a.name)
async def test_aiokafka_shares_with_its_other_assignors(
    assignor: type[Any], bootstrap: str, new_topic: TopicFactory
) -> None:
    topic, group = new_topic("aio", 4), group_id()
    everyone = [
        aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=group, partition_assignment_strategy=[assignor]
        )
        for _ in range(2)
    ]
    try:
        for consumer in everyone:
            await consumer.start()
        async with asyncio.timeout(30):
            while any(len(consumer.assignment()) != 2 for consumer in everyone):
                for consumer in everyone:
                    await consumer.getmany(timeout_ms=50)
    finally:
        for consumer in everyone:
            await consumer.stop()


def test_a_pattern_is_matched_by_the_server_and_grows_with_the_topics(bootstrap: str, new_topic: TopicFactory) -> None:
    run = uuid.uuid4().hex[:6]
    first, other = new_topic(f"pattern-{run}", 2), new_topic(f"other-{run}", 1)
    settings = {"group.protocol": "consumer", "topic.metadata.refresh.interval.ms": 1000}
    with members(Member(bootstrap, group_id(), [f"^pattern-{run}.*"], **settings)) as (member,):
        wait_until(lambda: member.assigned == all_of(first, 2), "the partitions of the topic that matches")
        second = new_topic(f"pattern-{run}-more", 1)
        wait_until(lambda: member.assigned == all_of(first, 2) | {(second, 0)}, "the topic that came later")
        assert (other, 0) not in member.assigned


def test_members_of_both_protocols_share_a_group(bootstrap: str, new_topic: TopicFactory) -> None:
    """A classic group becomes a consumer group when the first such member joins, and classic again with its last."""
    topic, group = new_topic("mixed", 4), group_id()
    classic = {"partition.assignment.strategy": "cooperative-sticky"}
    with members(Member(bootstrap, group, [topic], **classic)) as (old,):
        wait_for_shares([old], all_of(topic, 4))
        with members(Member(bootstrap, group, [topic], **{"group.protocol": "consumer"})) as (new,):
            wait_for_shares([old, new], all_of(topic, 4))
            produce_values(bootstrap, topic, 4, [b"%d" % number for number in range(40)])
            wait_until(lambda: len(old.records) + len(new.records) == 40, "the records, by both")
        wait_for_shares([old], all_of(topic, 4))
        assert not old.errors


CRASHES = """
import sys
from confluent_kafka import Consumer
bootstrap, group, topic = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
                     "enable.auto.commit": False, "session.timeout.ms": 6000})
consumer.subscribe([topic])
handled = 0
while True:
    message = consumer.poll(0.1)
    if message is None or message.error():
        continue
    print(message.value().decode(), flush=True)
    handled += 1
    if handled == 30:
        consumer.commit(asynchronous=False)
"""


def test_at_least_once_across_a_crash(bootstrap: str, new_topic: TopicFactory) -> None:
    topic, group = new_topic("crash", 1), group_id()
    values = [b"%d" % number for number in range(100)]
    produce_values(bootstrap, topic, 1, values[:50])
    with subprocess.Popen(
        [sys.executable, "-c", CRASHES, bootstrap, group, topic], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        handled = [process.stdout.readline().strip().encode() for _ in range(50)]
        wait_until(lambda: committed(bootstrap, group, topic, 1) == [30], "the commit before the crash")
        process.kill()
    produce_values(bootstrap, topic, 1, values[50:])
    with members(Member(bootstrap, group, [topic])) as (heir,):
        wait_until(lambda: len(heir.records) >= 70, "everything after the commit", 30)
        assert heir.values == values[30:], "what was handled and not committed comes again, in order, and nothing else"
    assert handled == values[:50]
