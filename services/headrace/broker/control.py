"""What the controller tells this broker: which partitions it holds, who leads them, and which to let go.

Requests are taken one at a time and refused when they carry an older controller epoch, mean an earlier registration of
this broker, or come after what the same controller said later (over a connection that broke). A full request is the
whole truth: what lies on disk and is not in it belongs to topics that were deleted while this broker was away, and goes
too.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, Protocol

from headrace.broker.partition import Partition
from headrace.broker.replica_manager import ReplicaManager
from headrace.cluster.image import Partition as PartitionState
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Clock
from headrace.storage.log_dirs import LogDir, LogDirs, attempt

log = logging.getLogger(__name__)

BREATH = 64
"""Logs created or deleted before the loop gets to do something else."""
BREATH_SECONDS = 0.01
"""Nor longer than this: on a slow disk a file takes milliseconds, and a lease has to be kept alive meanwhile."""

DELETED_TOPIC = -2

Assignment = tuple[str, uuid.UUID, int, PartitionState | None]
"""A topic's name and id, a partition's index, and what the controller decided for it (None: what is known here)."""

Failure = tuple[str, uuid.UUID, int, KafkaError]


class Word(NamedTuple):
    """Who says something, to which registration of this broker, and the how manieth thing it is (0: not numbered)."""

    controller_epoch: int
    broker_epoch: int
    number: int = 0


class Followers(Protocol):
    """Whoever copies partitions from their leaders."""

    def follow(self, partition: Partition) -> None: ...

    def stop(self, partition: Partition) -> None: ...


class ReplicaControl:
    """Carries out the controller's word on the replica manager and the log directories."""

    def __init__(
        self,
        replicas: ReplicaManager,
        log_dirs: LogDirs,
        followers: Followers,
        clock: Clock,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._replicas = replicas
        self._log_dirs = log_dirs
        self._followers = followers
        self._clock = clock
        self._broker_epoch = broker_epoch
        self._controller_epoch = -1
        self._number = 0
        self._one_at_a_time = asyncio.Lock()
        self.synced = asyncio.Event()
        """Set once a full request was carried out: from then on this broker knows all it holds."""

    async def leader_and_isr(
        self, word: Word, assignments: Iterable[Assignment], *, full: bool = False
    ) -> list[Failure]:
        """Leads and follows as told; returns the partitions that could not be served."""
        async with self._one_at_a_time:
            self._check(word)
            wanted = await self._breathing(assignments)
            if full:
                await self._delete_strays(wanted)
            failures: list[Failure] = []
            breath = self._clock.monotonic()
            for done, (topic, topic_id, index, state) in enumerate(wanted):
                if done % BREATH == BREATH - 1 or self._clock.monotonic() - breath > BREATH_SECONDS:
                    await asyncio.sleep(0)
                    breath = self._clock.monotonic()
                try:
                    if state is not None:
                        self._assign(topic, topic_id, index, state)
                    else:
                        self._confirm(topic_id, index)
                except KafkaError as error:
                    log.error("cannot serve %s-%d: %s", topic, index, error)
                    failures.append((topic, topic_id, index, error.bare()))
            for log_dir, sync in self._log_dirs.begin_sync():
                synced = asyncio.get_running_loop().run_in_executor(None, attempt, sync)
                synced.add_done_callback(partial(self._made_durable, log_dir))
            if full:
                self.synced.set()
            return failures

    def _made_durable(self, log_dir: LogDir, synced: asyncio.Future[OSError | None]) -> None:
        if not synced.cancelled() and (error := synced.result()) is not None:
            self._log_dirs.fail(log_dir, error)

    async def _breathing(self, assignments: Iterable[Assignment]) -> list[Assignment]:
        """All of them, decoded in small steps."""
        wanted: list[Assignment] = []
        for assignment in assignments:
            wanted.append(assignment)
            if len(wanted) % BREATH == 0:
                await asyncio.sleep(0)
        return wanted

    def knows(self, topic_id: uuid.UUID, index: int, leader_epoch: int, partition_epoch: int) -> bool:
        """Whether this broker acts on exactly this state already: another one has another partition epoch."""
        partition = self._replicas.find(topic_id, index)
        return (
            partition is not None
            and partition.partition_epoch == partition_epoch
            and partition.leader_epoch == leader_epoch
        )

    async def stop_replica(self, word: Word, stops: Iterable[tuple[uuid.UUID, int, int, bool]]) -> list[Failure]:
        """Lets go of partitions (topic id, index, leader epoch, whether to delete the files)."""
        async with self._one_at_a_time:
            self._check(word)
            failures: list[Failure] = []
            for done, (topic_id, index, leader_epoch, delete) in enumerate(stops):
                if done % BREATH == BREATH - 1:
                    await asyncio.sleep(0)
                partition = self._replicas.find(topic_id, index)
                if partition is None or (leader_epoch != DELETED_TOPIC and leader_epoch < partition.leader_epoch):
                    continue
                try:
                    self._let_go(partition, delete)
                except KafkaError as error:
                    failures.append((partition.topic, topic_id, index, error.bare()))
            return failures

    def _check(self, word: Word) -> None:
        controller_epoch, broker_epoch, number = word
        if controller_epoch < self._controller_epoch:
            raise KafkaError(
                ErrorCode.STALE_CONTROLLER_EPOCH,
                f"controller epoch {controller_epoch} is over: {self._controller_epoch} is the newest seen",
            )
        if broker_epoch != self._broker_epoch():
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH, f"this is registration {self._broker_epoch()}, not {broker_epoch}"
            )
        if 0 < number <= self._number and controller_epoch == self._controller_epoch:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION, f"request {number} comes late: {self._number} was carried out before"
            )
        self._controller_epoch, self._number = controller_epoch, number

    def _assign(self, topic: str, topic_id: uuid.UUID, index: int, state: PartitionState) -> None:
        broker_id = self._replicas.broker_id
        if broker_id not in state.replicas:
            return
        partition = self._replicas.find(topic_id, index)
        if partition is None:
            # Epoch 0 is a partition's first: a later one had its log somewhere, perhaps here on a disk that failed.
            partition = self._open(topic, topic_id, index, is_new=state.leader_epoch == 0 or broker_id in state.adding)
        if partition.log.failure is not None:
            # Whoever leads now: clients are sent there, and the controller hears (again) that this replica is lost.
            if state.leader != broker_id:
                partition.follow(state)
                self._replicas.wake(partition)
            raise partition.log.failure
        if state.leader == broker_id:
            partition.lead(state, self._clock.monotonic())
            # Not when the word is an old one that came late: this broker follows somebody by now.
            if partition.is_leader:
                self._followers.stop(partition)
        elif partition.follow(state):
            self._followers.follow(partition)
        self._replicas.wake(partition)

    def _confirm(self, topic_id: uuid.UUID, index: int) -> None:
        """Nothing is new here, but a replica that is lost is reported again."""
        partition = self._replicas.find(topic_id, index)
        if partition is not None and partition.log.failure is not None:
            raise partition.log.failure

    def _open(self, topic: str, topic_id: uuid.UUID, index: int, *, is_new: bool) -> Partition:
        held = self._log_dirs.topic_ids.get((topic, index))
        if held is not None and held != topic_id:
            # The topic was deleted and made again: what is here belongs to the old one.
            self._delete(topic, index)
        opened = self._log_dirs.create(topic, index, topic_id, is_new=is_new)
        mark = self._log_dirs.high_watermarks.get((topic, index), 0)
        partition = Partition(topic, topic_id, index, self._replicas.broker_id, opened, mark)
        self._replicas.add(partition)
        return partition

    def _let_go(self, partition: Partition, delete: bool) -> None:
        self._followers.stop(partition)
        self._replicas.remove(partition)
        if delete:
            self._log_dirs.delete(partition.topic, partition.index, self._clock.time_ms())

    def _delete(self, topic: str, index: int) -> None:
        held = self._replicas.find(topic, index)
        if held is not None:
            self._let_go(held, delete=True)
        else:
            self._log_dirs.delete(topic, index, self._clock.time_ms())

    async def _delete_strays(self, wanted: list[Assignment]) -> None:
        by_id = {(topic_id, index) for _, topic_id, index, _ in wanted}
        by_name = {(topic, index) for topic, _, index, _ in wanted}
        topic_ids = self._log_dirs.topic_ids
        # A folder whose id was lost in a power cut is known by its name.
        strays = [
            key
            for key in self._log_dirs.logs
            if ((topic_ids[key], key[1]) not in by_id if key in topic_ids else key not in by_name)
        ]
        for done, (topic, index) in enumerate(strays):
            if done % BREATH == BREATH - 1:
                await asyncio.sleep(0)
            log.info("deleting %s-%d: its topic, or its place here, is gone", topic, index)
            self._delete(topic, index)
