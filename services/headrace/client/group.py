"""Membership of a consumer group: joining, sharing out, heartbeats, commits.

A rebalance runs only while the application polls (`ensure_active`), so whatever was handed out before it is done with
when partitions are taken away. Heartbeats run apart from polling; when polls stop for `max.poll.interval.ms` the member
leaves by itself, so that others can go on.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

from headrace.client.assignors import ASSIGNORS, Subscription
from headrace.client.cluster import Backoff, Cluster, error_of, raise_for
from headrace.client.config import Config
from headrace.client.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from headrace.client.types import OffsetAndMetadata, TopicPartition
from headrace.cluster.coordination import coordinator_of
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Clock, Random
from headrace.v1 import common_pb2
from headrace.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

COOPERATIVE = "cooperative-sticky"
_NEW_MEMBER = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
_JOIN_SLACK = 5.0
"""Seconds a JoinGroup may take beyond the rebalance timeout, for the answer to arrive."""


class RebalanceListener(Protocol):
    """Hears what comes and goes. Methods may be plain or async; both run inside a poll.

    >>> class Flush:  # doctest: +SKIP
    ...     async def on_revoked(self, partitions): await store.flush()
    ...     def on_assigned(self, partitions): print("mine now:", partitions)
    """

    def on_assigned(self, partitions: set[TopicPartition]) -> Awaitable[None] | None:
        """These are new."""
        ...

    def on_revoked(self, partitions: set[TopicPartition]) -> Awaitable[None] | None:
        """These go: commit, flush, let go."""
        ...


class Coordinator(Protocol):
    """The door to a group's coordinator: one call by name; whatever goes wrong is a `KafkaError`."""

    async def call(self, method: str, request: Any, timeout: float | None = None) -> Any: ...


class ImageCoordinator:
    """The coordinator that the newest picture of the cluster names for a group."""

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        self._cluster = cluster
        self._group_id = group_id

    async def call(self, method: str, request: Any, timeout: float | None = None) -> Any:
        stub = self._cluster.coordinator(coordinator_of(self._cluster.image, self._group_id))
        return await self._cluster.call(getattr(stub, method), request, timeout)


Owner = Callable[[set[TopicPartition]], None]


class Membership:
    """One member of one group, from its first join until it leaves."""

    def __init__(
        self,
        config: Config,
        coordinator: Coordinator,
        clock: Clock,
        *,
        assignors: Iterable[str],
        counts: Callable[[Iterable[str]], Mapping[str, int]],
        owned: Callable[[], set[TopicPartition]],
        assign: Owner,
        before_revoke: Callable[[], Awaitable[None]],
        wake: Callable[[], None] = lambda: None,
        chance: Random | None = None,
    ) -> None:
        self._config = config
        self._coordinator = coordinator
        self._clock = clock
        self._backoff = Backoff.of(config, chance)
        self._assignors = list(assignors)
        self._counts = counts
        self._owned = owned
        self._assign = assign
        self._before_revoke = before_revoke
        self._wake = wake
        self.group_id: str = config["group.id"]
        self.member_id = ""
        self.generation = -1
        self.topics: tuple[str, ...] = ()
        self.listener: RebalanceListener | None = None
        self.rejoin = True
        self._led: Mapping[str, int] | None = None
        """Partition counts that this member, as leader, shared out last."""
        self._joining: asyncio.Task[None] | None = None
        self._heartbeats: asyncio.Task[None] | None = None
        self._polled = clock.monotonic()

    @property
    def cooperative(self) -> bool:
        return self._assignors == [COOPERATIVE]

    # --- polling

    async def ensure_active(self, timeout: float) -> bool:
        """Whether the member has its share; joins again first when it must, for at most `timeout` seconds."""
        self._polled = self._clock.monotonic()
        if not self.rejoin and self._joining is None:
            return True
        if self._joining is None:
            self._joining = asyncio.create_task(self._rebalance(), name=f"join group {self.group_id}")
        done, _ = await asyncio.wait({self._joining}, timeout=max(timeout, 0))
        if not done:
            return False
        joining, self._joining = self._joining, None
        self._polled = self._clock.monotonic()
        joining.result()
        return not self.rejoin

    def topics_changed(self, topics: Iterable[str]) -> None:
        """The subscription is this from now on."""
        wanted = tuple(sorted(topics))
        if wanted != self.topics:
            self.topics = wanted
            self._ask_to_rejoin()

    def counts_changed(self) -> None:
        """The cluster's topics may have changed: the leader shares out again when they did."""
        if self._led is not None and dict(self._counts(self._led)) != self._led:
            self._ask_to_rejoin()

    def _ask_to_rejoin(self) -> None:
        """A poll that waits for records is woken, to look at the group instead."""
        self.rejoin = True
        self._wake()

    # --- joining

    async def _rebalance(self) -> None:
        attempts = 0
        while self.rejoin:
            try:
                await self._revoke_before_join()
                self.rejoin = False
                await self._join_and_sync()
                attempts = 0
            except KafkaError as error:
                self.rejoin = True
                attempts += 1
                if error.code is ErrorCode.MEMBER_ID_REQUIRED:
                    continue
                if error.code in _NEW_MEMBER:
                    await self._lose_everything()
                elif error.code is not ErrorCode.REBALANCE_IN_PROGRESS and not error.code.retriable:
                    raise
                log.info("joining group %s again: %s", self.group_id, error)
                await self._clock.sleep(self._backoff.pause(attempts))

    async def _revoke_before_join(self) -> None:
        """Eager members give everything back before they join; cooperative ones keep reading."""
        owned = self._owned()
        if owned:
            await self._before_revoke()
            if not self.cooperative:
                await self._revoke(owned, set())

    async def _revoke(self, gone: set[TopicPartition], left: set[TopicPartition]) -> None:
        await self._tell("on_revoked", gone)
        self._assign(left)

    async def _lose_everything(self) -> None:
        """The group went on without this member: what it had may already be read by others."""
        self.member_id, self.generation = "", -1
        owned = self._owned()
        if owned:
            await self._revoke(owned, set())

    async def _tell(self, method: str, partitions: set[TopicPartition]) -> None:
        if self.listener is None or not partitions:
            return
        answer = getattr(self.listener, method)(set(partitions))
        if inspect.isawaitable(answer):
            await answer

    async def _join_and_sync(self) -> None:
        owned = self._owned()
        joined = await self._join(owned)
        assignments: dict[str, bytes] = {}
        self._led = None
        if joined.leader == joined.member_id and not joined.skip_assignment:
            assignments = self._share_out(joined)
        request = pb.SyncGroupRequest(
            member=self._member(), protocol_name=joined.protocol_name, assignments=assignments
        )
        synced = await self._call("SyncGroup", request, self._rebalance_timeout())
        raise_for(synced.error)
        await self._take(owned, set(decode_assignment(synced.assignment)))
        self._start_heartbeats()

    async def _join(self, owned: set[TopicPartition]) -> pb.JoinGroupResponse:
        wish = Subscription(self.topics, tuple(sorted(owned)), self.generation)
        request = pb.JoinGroupRequest(
            member=self._member(),
            session_timeout_ms=self._config["session.timeout.ms"],
            rebalance_timeout_ms=self._config["max.poll.interval.ms"],
            protocol_type="consumer",
            protocols=[pb.Protocol(name=name, metadata=encode_subscription(wish)) for name in self._assignors],
        )
        joined: pb.JoinGroupResponse = await self._call("JoinGroup", request, self._rebalance_timeout())
        if joined.error.code == common_pb2.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
        raise_for(joined.error)
        self.member_id, self.generation = joined.member_id, joined.generation_id
        return joined

    def _rebalance_timeout(self) -> float:
        return self._config.seconds("max.poll.interval.ms") + _JOIN_SLACK

    def _share_out(self, joined: pb.JoinGroupResponse) -> dict[str, bytes]:
        wishes = {m.member_id: decode_subscription(m.metadata, m.group_instance_id) for m in joined.members}
        topics = {topic for wish in wishes.values() for topic in wish.topics}
        self._led = dict(self._counts(topics))
        shares = ASSIGNORS[joined.protocol_name](self._led, wishes)
        return {member: encode_assignment(share) for member, share in shares.items()}

    async def _take(self, owned: set[TopicPartition], share: set[TopicPartition]) -> None:
        gone = owned - share
        if gone:
            # What was let go is somebody else's in the generation that this asks for.
            await self._revoke(gone, owned & share)
            self._ask_to_rejoin()
        self._assign(share)
        await self._tell("on_assigned", share - owned)

    # --- heartbeats

    def _start_heartbeats(self) -> None:
        if self._heartbeats is None or self._heartbeats.done():
            self._heartbeats = asyncio.create_task(self._beat(), name=f"heartbeat of {self.member_id}")

    async def _beat(self) -> None:
        interval = self._config.seconds("heartbeat.interval.ms")
        longest = self._config.seconds("max.poll.interval.ms")
        while True:
            await self._clock.sleep(interval)
            if self._joining is not None:
                continue
            if self._clock.monotonic() - self._polled > longest:
                log.warning(
                    "no poll for %g s (max_poll_interval_ms): leaving group %s so that others can go on. Poll more "
                    "often, or handle fewer records at a time (max_poll_records)", longest, self.group_id,
                )  # fmt: skip
                await self.leave("no poll within max.poll.interval.ms")
                self._ask_to_rejoin()
                return
            try:
                answer = await self._call("Heartbeat", pb.HeartbeatRequest(member=self._member()), interval * 3)
                raise_for(answer.error)
            except KafkaError as error:
                if error.code in _NEW_MEMBER or error.code is ErrorCode.FENCED_INSTANCE_ID:
                    self.member_id, self.generation = "", -1
                if not error.code.retriable:
                    log.info("heartbeat of group %s: %s", self.group_id, error)
                    self._ask_to_rejoin()

    async def leave(self, reason: str = "the consumer is closing") -> None:
        """Gives the share up at once, unless the member is a static one that may come back."""
        member_id, self.member_id, self.generation = self.member_id, "", -1
        if not member_id or self._config["group.instance.id"]:
            return
        request = pb.LeaveGroupRequest(group_id=self.group_id, reason=reason)
        request.members.add(group_id=self.group_id, member_id=member_id)
        try:
            await self._call("LeaveGroup", request, 5.0)
        except KafkaError as error:
            log.info("leaving group %s: %s", self.group_id, error)

    async def close(self) -> None:
        """Stops heartbeats and leaves."""
        for task in (self._joining, self._heartbeats):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._joining = self._heartbeats = None
        owned = self._owned()
        if owned:
            await self._revoke(owned, set())
        await self.leave()

    # --- offsets

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Stores offsets; REBALANCE_IN_PROGRESS and the like mean that the partitions may be another member's."""
        if self.topics and self.generation < 0:
            # As from outside the group it could be taken, should the group be empty, though others have gone on since.
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"not a member of {self.group_id} any more: poll to join again"
            )
        request = pb.OffsetCommitRequest(member=self._member())
        for partition, at in offsets.items():
            request.offsets.add(
                partition=_proto(partition), offset=at.offset, leader_epoch=at.leader_epoch, metadata=at.metadata
            )
        answer = await self._call("OffsetCommit", request)
        for result in answer.partitions:
            if result.error.code:
                error = error_of(result.error)
                if error.code in _NEW_MEMBER:
                    self._ask_to_rejoin()
                raise error

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed; partitions without are left out."""
        wanted = [_proto(partition) for partition in partitions]
        if not wanted:
            return {}
        request = pb.OffsetFetchRequest(require_stable=self._config["isolation.level"] == "read_committed")
        request.groups.add(group_id=self.group_id, partitions=wanted)
        (group,) = (await self._call("OffsetFetch", request)).groups
        raise_for(group.error)
        found = {}
        for at in group.offsets:
            raise_for(at.error)
            if at.offset >= 0:
                partition = TopicPartition(at.partition.topic, at.partition.partition)
                found[partition] = OffsetAndMetadata(at.offset, at.metadata, at.leader_epoch)
        return found

    # --- asking

    def _member(self) -> pb.Member:
        return pb.Member(
            group_id=self.group_id,
            member_id=self.member_id,
            group_instance_id=self._config["group.instance.id"],
            generation_id=self.generation,
        )

    async def _call(self, method: str, request: Any, timeout: float | None = None) -> Any:
        return await self._coordinator.call(method, request, timeout)


def _proto(partition: TopicPartition) -> common_pb2.TopicPartition:
    return common_pb2.TopicPartition(topic=partition.topic, partition=partition.partition)
