"""Consumer groups as clients use them: sharing, rebalancing, committing, with every assignor and both protocols."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable

import aiokafka
import kafka
import pytest
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as AioSticky
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from tests.integration.cluster import wait_until
from tests.integration.group_members import (
    Member,
    committed,
    members,
    polling,
    produce_values,
    shared_evenly,
    wait_for_shares,
)
from tests.integration.topics import create_topic

TopicFactory = Callable[..., str]
CLASSIC = ("range", "roundrobin", "cooperative-sticky")


def group_id() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


def all_of(topic: str, partitions: int) -> set[tuple[str, int]]:
    return {(topic, index) for index in range(partitions)}


@pytest.mark.parametrize("how", [*CLASSIC, "consumer"])
def test_a_group_grows_to_more_members_than_partitions_and_shrinks(
    how: str, bootstrap: str, new_topic: TopicFactory
) -> None:
    topic, group = new_topic("grow", 4), group_id()
    classic = {"partition.assignment.strategy": how, "session.timeout.ms": 45_000}
    settings = {"group.protocol": "consumer"} if how == "consumer" else classic

    def join() -> Member:
        return Member(bootstrap, group, [topic], **settings)

    everyone = [join()]
    try:
        wait_for_shares(everyone, all_of(topic, 4))
        everyone += [join() for _ in range(3)]
        wait_for_shares(everyone, all_of(topic, 4))
        assert [len(member.assigned) for member in everyone] == [1, 1, 1, 1]
        everyone += [join() for _ in range(4)]
        produce_values(bootstrap, topic, 4, [b"%d" % n for n in range(40)])
        wait_until(lambda: sum(len(m.records) for m in everyone) >= 40, "all records")
        wait_for_shares(everyone, all_of(topic, 4))
        assert sorted(len(member.assigned) for member in everyone) == [0, 0, 0, 0, 1, 1, 1, 1], "spare members idle"
        leaving = next(member for member in everyone if member.assigned)
        everyone.remove(leaving)
        leaving.stop()
        wait_for_shares(everyone, all_of(topic, 4), seconds=20)  # which is less than its session
    finally:
        for member in everyone:
            member.stop()


def test_one_group_is_a_queue_and_two_are_publish_subscribe(bootstrap: str, new_topic: TopicFactory) -> None:
    topic, queue, other = new_topic("queue", 4), group_id(), group_id()
    first, second = (Member(bootstrap, queue, [topic]) for _ in range(2))
    alone = Member(bootstrap, other, [topic])
    with members(first, second, alone):
        wait_for_shares([first, second], all_of(topic, 4))
        values = [b"%d" % number for number in range(200)]
        produce_values(bootstrap, topic, 4, values)
        wait_until(lambda: len(first.records) + len(second.records) >= 200, "all records in the queue's group")
        wait_until(lambda: len(alone.records) >= 200, "all records in the other group")
        assert sorted(first.values + second.values) == sorted(values)
        assert first.values
        assert second.values
        assert sorted(alone.values) == sorted(values)


def test_cooperative_members_keep_what_they_do_not_give_away(bootstrap: str, new_topic: TopicFactory) -> None:
    topic, group = new_topic("coop", 4), group_id()
    strategy = {"partition.assignment.strategy": "cooperative-sticky"}
    first = Member(bootstrap, group, [topic], **strategy)
    with members(first):
        wait_for_shares([first], all_of(topic, 4))
        second = Member(bootstrap, group, [topic], **strategy)
        with members(second):
            wait_for_shares([first, second], all_of(topic, 4))
            assert sum(len(gone) for gone in first.revocations) == 2, "only what the other one got was revoked"


def test_a_killed_member_is_replaced_after_its_session(bootstrap: str, new_topic: TopicFactory) -> None:
    topic, group = new_topic("killed", 2), group_id()
    loop = asyncio.new_event_loop()

    async def join() -> aiokafka.AIOKafkaConsumer:
        consumer = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=group, session_timeout_ms=6000
        )
        await consumer.start()
        return consumer

    dying = loop.run_until_complete(join())
    heir = Member(bootstrap, group, [topic])
    with members(heir):
        # Polls and heartbeats run in the loop alone: it is not run any more once the group has both.
        deadline = time.monotonic() + 20
        while not heir.assigned and time.monotonic() < deadline:
            loop.run_until_complete(asyncio.sleep(0.05))
        assert len(heir.assigned) == 1
        wait_until(lambda: len(heir.assigned) == 2, "the share of the member that fell silent", 20)
    loop.run_until_complete(dying.stop())
    loop.close()


def test_a_member_that_is_too_slow_loses_its_partitions_and_comes_back(bootstrap: str, new_topic: TopicFactory) -> None:
    topic, group = new_topic("slow", 2), group_id()
    slow = Member(bootstrap, group, [topic], **{"max.poll.interval.ms": 6000})
    with members(slow):
        wait_for_shares([slow], all_of(topic, 2))
        other = Member(bootstrap, group, [topic])
        with members(other):
            wait_for_shares([slow, other], all_of(topic, 2))
            slow.freeze()
            wait_until(lambda: len(other.assigned) == 2, "the partitions of the slow one", 20)
            slow.resume()
            wait_for_shares([slow, other], all_of(topic, 2))


def test_heartbeats_do_not_depend_on_poll(bootstrap: str, new_topic: TopicFactory) -> None:
    topic, group = new_topic("beats", 2), group_id()
    first, second = (Member(bootstrap, group, [topic], **{"heartbeat.interval.ms": 500}) for _ in range(2))
    with members(first, second):
        wait_for_shares([first, second], all_of(topic, 2))
        first.freeze()
        # Longer than the session, shorter than max.poll.interval.ms.
        time.sleep(7)
        assert shared_evenly([first, second], all_of(topic, 2))


def test_static_members_come_back_without_a_rebalance(bootstrap: str, new_topic: TopicFactory) -> None:
    topic, group = new_topic("static", 2), group_id()
    stays = Member(bootstrap, group, [topic], **{"group.instance.id": "one"})
    with members(stays):
        goes = Member(bootstrap, group, [topic], **{"group.instance.id": "two"})
        wait_for_shares([stays, goes], all_of(topic, 2))
        stays.revocations.clear()
        mine = set(goes.assigned)
        goes.stop()
        back = Member(bootstrap, group, [topic], **{"group.instance.id": "two"})
        with members(back):
            wait_until(lambda: back.assigned == mine, "the share it had before")
            assert not stays.revocations


def test_commits_of_every_kind_are_where_the_next_one_begins(bootstrap: str, new_topic: TopicFactory) -> None:
    topic, group = new_topic("commits", 1), group_id()
    produce_values(bootstrap, topic, 1, [b"%d" % number for number in range(10)])
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}

    def read(consumer: Consumer, count: int) -> list[bytes]:
        found: list[bytes] = []
        deadline = time.monotonic() + 30
        while len(found) < count:
            assert time.monotonic() < deadline, f"only {found}"
            message = consumer.poll(0.2)
            if message is not None:
                assert message.error() is None, message.error()
                found.append(message.value())
        return found

    by_hand = Consumer(settings | {"enable.auto.commit": False})
    by_hand.subscribe([topic])
    assert read(by_hand, 2) == [b"0", b"1"]
    by_hand.commit(asynchronous=False)
    assert [p.offset for p in by_hand.committed([TopicPartition(topic, 0)], 10)] == [2]
    assert read(by_hand, 1) == [b"2"]
    by_hand.commit(offsets=[TopicPartition(topic, 0, 3, "mine", 0)], asynchronous=True)
    wait_until(lambda: committed(bootstrap, group, topic, 1) == [3], "the asynchronous commit")
    # At least once: what was read and not committed is read again after a crash.
    assert read(by_hand, 2) == [b"3", b"4"]
    by_hand.close()
    again = Consumer(settings | {"enable.auto.commit": True, "auto.commit.interval.ms": 100})
    again.subscribe([topic])
    assert read(again, 3) == [b"3", b"4", b"5"]
    again.close()
    assert committed(bootstrap, group, topic, 1)[0] >= 6
    other = Consumer(settings | {"enable.auto.commit": False})
    other.subscribe([topic])
    read(other, 1)
    other.seek(TopicPartition(topic, 0, 1))
    assert read(other, 1) == [b"1"]
    other.pause([TopicPartition(topic, 0)])
    assert other.poll(1.0) is None
    other.resume([TopicPartition(topic, 0)])
    assert read(other, 1) == [b"2"]
    other.close()


def test_a_topic_made_again_has_no_old_offsets(bootstrap: str, new_topic: TopicFactory, admin: AdminClient) -> None:
    topic, group = new_topic("again", 1), group_id()
    produce_values(bootstrap, topic, 1, [b"1", b"2"])
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    assert committed(bootstrap, group, topic, 1) == [2]
    admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, "the topic to be gone")
    create_topic(admin, topic, 1)
    assert committed(bootstrap, group, topic, 1) == [-1001]
    consumer.close()


def test_kafka_python_shares_with_its_sticky_assignor(bootstrap: str, new_topic: TopicFactory) -> None:
    topic, group = new_topic("kp", 4), group_id()
    produce_values(bootstrap, topic, 4, [b"%d" % number for number in range(40)])

    def member() -> kafka.KafkaConsumer:
        return kafka.KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[StickyPartitionAssignor],
            session_timeout_ms=6000,
        )

    first, second = member(), member()
    with polling([first, second]) as found:
        wait_until(
            lambda: len(found) == 40 and len(first.assignment()) == 2 and len(second.assignment()) == 2,
            "all records, two partitions each",
        )
    first.commit()
    second.commit()
    assert committed(bootstrap, group, topic, 4) == [10, 10, 10, 10]
    first.close()
    with polling([second]):
        wait_until(lambda: len(second.assignment()) == 4, "the other's share")
    second.close()


async def test_aiokafka_shares_with_its_sticky_assignor(bootstrap: str, new_topic: TopicFactory) -> None:
    topic, group = new_topic("aio", 4), group_id()
    produce_values(bootstrap, topic, 4, [b"%d" % number for number in range(40)])
    everyone = [
        aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[AioSticky],
        )
        for _ in range(2)
    ]
    found: set[bytes] = set()
    try:
        for consumer in everyone:
            await consumer.start()
        deadline = time.monotonic() + 30
        while len(found) < 40 or any(len(consumer.assignment()) != 2 for consumer in everyone):
            assert time.monotonic() < deadline
            for consumer in everyone:
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    found.update(record.value for record in records)
        for consumer in everyone:
            await consumer.commit()
    finally:
        for consumer in everyone:
            await consumer.stop()
    assert await asyncio.to_thread(committed, bootstrap, group, topic, 4) == [10, 10, 10, 10]


def test_groups_are_listed_described_and_deleted(bootstrap: str, new_topic: TopicFactory, admin: AdminClient) -> None:
    topic, classic, modern = new_topic("admin", 2), group_id(), group_id()
    one = Member(bootstrap, classic, [topic])
    two = Member(bootstrap, modern, [topic], **{"group.protocol": "consumer"})
    with members(one, two):
        wait_for_shares([one], all_of(topic, 2))
        wait_for_shares([two], all_of(topic, 2))
        listed = {each.group_id: each for each in admin.list_consumer_groups().result(30).valid}
        assert (listed[classic].state.name, listed[classic].type.name) == ("STABLE", "CLASSIC")
        assert (listed[modern].state.name, listed[modern].type.name) == ("STABLE", "CONSUMER")
        for group in (classic, modern):
            described = admin.describe_consumer_groups([group])[group].result(30)
            assert [len(member.assignment.topic_partitions) for member in described.members] == [2]
            with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
                admin.delete_consumer_groups([group])[group].result(30)
    for group in (classic, modern):
        admin.delete_consumer_groups([group])[group].result(30)
    left = {each.group_id for each in admin.list_consumer_groups().result(30).valid}
    assert not left & {classic, modern}
