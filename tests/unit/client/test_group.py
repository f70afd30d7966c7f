"""Membership against a coordinator behind the port: shares, hand-over, fencing, commits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from tests.unit.client.fake_coordinator import FakeCoordinator

from headrace.client.config import consumer_config
from headrace.client.group import Membership
from headrace.client.types import OffsetAndMetadata, TopicPartition
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import SystemClock

TOPIC = {"t": 4}


class Member:
    """A membership, and what its consumer would hold."""

    def __init__(self, coordinator: FakeCoordinator, **config: Any) -> None:
        self.share: set[TopicPartition] = set()
        self.told: list[tuple[str, list[int]]] = []
        self.committed_before_revoke = 0
        settings = consumer_config(
            {"group_id": "g", "heartbeat_interval_ms": 20, "session_timeout_ms": 6000, "retry_backoff_ms": 5, **config}
        )
        self.membership = Membership(
            settings,
            coordinator,
            SystemClock(),
            assignors=settings["partition.assignment.strategy"],
            counts=lambda topics: {t: TOPIC[t] for t in topics if t in TOPIC},
            owned=lambda: set(self.share),
            assign=self._assign,
            before_revoke=self._before_revoke,
        )
        self.membership.listener = self
        self.membership.topics_changed(["t"])

    def _assign(self, partitions: set[TopicPartition]) -> None:
        self.share = set(partitions)

    async def _before_revoke(self) -> None:
        self.committed_before_revoke += 1

    async def on_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        self.told.append(("+", sorted(p.partition for p in partitions)))

    def on_revoked(self, partitions: Iterable[TopicPartition]) -> None:
        self.told.append(("-", sorted(p.partition for p in partitions)))

    @property
    def indexes(self) -> list[int]:
        return sorted(p.partition for p in self.share)


async def until(members: list[Member], goal: Any, timeout: float = 10.0) -> None:
    """Polls all members until `goal()` holds."""
    async with asyncio.timeout(timeout):
        while True:
            await asyncio.gather(*(member.membership.ensure_active(0.01) for member in members))
            if goal():
                return
            await asyncio.sleep(0.005)


async def test_one_member_gets_everything() -> None:
    member = Member(FakeCoordinator())
    await until([member], lambda: member.indexes == [0, 1, 2, 3])
    assert member.told == [("+", [0, 1, 2, 3])]
    await member.membership.close()
    assert member.told[-1] == ("-", [0, 1, 2, 3])


@pytest.mark.parametrize("strategy", ["range", "sticky", "cooperative-sticky", "roundrobin"])
async def test_two_members_share_and_a_leaver_gives_back(strategy: str) -> None:
    coordinator = FakeCoordinator()
    one = Member(coordinator, partition_assignment_strategy=strategy)
    await until([one], lambda: len(one.share) == 4)
    two = Member(coordinator, partition_assignment_strategy=strategy)
    await until([one, two], lambda: len(one.share) == 2 and len(two.share) == 2)
    assert not one.share & two.share
    revoked = next(told for told in one.told if told[0] == "-")
    # An eager member gives back everything, a cooperative one only what moves.
    assert len(revoked[1]) == (2 if strategy == "cooperative-sticky" else 4)
    assert one.committed_before_revoke
    await two.membership.close()
    await until([one], lambda: len(one.share) == 4)
    await one.membership.close()


async def test_a_member_that_was_expelled_comes_back_as_a_new_one() -> None:
    coordinator = FakeCoordinator()
    member = Member(coordinator)
    await until([member], lambda: len(member.share) == 4)
    old = member.membership.member_id
    coordinator.expel(old)
    with pytest.raises(KafkaError, match="UNKNOWN_MEMBER_ID"):
        await member.membership.commit({TopicPartition("t", 0): OffsetAndMetadata(1)})
    await until([member], lambda: len(member.share) == 4 and member.membership.member_id not in ("", old))
    await member.membership.close()


async def test_offsets_are_committed_and_read_back() -> None:
    member = Member(FakeCoordinator())
    await until([member], lambda: len(member.share) == 4)
    await member.membership.commit({TopicPartition("t", 1): OffsetAndMetadata(42)})
    wanted = [TopicPartition("t", 1), TopicPartition("t", 2)]
    assert await member.membership.committed(wanted) == {TopicPartition("t", 1): OffsetAndMetadata(42, "", 0)}
    assert await member.membership.committed([]) == {}
    await member.membership.close()


async def test_the_leader_shares_out_again_when_a_topic_grows() -> None:
    member = Member(FakeCoordinator())
    await until([member], lambda: len(member.share) == 4)
    TOPIC["t"] = 6
    try:
        member.membership.counts_changed()
        await until([member], lambda: len(member.share) == 6)
    finally:
        TOPIC["t"] = 4
    await member.membership.close()


async def test_what_passes_is_tried_again_and_what_does_not_is_raised() -> None:
    coordinator = FakeCoordinator()
    coordinator.failures = [KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE), KafkaError(ErrorCode.NOT_COORDINATOR)]
    member = Member(coordinator)
    await until([member], lambda: len(member.share) == 4)
    await member.membership.close()
    coordinator.failures = [KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "not allowed")]
    other = Member(coordinator)
    with pytest.raises(KafkaError, match="not allowed"):
        await until([other], lambda: False)


async def test_a_member_that_does_not_poll_leaves() -> None:
    coordinator = FakeCoordinator()
    member = Member(coordinator, max_poll_interval_ms=50)
    await until([member], lambda: len(member.share) == 4)
    async with asyncio.timeout(10):
        while "LeaveGroup" not in coordinator.calls:
            await asyncio.sleep(0.01)
    assert coordinator.members == {}
    assert member.membership.rejoin
    await member.membership.close()
