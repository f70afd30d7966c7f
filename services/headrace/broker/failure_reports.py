"""Tells the controller which replicas this broker lost to a failed disk, until it has taken it.

Their leaderships move then, and the others go on. A controller that takes over later learns it without being told: this
broker refuses those partitions with KAFKA_STORAGE_ERROR when it is given everything anew.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable

from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Clock
from headrace.rpc import request_header
from headrace.rpc.controller_client import ControllerClient
from headrace.v1 import common_pb2
from headrace.v1 import controller_pb2 as pb

log = logging.getLogger(__name__)

CALL_SECONDS = 10.0
RETRY_SECONDS = 1.0


class FailureReports:
    """One task that runs while there is something to report."""

    def __init__(
        self, broker_id: int, controller: ControllerClient, clock: Clock, broker_epoch: Callable[[], int]
    ) -> None:
        self._broker_id = broker_id
        self._controller = controller
        self._clock = clock
        self._broker_epoch = broker_epoch
        self._lost: set[tuple[uuid.UUID, int]] = set()
        self._task: asyncio.Task[None] | None = None

    def report(self, replicas: Iterable[tuple[uuid.UUID, int]]) -> None:
        self._lost.update(replicas)
        if self._lost and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run(), name="report failed replicas")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._lost:
            told = frozenset(self._lost)
            request = pb.ReportFailedReplicasRequest(
                header=request_header(f"broker-{self._broker_id}"),
                broker_id=self._broker_id,
                broker_epoch=self._broker_epoch(),
                partitions=[common_pb2.TopicPartition(topic_id=t.bytes, partition=index) for t, index in sorted(told)],
            )
            try:
                answer = await self._controller.call(lambda c: c.ReportFailedReplicas, request, CALL_SECONDS)
                if answer.error.code:
                    raise KafkaError(ErrorCode(answer.error.code), answer.error.message)
            except KafkaError as error:
                log.warning("the controller does not know yet that %d replicas failed: %s", len(told), error)
                await self._clock.sleep(RETRY_SECONDS)
            else:
                self._lost -= told
