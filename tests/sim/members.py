"""Members of a group of the new protocol (KIP-848): heartbeats instead of joins, one epoch for each member.

The native client speaks the classic protocol, so the heartbeats are made here; reading, committing and finding the
committed offsets are the client's.
"""

from __future__ import annotations

import asyncio
import uuid
from random import Random
from typing import Any

from tests.sim.groups import HANDLING_SECONDS, GroupHistory, Listening, Member

from headrace.client import Consumer, KafkaError, TopicPartition
from headrace.client.group import ImageCoordinator
from headrace.errors import ErrorCode
from headrace.v1 import common_pb2 as pb
from headrace.v1 import coordinator_pb2 as cpb

SESSION_SECONDS = 6.0
"""As the coordinators are configured (`world.SETTINGS`)."""
HEARTBEAT_SECONDS = 2.0
REBALANCE_MS = 8000
_FENCED = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)


class Holdings:
    """Who holds which partition: from the answer that gives it until the heartbeat that gives it up.

    A member that is silent for as long as its session lasts, or did not confirm within its rebalance timeout that it
    gave something up, holds nothing any more, whatever it believes.
    """

    def __init__(self, history: GroupHistory) -> None:
        self._history = history
        self._world = history.world
        self._holders: dict[tuple[str, int], str] = {}
        self._until: dict[str, float] = {}
        """How long each member holds what it has, unless another heartbeat is answered before."""

    def heard(self, member: str, sent: float, owned: set[TopicPartition]) -> None:
        self._until[member] = sent + SESSION_SECONDS
        self.released(member, owned)

    def revoked(self, member: str, since: float) -> None:
        """It is told to give something up, which the coordinator may have decided as early as `since`."""
        self._until[member] = min(self._until[member], since + REBALANCE_MS / 1000)

    def released(self, member: str, owned: set[TopicPartition]) -> None:
        """It holds `owned` and nothing else, and says so now."""
        for place, holder in list(self._holders.items()):
            if holder == member and place not in owned:
                del self._holders[place]

    def given(self, member: str, share: set[TopicPartition]) -> None:
        if not self._is_in_time(member):
            return  # it learns too late what it was given
        for place in sorted(share):
            self._history.checker.checked += 1
            holder = self.holder(place)
            if holder not in (None, member) and not self._history.excused():
                self._world.violated(
                    f"one owner at a time: {place.topic}-{place.partition} is given to {member} while {holder} has it"
                )
            self._holders[place] = member

    def holder(self, place: tuple[str, int]) -> str | None:
        holder = self._holders.get(place)
        return holder if holder is not None and self._is_in_time(holder) else None

    def _is_in_time(self, member: str) -> bool:
        return self._world.now < self._until[member]


class ConsumerMember(Member):
    """One process of a group; see the module's docstring."""

    holdings: Holdings
    _unanswered: float | None = None
    """When the first heartbeat since the last answer was sent."""

    async def _consume(self, consumer: Consumer, chance: Random) -> None:
        membership = consumer._membership
        assert membership is not None
        coordinator = ImageCoordinator(consumer._cluster, self.group)
        membership._coordinator = _Held(coordinator, self.group, self.history, self.holdings)
        name = membership.member_id = str(uuid.UUID(int=chance.getrandbits(128), version=4))
        membership.generation = 0
        self._unanswered = None
        try:
            while self.working:
                began = self.world.now
                await self._beat(consumer, coordinator, name)
                while self.working and self.world.now < began + HEARTBEAT_SECONDS:
                    await self._handle(consumer)
        finally:
            membership.member_id, membership.generation = "", -1  # or else it would take leave by the classic protocol

    async def _beat(self, consumer: Consumer, coordinator: ImageCoordinator, name: str) -> None:
        membership = consumer._membership
        assert membership is not None
        owned, epoch, sent = consumer.assignment(), membership.generation, self.world.now
        request = cpb.ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=name, member_epoch=epoch, rebalance_timeout_ms=-1
        )
        # After an answer that was lost everything is said, and so everything is answered, anew.
        if epoch == 0 or self._unanswered is not None:
            request.rebalance_timeout_ms = REBALANCE_MS
            request.subscribed_topic_names.names.append(self.topic)
        topics = consumer._cluster.image.topics
        request.topic_partitions.SetInParent()
        for topic, index in sorted(owned):
            request.topic_partitions.partitions.add(topic_id=topics[topic].id.bytes, partition=index)
        self.holdings.released(name, owned)
        since = self._unanswered = sent if self._unanswered is None else self._unanswered
        try:
            answer = await coordinator.call("ConsumerGroupHeartbeat", request, 3.0)
        except KafkaError:
            return
        code = ErrorCode(answer.error.code)
        if code is ErrorCode.GROUP_ID_NOT_FOUND:
            # The coordinators lost the group. Kafka's client gives up, too, and whoever runs it starts another one.
            raise KafkaError(code, answer.error.message)
        if code in _FENCED:
            self.world.note(f"{self.name} is fenced: {code.name}")
            membership.generation = 0
            await consumer.assign([])
        if code is not ErrorCode.NONE:
            return
        self._unanswered = None
        self.holdings.heard(name, sent, owned)
        membership.generation = answer.member_epoch
        if answer.HasField("assignment"):
            names = {topic.id.bytes: topic.name for topic in topics.values()}
            listed = answer.assignment.partitions
            share = {TopicPartition(names.get(p.topic_id, p.topic), p.partition) for p in listed}
            self.history.shared(self.group, answer.member_epoch, name, sorted(share))
            if owned - share:
                self.holdings.revoked(name, since)
            self.holdings.given(name, share)
            await consumer.assign(sorted(share))
            self.holdings.released(name, share)

    async def _handle(self, consumer: Consumer) -> None:
        for record in await consumer.poll(1.0, 20):
            self.took(consumer, record)
        await asyncio.sleep(HANDLING_SECONDS)
        if consumer.assignment():
            try:
                await consumer.commit()
            except KafkaError as error:
                self.world.trace("not committed", self.name, error.code.name)


class _Held(Listening):
    """Member epochs of one group differ, so a commit is stale when the partition had gone to somebody else."""

    def __init__(self, coordinator: Any, group: str, history: GroupHistory, holdings: Holdings) -> None:
        super().__init__(coordinator, group, history)
        self._holdings = holdings

    def stale(self, member: cpb.Member, partition: pb.TopicPartition) -> str | None:
        holder = self._holdings.holder((partition.topic, partition.partition))
        return f"{holder} had it" if holder not in (None, member.member_id) else None
