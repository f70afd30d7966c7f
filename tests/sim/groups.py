"""Consumer groups: members that are the native client, and what must hold of shares and committed offsets.

Members are listened to where they talk to their coordinator, so that the history holds what was asked and answered and
not what the client made of it. A committed offset is a register: a read may return the value of a commit that was under
way, or of the last one before it, but none that another commit had replaced before the read began.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.sim.checker import Checker
from tests.sim.loop import Process
from tests.sim.world import SimClock, World

from headrace.client import Consumer, ConsumerRecord, KafkaError, TopicPartition
from headrace.client.cluster import ClusterUnreachable, Outside
from headrace.client.consumer_protocol import decode_assignment
from headrace.v1 import common_pb2 as pb
from headrace.v1 import coordinator_pb2 as cpb

NEVER = float("inf")
NOTHING = -1
HANDLING_SECONDS = 0.5
"""How long a member takes over what one poll gave it."""

Place = tuple[str, str, int]
"""A group, a topic's name and a partition's index."""


@dataclass(slots=True)
class Commit:
    """One attempt to commit: `end` is when it was confirmed."""

    offset: int
    begin: float
    end: float = NEVER


class GroupHistory:
    """What groups were told, and what is wrong with it."""

    def __init__(self, world: World, checker: Checker) -> None:
        self.world = world
        self.checker = checker
        self.handled: dict[Place, set[int]] = {}
        self.latest: dict[Place, int] = {}
        """What the last read or confirmed commit said."""
        self._owners: dict[tuple[str, int, str, int], str] = {}
        self._generations: dict[str, int] = {}
        self._commits: dict[Place, list[Commit]] = {}

    def shared(self, group: str, generation: int, member: str, share: list[TopicPartition]) -> None:
        """A member learned its share of a generation."""
        self._generations[group] = max(generation, self._generations.get(group, 0))
        for topic, index in share:
            self.checker.checked += 1
            owner = self._owners.setdefault((group, generation, topic, index), member)
            if owner != member and not self.excused():
                self.world.violated(
                    f"one owner per generation: {topic}-{index} belongs to {owner} and {member} in generation"
                    f" {generation} of {group}"
                )

    def generation(self, group: str) -> int:
        """The newest one that a member was told its share of."""
        return self._generations.get(group, 0)

    def committing(self, place: Place, offset: int) -> Commit:
        commit = Commit(offset, self.world.now)
        self._commits.setdefault(place, []).append(commit)
        return commit

    def committed(self, place: Place, commit: Commit, stale: str | None) -> None:
        """Confirmed; `stale` says why it must not have been, as things stood when it was asked for."""
        self.checker.checked += 1
        commit.end = self.world.now
        self.latest[place] = commit.offset
        if stale is not None and not self.excused():
            self.world.violated(
                f"a commit of an older generation was taken: {place[1]}-{place[2]} in {place[0]}, {stale}"
            )

    def read(self, place: Place, begin: float, offset: int) -> None:
        """A read that began at `begin` returned `offset` just now."""
        self.checker.checked += 1
        self.latest[place] = offset
        commits = self._commits.get(place, [])
        finished = [commit for commit in commits if commit.end < begin]
        newest = max((commit.begin for commit in finished), default=-1.0)
        allowed = {commit.offset for commit in commits if commit.end >= newest}
        if not finished:
            allowed.add(NOTHING)
        if offset not in allowed and not self.excused():
            self.world.violated(
                f"committed offsets never regress: {place[1]}-{place[2]} of {place[0]} reads {offset}, possible are"
                f" {sorted(allowed)}"
            )

    def excused(self) -> bool:
        """Whether what the coordinators had stored may be lost."""
        found = self.checker.topics().get("__consumer_offsets")
        return found is not None and any(
            self.checker.of((found[0], index)).excused is not None for index in range(found[1])
        )

    def missing(self, group: str, topic: str, ends: dict[int, int]) -> str | None:
        """None when the group has handled and committed everything up to `ends`; else what is missing."""
        for index, end in ends.items():
            handled = self.handled.get((group, topic, index), set())
            left = [offset for offset in range(end) if offset not in handled]
            if left:
                return f"{group} has not handled {topic}-{index} offset {left[0]} of {end}"
            if end and self.latest.get((group, topic, index)) != end:
                return f"{group} committed {self.latest.get((group, topic, index))} of {end} in {topic}-{index}"
        return None


class Listening:
    """Stands between a member and its coordinator, and writes down what they say."""

    def __init__(self, coordinator: Any, group: str, history: GroupHistory) -> None:
        self._coordinator = coordinator
        self._group = group
        self._history = history

    async def call(self, method: str, request: Any, timeout: float | None = None) -> Any:
        begin = self._history.world.now
        if method == "OffsetCommit":
            return await self._commit(request, timeout)
        answer = await self._coordinator.call(method, request, timeout)
        if method == "SyncGroup" and not answer.error.code:
            share = decode_assignment(answer.assignment)
            member = request.member
            self._history.shared(self._group, member.generation_id, member.member_id, share)
        elif method == "OffsetFetch":
            for group in answer.groups:
                for at in group.offsets:
                    if not group.error.code and not at.error.code:
                        place = (self._group, at.partition.topic, at.partition.partition)
                        self._history.read(place, begin, at.offset)
        return answer

    async def _commit(self, request: Any, timeout: float | None) -> Any:
        history = self._history
        attempts = []
        for at in request.offsets:
            place = (self._group, at.partition.topic, at.partition.partition)
            attempts.append((place, history.committing(place, at.offset), self.stale(request.member, at.partition)))
        answer = await self._coordinator.call("OffsetCommit", request, timeout)
        for (place, commit, stale), result in zip(attempts, answer.partitions, strict=True):
            if not result.error.code:
                history.committed(place, commit, stale)
        return answer

    def stale(self, member: cpb.Member, partition: pb.TopicPartition) -> str | None:
        """Why a commit that is sent now must be refused."""
        known = self._history.generation(self._group)
        return f"generation {member.generation_id} when {known} had begun" if member.generation_id < known else None


class Member:
    """A process with one consumer of a group, which commits what it has handled; it can be killed and started again."""

    def __init__(self, world: World, history: GroupHistory, name: str, group: str, topic: str) -> None:
        self.world = world
        self.history = history
        self.name = name
        self.group = group
        self.topic = topic
        self.working = True
        self.process: Process | None = None
        self._lives = itertools.count()

    def start(self) -> None:
        if self.process is None:
            self.process = Process(self.world.loop, self.name, self.name)
            self.process.spawn(self._main(), name=self.name)

    def kill(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            self.world.network.process_died(process, silent=False)

    async def _main(self) -> None:
        chance = self.world.chance(f"{self.name}/{next(self._lives)}")
        while self.working:
            consumer = Consumer(
                outside=Outside(SimClock(self.world.loop), self.world.rpc.channels(), chance),
                bootstrap_servers=self.world.metadata_servers,
                client_id=self.name,
                group_id=self.group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                session_timeout_ms=6000,
                heartbeat_interval_ms=2000,
                max_poll_interval_ms=10000,
                request_timeout_ms=4000,
                retry_backoff_ms=300,
                fetch_max_wait_ms=3000,
                default_api_timeout_ms=8000,
                partition_assignment_strategy="cooperative-sticky" if self.world.seed % 2 else "range",
            )
            try:
                await consumer.start()
                await self._consume(consumer, chance)
            except ClusterUnreachable:
                await asyncio.sleep(1.0)
            except KafkaError as error:
                self.world.note(f"{self.name}: {error}")
                await asyncio.sleep(0.5)
            except Exception as error:
                self.world.violated(f"{self.name} failed: {error!r}")
                raise
            finally:
                await consumer.close()

    async def _consume(self, consumer: Consumer, chance: Random) -> None:
        membership = consumer._membership
        assert membership is not None
        membership._coordinator = Listening(membership._coordinator, self.group, self.history)
        await consumer.subscribe([self.topic])
        while self.working:
            records = await consumer.poll(2.0, 20)
            for record in records:
                self.took(consumer, record)
            await asyncio.sleep(HANDLING_SECONDS)
            try:
                await consumer.commit()  # also what could not be committed before
            except KafkaError as error:
                self.world.trace("not committed", self.name, error.code.name)

    def took(self, consumer: Consumer, record: ConsumerRecord) -> None:
        self.history.handled.setdefault((self.group, record.topic, record.partition), set()).add(record.offset)
        topic = consumer._cluster.image.topics.get(record.topic)
        if topic is not None:
            self.history.checker.read((topic.id, record.partition), record.offset, record.value or b"")
