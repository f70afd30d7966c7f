"""Keeps the in-sync sets of the partitions that this broker leads: asks the controller, and takes its word.

A leader never changes a set by itself. It wishes for another one (`Progress.pending`), asks, and acts on both sets
until it knows which is in force. Wishes of many partitions go in one request; one that could not be answered is asked
again, because the controller compares partition epochs and a repeated wish does no harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from headrace.broker.isr import Progress
from headrace.broker.partition import Partition
from headrace.broker.replica_manager import ReplicaManager
from headrace.cluster.protos import partition_from_proto
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Clock
from headrace.rpc import request_header
from headrace.rpc.controller_client import ControllerClient
from headrace.v1 import common_pb2
from headrace.v1 import controller_pb2 as pb

log = logging.getLogger(__name__)

CALL_SECONDS = 10.0
REFUSAL_PAUSE = 0.5
"""Seconds before a leader asks again for what was refused (a follower that restarts, or wants to stop)."""
BREATH = 512
"""Partitions looked at before the loop gets to do something else."""
MAX_WISHES = 2_000
"""Partitions in one request."""


class IsrKeeper:
    """One task that looks for followers that fell behind, and sends the wishes of all partitions."""

    def __init__(
        self,
        replicas: ReplicaManager,
        controller: ControllerClient,
        clock: Clock,
        max_lag: float,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._replicas = replicas
        self._controller = controller
        self._clock = clock
        self._max_lag = max_lag
        self._broker_epoch = broker_epoch
        self._wishes: dict[Partition, None] = {}
        self._refused: dict[Partition, None] = {}
        self._wished = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        replicas.on_caught_up = self.expand

    def start(self) -> None:
        self._tasks = [asyncio.create_task(work()) for work in (self._look, self._ask, self._look_again)]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def expand(self, partition: Partition, replica: int) -> None:
        """A follower outside has caught up: wish for it, unless another wish is under way."""
        progress = partition.progress
        if progress is not None and progress.pending is None and progress.no_wish_before <= self._clock.monotonic():
            self._wish(partition, progress, (*progress.isr, replica))

    async def shrink(self) -> None:
        """Wishes everyone out who has not had everything for longer than the lag time."""
        for done, partition in enumerate(self._replicas.partitions()):
            if done % BREATH == BREATH - 1:
                await asyncio.sleep(0)
            progress = partition.progress
            if progress is None or progress.pending is not None or len(progress.isr) < 2:
                continue
            now = self._clock.monotonic()
            lagging = progress.lagging(partition.log.log_end_offset, now, self._max_lag)
            if lagging and not self._replicas.is_moving(partition):
                log.info("%r: %s fell behind %d", partition, lagging, partition.log.log_end_offset)
                self._wish(partition, progress, tuple(r for r in progress.isr if r not in lagging))

    def _wish(self, partition: Partition, progress: Progress, isr: tuple[int, ...]) -> None:
        progress.pending = isr
        self._wishes[partition] = None
        self._wished.set()

    async def _look(self) -> None:
        while True:
            await self._clock.sleep(self._max_lag / 2)
            await self.shrink()

    async def _look_again(self) -> None:
        """Where a wish was refused, followers that want to join are looked at again though nothing moves there."""
        while True:
            await self._clock.sleep(REFUSAL_PAUSE)
            refused, self._refused = self._refused, {}
            for partition in refused:
                if partition.progress is not None and partition.progress.no_wish_before > self._clock.monotonic():
                    self._refused[partition] = None
                else:
                    self._replicas.wake(partition)

    async def _ask(self) -> None:
        while True:
            await self._wished.wait()
            self._wished.clear()
            while self._wishes:
                asked = list(self._wishes)[:MAX_WISHES]
                for partition in asked:
                    del self._wishes[partition]
                try:
                    await self._ask_for(asked)
                except KafkaError as error:
                    log.warning("the controller did not take %d in-sync sets, trying again: %s", len(asked), error)
                    self._wishes.update(dict.fromkeys(p for p in asked if p.progress and p.progress.pending))
                    await self._clock.sleep(min(1.0, self._max_lag / 10))

    async def _ask_for(self, asked: list[Partition]) -> None:
        request = pb.AlterPartitionRequest(
            header=request_header(f"broker-{self._replicas.broker_id}"),
            broker_id=self._replicas.broker_id,
            broker_epoch=self._broker_epoch(),
        )
        open_wishes = []
        for partition in asked:
            progress = partition.progress
            if progress is not None and progress.pending is not None:
                open_wishes.append(partition)
                request.partitions.append(self._wish_message(partition, progress, progress.pending))
        if not open_wishes:
            return
        answer = await self._controller.call(lambda c: c.AlterPartition, request, CALL_SECONDS)
        if answer.error.code:
            raise KafkaError(ErrorCode(answer.error.code), answer.error.message)
        for partition, result in zip(open_wishes, answer.results, strict=True):
            self._take(partition, result)

    def _wish_message(
        self, partition: Partition, progress: Progress, isr: tuple[int, ...]
    ) -> pb.AlterPartitionRequest.Partition:
        followers, own = progress.followers, self._broker_epoch()
        epochs = [followers[r].broker_epoch if r in followers else own for r in isr]
        return pb.AlterPartitionRequest.Partition(
            partition=common_pb2.TopicPartition(
                topic=partition.topic, topic_id=partition.topic_id.bytes, partition=partition.index
            ),
            leader_epoch=partition.leader_epoch,
            isr=isr,
            isr_epochs=epochs,
            partition_epoch=partition.partition_epoch,
        )

    def _take(self, partition: Partition, result: pb.AlterPartitionResponse.Result) -> None:
        progress = partition.progress
        if progress is None:
            return
        before = len(progress.isr)
        if result.error.code:
            log.debug("%r: wish refused: %s", partition, result.error.message)
            progress.no_wish_before = self._clock.monotonic() + REFUSAL_PAUSE
            self._refused[partition] = None
        if result.HasField("state"):
            state = partition_from_proto(result.state)
            if state.leader == partition.broker_id and state.leader_epoch == partition.leader_epoch:
                partition.lead(state, self._clock.monotonic(), answers_wish=True)
        elif result.error.code:
            # The controller knows no such partition: it tells us so when it comes to it.
            progress.pending = None
        self._replicas.stats.isr_shrinks += len(partition.isr) < before
        self._replicas.stats.isr_expands += len(partition.isr) > before
        self._replicas.wake(partition)
