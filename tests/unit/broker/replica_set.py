"""Replicas of one partition in one process, on real logs: a test says who fetches, who crashes and what each one hears.

The files are in memory and keep everything that was written when a process dies, as a page cache does.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from tests.unit.broker.conftest import TOPIC_ID, ManualClock, ManualTimer, batch

from headrace.broker.fetch_session import Sessions
from headrace.broker.fetcher import Fetcher, FetcherLimits
from headrace.broker.partition import Partition
from headrace.broker.reader import Wanted
from headrace.broker.replica_manager import ReplicaManager
from headrace.broker.requests import Fetched, FetchLimits
from headrace.broker.stats import Stats
from headrace.cluster.image import NO_LEADER, Image
from headrace.cluster.image import Partition as State
from headrace.errors import KafkaError
from headrace.records.batch import batches
from headrace.storage.config import LogConfig
from headrace.storage.memory_files import MemoryFiles
from headrace.storage.recovery import Known, open_log
from headrace.timing.purgatory import Purgatory
from headrace.wire.fetch import FetchRequest, PartitionResult
from headrace.wire.fetch_client import FetchResponse


class Replica:
    """One broker's replica. `crash` and `start` keep its disk; `checkpoint` writes the high watermark to it."""

    def __init__(self, broker: int, clock: ManualClock, **config: str) -> None:
        self.id = broker
        self.clock = clock
        self.files = MemoryFiles()
        self.config = LogConfig.of(config)
        self.checkpointed = 0
        self.up = False
        self.registration = 0
        self.soon: list[Callable[[], None]] = []
        self.start()

    def start(self) -> None:
        self.registration += 1
        log = open_log(self.files, "/data/t-0", self.config, Known())
        self.partition = Partition("t", TOPIC_ID, 0, self.id, log, self.checkpointed)
        timer = ManualTimer(self.clock)
        self.manager = ReplicaManager(
            self.id,
            self.clock,
            Stats(),
            Purgatory("Produce", timer),
            Purgatory("Fetch", timer),
            self.soon.append,
            Image,
        )
        self.manager.add(self.partition)
        self.sessions = Sessions(10, 120.0, random.Random(self.id))
        self.fetched_from = NO_LEADER
        self.fetcher = Fetcher(self.id, FetcherLimits(backoff=0.0), lambda: self.registration)
        self.up = True

    def turn(self) -> None:
        """The rest of this turn of the loop."""
        while self.soon:
            self.soon.pop(0)()

    def crash(self) -> None:
        self.partition.log.release()
        self.up = False

    def checkpoint(self) -> None:
        self.checkpointed = self.partition.high_watermark

    def hear(self, state: State) -> None:
        """LeaderAndIsr."""
        if state.leader == self.id:
            self.fetcher.remove(self.partition)
            self.partition.lead(state, self.clock.now)
        elif self.partition.follow(state):
            self.fetcher.add(self.partition)
        self.wake()

    def wake(self) -> None:
        """Something moved, and the turn of the loop ends."""
        self.manager.wake(self.partition)
        self.turn()

    def append(self, *values: bytes) -> int:
        """Appends one batch; the offset after it, which the high watermark has to reach for acks=all."""
        last = self.partition.append(batch(*values), 1, self.clock.time_ms()).last_offset
        self.wake()
        return last + 1

    def answer(self, request: FetchRequest) -> FetchResponse:
        """What the Fetch handler would send."""
        wanted = [
            (
                (p.topic, p.partition),
                Wanted(
                    p.fetch_offset,
                    p.max_bytes,
                    p.current_leader_epoch,
                    p.last_fetched_epoch,
                    p.log_start_offset,
                    p.high_watermark,
                ),
            )
            for p in request.partitions
        ]
        try:
            session = self.sessions.open(
                request.session_id,
                request.session_epoch,
                wanted,
                request.forgotten,
                by_id=True,
                replica_id=request.replica_id,
                broker_epoch=request.replica_epoch,
                now=self.clock.now,
            )
        except KafkaError as error:
            return FetchResponse(error_code=error.code)
        answers: list[list[Fetched]] = []
        limits = FetchLimits(0, 1, request.max_bytes, request.replica_id, request.replica_epoch)
        self.manager.fetch(limits, session, answers.append)
        results = []
        for each in answers[0]:
            failed = each.error is not None or each.diverging is not None
            news = session.is_news(each.place, each.size > 0, failed, each.high_watermark, each.log_start_offset)
            if not news and not session.full:
                continue
            result = PartitionResult(*each.key, 0, each.high_watermark, -1, each.log_start_offset)
            result.records = b"".join(part.read() for part in each.ranges)
            if each.error is not None:
                result.error_code = each.error.code
            if each.diverging is not None:
                result.diverging_epoch = each.diverging
            results.append(result)
        return FetchResponse(session_id=session.id, partitions=results)

    @property
    def values(self) -> list[tuple[int, int, bytes]]:
        """Every batch that is here: base offset, leader epoch, bytes."""
        log = self.partition.log
        data = log.read(log.log_start_offset, 1 << 30, upto=log.log_end_offset).read()
        return [(b.base_offset, b.leader_epoch, data[b.position : b.position + b.size]) for b in batches(data)]

    @property
    def end(self) -> int:
        return self.partition.log.log_end_offset


class ReplicaSet:
    """The replicas, and the state of the partition as the controller has it."""

    def __init__(self, count: int = 3, **config: str) -> None:
        self.clock = ManualClock()
        self.replicas = [Replica(i, self.clock, **config) for i in range(count)]
        everyone = tuple(range(count))
        self.state = State(0, 0, everyone, everyone)
        self.tell()

    def __getitem__(self, broker: int) -> Replica:
        return self.replicas[broker]

    def tell(self, *brokers: int) -> None:
        """The controller's word reaches these brokers (or all that are up)."""
        for replica in self.replicas:
            if replica.up and (not brokers or replica.id in brokers):
                replica.hear(self.state)

    def elect(self, leader: int, isr: tuple[int, ...]) -> None:
        changed = leader != self.state.leader
        self.state = replace(
            self.state,
            leader=leader,
            isr=isr,
            leader_epoch=self.state.leader_epoch + changed,
            partition_epoch=self.state.partition_epoch + 1,
        )

    def new_term(self) -> None:
        """The same leader under a new epoch, as after its restart."""
        self.state = replace(
            self.state, leader_epoch=self.state.leader_epoch + 1, partition_epoch=self.state.partition_epoch + 1
        )

    def fetch(self, *followers: int, rounds: int = 1) -> None:
        """Each of them fetches once from whom it takes for the leader, if that one is up."""
        for _ in range(rounds):
            for follower in followers:
                replica = self.replicas[follower]
                leader = replica.partition.leader
                if not replica.up or leader in (follower, NO_LEADER) or not self.replicas[leader].up:
                    continue
                self.clock.now += 0.1
                if leader != replica.fetched_from:
                    replica.fetched_from = leader
                    replica.fetcher.reset_session()
                request = replica.fetcher.request(self.clock.now)
                if request is not None:
                    response = self.replicas[leader].answer(request)
                    for moved in replica.fetcher.received(response, self.clock.now, self.clock.time_ms()):
                        replica.manager.wake(moved)
                    self.replicas[leader].turn()
                    replica.turn()
