"""Random histories of groups: whatever clients, timers and failovers do, the rules of groups hold."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.unit.coordinator.group_world import World

from headrace.coordinator.calls import (
    ConsumerGroupHeartbeat,
    DeleteGroups,
    GroupToFetch,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    Partitions,
    PartitionToCommit,
    SyncGroup,
    TopicToCommit,
    TopicToFetch,
)
from headrace.coordinator.config import GroupConfig
from headrace.coordinator.subscription import Subscription, read_assignment, write_assignment, write_subscription
from headrace.errors import ErrorCode

_METADATA = write_subscription(Subscription(3, ("t",)))
_NONE = ErrorCode.NONE
_LONGEST_WAIT_MS = 300_000 + 60_000
_EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "30"))
_SETTINGS = settings(max_examples=_EXAMPLES, stateful_step_count=50, suppress_health_check=list(HealthCheck))


class ClassicClient:
    """A consumer as real ones behave: it keeps what its answers said."""

    def __init__(self, name: str, instance: str | None) -> None:
        self.name = name
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.seen = -1
        """The newest generation this coordinator told it of."""
        self.share: frozenset[tuple[str, int]] = frozenset()
        self.joined: Any = None
        self.busy: Any = None

    def forget(self) -> None:
        self.member_id = ""
        self.generation = -1
        self.share = frozenset()
        self.joined = None


class Histories(RuleBasedStateMachine):
    """What every history has: a world, tokens, commits and failovers."""

    config = GroupConfig(group_initial_rebalance_delay_ms=1000)

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.config, {"t": 4, "u": 2})
        self.world.on_reply = self.on_reply
        self.tokens = itertools.count()
        self.asked: dict[Any, tuple[Any, Any]] = {}
        self.sent: dict[Any, int] = {}
        self.committed: dict[int, int] = {}
        """What was acknowledged, by partition of t."""
        self.next_offset = itertools.count(1)

    def send(self, client: Any, call: Any) -> None:
        call.token = next(self.tokens)
        self.asked[call.token] = (client, call)
        self.sent[call.token] = self.world.now
        self.world.call(call)

    def on_reply(self, token: Any, response: Any) -> None:
        client, call = self.asked.pop(token)
        if isinstance(call, OffsetCommit):
            partition = call.topics[0].partitions[0]
            if response.topics[0].partitions[0][1] is _NONE:
                self.committed[partition.partition] = partition.offset
        elif client is not None:
            self.answered(client, call, response)

    def answered(self, client: Any, call: Any, response: Any) -> None:
        """A client has its answer."""

    def commit_call(self, partition: int, generation: int, member_id: str, instance: str | None = None) -> OffsetCommit:
        place = PartitionToCommit(partition, next(self.next_offset))
        return OffsetCommit("g", [TopicToCommit("t", [place])], generation, member_id, instance)

    @rule(ms=st.sampled_from([1, 500, 1000, 5000, 10_000, 30_000, 200_000]))
    def time_passes(self, ms: int) -> None:
        self.world.advance(ms)

    @rule()
    def appends_are_held(self) -> None:
        self.world.hold = True

    @rule()
    def appends_are_stored(self) -> None:
        self.world.hold = False
        self.world.store()

    @rule(error=st.sampled_from([ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.MESSAGE_TOO_LARGE]))
    def appends_fail(self, error: ErrorCode) -> None:
        self.world.fail(error)
        if self.world.resigned is not None:
            self.world.resigned = None
            self.coordinator_fails_over()

    @rule()
    def coordinator_fails_over(self) -> None:
        lost = [token for token in self.asked if token in self.world.waiting]
        for token in lost:
            client, call = self.asked.pop(token)
            if client is not None:
                self.lost(client, call)
        self.world.failover()

    def lost(self, client: Any, call: Any) -> None:
        """The connection broke before the answer came."""

    @rule()
    def offsets_of_an_unread_topic_are_deleted(self) -> None:
        self.send(None, OffsetDelete("g", [TopicToFetch("u", [0, 1])]))

    @invariant()
    def committed_offsets_do_not_go_back(self) -> None:
        if self.committed:
            fetch = OffsetFetch([GroupToFetch("g", [TopicToFetch("t", sorted(self.committed))])])
            fetch.token = next(self.tokens)
            self.asked[fetch.token] = (None, fetch)
            group = self.world.ask(fetch).groups[0]
            for found in group.topics[0].partitions:
                assert found.offset >= self.committed[found.partition]

    @invariant()
    def nobody_waits_forever(self) -> None:
        if not self.world.hold:
            for token, since in self.world.waiting.items():
                assert self.world.now - since <= _LONGEST_WAIT_MS, self.asked[token]

    @invariant()
    def replay_gives_the_same_state(self) -> None:
        if not self.world.held:
            self.world.check_replay()

    def teardown(self) -> None:
        self.world.hold = False
        self.world.store()
        self.world.check_replay()
        self.world.run(self.world.shard.unload(ErrorCode.NOT_COORDINATOR, self.world.now))
        assert not self.world.waiting


class ClassicHistories(Histories):
    """Consumers of the classic protocol, some of them static, some slow, some dead."""

    def __init__(self) -> None:
        super().__init__()
        self.clients = [ClassicClient("a", None), ClassicClient("b", None), ClassicClient("s", "one")]
        self.clients.append(ClassicClient("s2", "one"))
        self.generations: dict[int, dict[str, frozenset[tuple[str, int]]]] = {}

    def answered(self, client: ClassicClient, call: Any, response: Any) -> None:
        if isinstance(call, LeaveGroup):
            client.forget()
            return
        if isinstance(call, (JoinGroup, SyncGroup)):
            client.busy = None
        match response.error:
            case ErrorCode.NONE if isinstance(call, JoinGroup):
                self.grew(client.seen, response.generation_id)
                client.seen = response.generation_id
                client.member_id, client.generation = response.member_id, response.generation_id
                client.joined = response
            case ErrorCode.NONE if isinstance(call, SyncGroup):
                client.share = frozenset(read_assignment(response.assignment))
                self.shared(call, client.share)
            case ErrorCode.MEMBER_ID_REQUIRED:
                client.member_id = response.member_id
            case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.FENCED_INSTANCE_ID:
                client.forget()
            case _:
                client.joined = None

    def grew(self, before: int, after: int) -> None:
        assert before <= after, "generations only grow"

    def shared(self, call: SyncGroup, share: frozenset[tuple[str, int]]) -> None:
        """In one generation a partition belongs to at most one member (a static one may have changed its id)."""
        shares = self.generations.setdefault(call.generation_id, {})
        who = call.group_instance_id or call.member_id
        for other, taken in shares.items():
            assert other == who or not (taken & share), f"generation {call.generation_id}: {shares}, {who} {share}"
        shares[who] = share

    def lost(self, client: ClassicClient, call: Any) -> None:
        client.busy = None
        client.joined = None

    @rule()
    def coordinator_fails_over(self) -> None:
        """A generation that nobody synced in was never stored: the next coordinator may count it again."""
        super().coordinator_fails_over()
        for client in self.clients:
            client.seen = -1

    @rule(index=st.integers(0, 3), version=st.sampled_from([3, 5, 9]), protocols=st.sampled_from(["r", "rs", "sr"]))
    def join(self, index: int, version: int, protocols: str) -> None:
        client = self.clients[index]
        if client.busy is None:
            client.busy = "join"
            named = tuple((name, _METADATA) for name in protocols)
            call = JoinGroup("g", client.member_id, client.instance, 10_000, 30_000, "consumer", named, client.name)
            call.version = version
            self.send(client, call)

    @rule(index=st.integers(0, 3), spread=st.integers(0, 5))
    def sync(self, index: int, spread: int) -> None:
        client = self.clients[index]
        if client.busy is not None or client.joined is None:
            return
        joined, client.joined = client.joined, None
        client.busy = "sync"
        shares: dict[str, list[tuple[str, int]]] = {m.member_id: [] for m in joined.members}
        members = sorted(shares)
        for partition in range(4) if members and not joined.skip_assignment else ():
            shares[members[(partition * spread) % len(members)]].append(("t", partition))
        assignments = {m: write_assignment(0, share) for m, share in shares.items()}
        self.send(
            client, SyncGroup("g", joined.generation_id, client.member_id, client.instance, None, None, assignments)
        )

    @rule(spread=st.integers(0, 5))
    def everyone_catches_up(self, spread: int) -> None:
        """Clients that behave reach a stable group, unless something is in their way: chance alone rarely does."""
        self.appends_are_stored()
        for _ in range(3):
            for index, client in enumerate(self.clients):
                if client.joined is None:
                    self.join(index, 9, "rs")
            self.world.advance(1000)
            for index in range(len(self.clients)):
                self.sync(index, spread)

    @rule(index=st.integers(0, 3))
    def heartbeat(self, index: int) -> None:
        client = self.clients[index]
        if client.generation >= 0:
            self.send(client, Heartbeat("g", client.generation, client.member_id, client.instance))

    @rule(index=st.integers(0, 3))
    def leave(self, index: int) -> None:
        client = self.clients[index]
        if client.member_id and client.busy is None:
            self.send(client, LeaveGroup("g", [LeavingMember(client.member_id, client.instance)]))

    @rule(index=st.integers(0, 3))
    def dies(self, index: int) -> None:
        """The process is gone: it never asks again under this id."""
        client = self.clients[index]
        self.clients[index] = ClassicClient(client.name, client.instance)
        client.busy = "dead"

    @rule(index=st.integers(0, 3), partition=st.integers(0, 3))
    def commit(self, index: int, partition: int) -> None:
        client = self.clients[index]
        if client.generation >= 0:
            self.send(client, self.commit_call(partition, client.generation, client.member_id, client.instance))

    @rule(index=st.integers(0, 3), partition=st.integers(0, 3))
    def commit_of_an_older_generation_is_refused(self, index: int, partition: int) -> None:
        client = self.clients[index]
        if client.generation == client.seen > 0:
            call = self.commit_call(partition, client.generation - 1, client.member_id, client.instance)
            self.send(None, call)
            code = self.world.answers[call.token].topics[0].partitions[0][1]
            assert code in (
                ErrorCode.ILLEGAL_GENERATION,
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.FENCED_INSTANCE_ID,
                ErrorCode.GROUP_ID_NOT_FOUND,
            )

    @rule()
    def group_is_deleted_only_when_empty(self) -> None:
        described = self.world.shard.describe_groups(["g"])[0]
        if described.members:
            call = DeleteGroups(["g"])
            self.send(None, call)
            assert self.world.answers[call.token].groups == [("g", ErrorCode.NON_EMPTY_GROUP)]


class ConsumerClient:
    """A member of the consumer protocol: it stops reading a partition before it says so."""

    def __init__(self, name: str, instance: str | None) -> None:
        self.name = name
        self.instance = instance
        self.epoch = 0
        self.owned: Partitions = frozenset()
        self.assigned: Partitions = frozenset()
        self.busy = False
        self.alive_until = 0


class ConsumerHistories(Histories):
    """Members of the consumer protocol with server-side assignment, and topics that change."""

    def __init__(self) -> None:
        super().__init__()
        self.names = itertools.count()
        self.clients = [self.new_client(None), self.new_client(None), self.new_client("one"), self.new_client(None)]

    def new_client(self, instance: str | None) -> ConsumerClient:
        return ConsumerClient(f"m{next(self.names)}", instance)

    def answered(self, client: ConsumerClient, call: Any, response: Any) -> None:
        client.busy = False
        if call.member_epoch < 0:
            return
        if response.error is _NONE:
            client.epoch = response.member_epoch
            client.alive_until = self.sent[call.token] + 45_000
            if response.assignment is not None:
                client.assigned = response.assignment
                # What is taken away is given up when the client gets to it; what is new is read at once.
                client.owned |= response.assignment
        elif response.error in (
            ErrorCode.FENCED_MEMBER_EPOCH,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.GROUP_ID_NOT_FOUND,
            ErrorCode.FENCED_INSTANCE_ID,
        ):
            client.owned = client.assigned = frozenset()
            client.epoch = 0

    def lost(self, client: ConsumerClient, call: Any) -> None:
        client.busy = False
        if call.member_epoch == 0:
            client.epoch = 0

    def beat(self, client: ConsumerClient, **changes: Any) -> None:
        if client.busy:
            return
        client.busy = True
        call = ConsumerGroupHeartbeat("g", client.name, client.epoch, client.instance, topic_partitions=client.owned)
        if client.epoch == 0:
            call.rebalance_timeout_ms = 30_000
            call.subscribed_topic_names = ("t", "u")
        for name, value in changes.items():
            setattr(call, name, value)
        self.send(client, call)

    @rule(index=st.integers(0, 3))
    def heartbeat(self, index: int) -> None:
        self.beat(self.clients[index])

    @rule(index=st.integers(0, 3), names=st.sampled_from([("t",), ("u",), ("t", "u"), ("t", "nothing")]))
    def subscribe(self, index: int, names: tuple[str, ...]) -> None:
        self.beat(self.clients[index], subscribed_topic_names=names)

    @rule(index=st.integers(0, 3), assignor=st.sampled_from(["range", "uniform"]))
    def choose_assignor(self, index: int, assignor: str) -> None:
        self.beat(self.clients[index], server_assignor=assignor)

    @rule(index=st.integers(0, 3))
    def gives_up(self, index: int) -> None:
        """The client has stopped reading what is not its own any more."""
        client = self.clients[index]
        client.owned &= client.assigned

    @rule(index=st.integers(0, 3))
    def leaves(self, index: int) -> None:
        client = self.clients[index]
        if client.epoch > 0 and not client.busy:
            client.owned = client.assigned = frozenset()
            self.beat(client, member_epoch=-1, topic_partitions=None)
            self.clients[index] = self.new_client(client.instance)

    @rule(index=st.integers(0, 3))
    def dies(self, index: int) -> None:
        client = self.clients[index]
        client.owned = frozenset()
        client.alive_until = 0
        client.busy = True
        self.clients[index] = self.new_client(client.instance)

    @rule(partitions=st.integers(4, 6))
    def topic_changes(self, partitions: int) -> None:
        at_least = max(partitions, self.world.topics.by_name["t"].partitions)
        self.world.set_topics({"t": at_least, "u": 2})

    @rule(index=st.integers(0, 3), partition=st.integers(0, 3))
    def commit(self, index: int, partition: int) -> None:
        client = self.clients[index]
        if client.epoch > 0:
            self.send(None, self.commit_call(partition, client.epoch, client.name))

    @rule(index=st.integers(0, 3), partition=st.integers(0, 3))
    def commit_of_an_older_epoch_is_refused(self, index: int, partition: int) -> None:
        client = self.clients[index]
        if client.epoch > 1:
            call = self.commit_call(partition, client.epoch - 1, client.name)
            self.send(None, call)
            code = self.world.answers[call.token].topics[0].partitions[0][1]
            assert code in (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)

    @invariant()
    def no_partition_is_read_by_two_members(self) -> None:
        """Members whose session is over have to stop by themselves, as real clients do."""
        readers: dict[tuple[Any, int], str] = {}
        current = {m.member_id for m in self.world.shard.describe_consumer_groups(["g"])[0].members}
        for client in self.clients:
            if client.name in current and self.world.now < client.alive_until:
                for partition in client.owned:
                    other = readers.setdefault(partition, client.name)
                    assert other == client.name, f"{partition} is read by {other} and {client.name}"

    @invariant()
    @precondition(lambda self: not self.world.held)
    def assignments_do_not_overlap(self) -> None:
        group = self.world.shard.describe_consumer_groups(["g"])[0]
        for key in ("assignment", "target_assignment"):
            places = [p for m in group.members for p in getattr(m, key)]
            assert len(places) == len(set(places)), f"{key}: {group}"


class MixedHistories(ClassicHistories):
    """The two protocols in one group, which converts to and fro."""

    def __init__(self) -> None:
        super().__init__()
        self.consumers = [ConsumerClient("c0", None), ConsumerClient("c1", "one"), ConsumerClient("c2", None)]

    def grew(self, before: int, after: int) -> None:
        """A consumer group that starts anew after a classic one counts from 1."""

    def shared(self, call: SyncGroup, share: frozenset[tuple[str, int]]) -> None:
        """Epochs are each member's own here; the assignments in the group are checked instead."""

    def answered(self, client: Any, call: Any, response: Any) -> None:
        if isinstance(client, ClassicClient):
            super().answered(client, call, response)
        elif call.member_epoch < 0 or response.error is not _NONE:
            client.epoch = 0
            client.owned = frozenset()
        else:
            client.epoch = response.member_epoch
            client.owned = client.owned if response.assignment is None else response.assignment

    def lost(self, client: Any, call: Any) -> None:
        if isinstance(client, ClassicClient):
            super().lost(client, call)

    @rule(index=st.integers(0, 2))
    def consume(self, index: int) -> None:
        client = self.consumers[index]
        call = ConsumerGroupHeartbeat("g", client.name, client.epoch, client.instance, topic_partitions=client.owned)
        if client.epoch == 0:
            call.topic_partitions = frozenset()
            call.rebalance_timeout_ms = 30_000
            call.subscribed_topic_names = ("t",)
        self.send(client, call)

    @rule(index=st.integers(0, 2))
    def consumer_leaves(self, index: int) -> None:
        client = self.consumers[index]
        self.send(client, ConsumerGroupHeartbeat("g", client.name, -1, client.instance))

    @rule()
    def offsets_expire(self) -> None:
        self.world.run(self.world.shard.expire_offsets(self.world.now))

    @invariant()
    def assignments_do_not_overlap(self) -> None:
        group = self.world.shard.describe_consumer_groups(["g"])[0]
        places = [p for m in group.members for p in m.assignment]
        assert len(places) == len(set(places)), group


TestMixedHistories = pytest.mark.timeout(120)(MixedHistories.TestCase)
TestMixedHistories.settings = _SETTINGS
TestClassicHistories = pytest.mark.timeout(120)(ClassicHistories.TestCase)
TestClassicHistories.settings = _SETTINGS
TestConsumerHistories = pytest.mark.timeout(120)(ConsumerHistories.TestCase)
TestConsumerHistories.settings = _SETTINGS
