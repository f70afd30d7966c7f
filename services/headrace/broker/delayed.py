"""Requests that wait: for the in-sync replicas to have a batch, for enough bytes to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.partition import Partition
from headrace.broker.reader import Reader
from headrace.broker.requests import FetchLimits, FetchReply, Produced, ProduceReply
from headrace.errors import ErrorCode, KafkaError
from headrace.timing.purgatory import DelayedOperation

if TYPE_CHECKING:
    from headrace.broker.replica_manager import ReplicaManager


class DelayedProduce(DelayedOperation):
    """Batches that are on the leader's disk and wait for the in-sync replicas."""

    __slots__ = ("_missing", "_reply", "_results")

    def __init__(self, results: list[Produced], missing: dict[int, tuple[Partition, int]], reply: ProduceReply) -> None:
        super().__init__()
        self._results = results
        self._missing = missing
        self._reply = reply

    def try_complete(self) -> bool:
        for at, (partition, required) in list(self._missing.items()):
            verdict = partition.acknowledged(required)
            if verdict is False:
                continue
            if verdict is not True:
                self._refuse(at, verdict)
            del self._missing[at]
        return not self._missing

    def on_complete(self) -> None:
        self._reply(self._results)

    def on_expire(self) -> None:
        self.on_cancel(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the in-sync replicas did not confirm it in time"))

    def on_cancel(self, error: KafkaError) -> None:
        for at in self._missing:
            self._refuse(at, error)
        self._reply(self._results)

    def _refuse(self, at: int, error: KafkaError) -> None:
        self._results[at] = self._results[at]._replace(error=error, base_offset=-1)


class DelayedFetch(DelayedOperation):
    """A reader that waits until enough bytes are there."""

    __slots__ = ("_limits", "_looked", "_manager", "_reader", "_reply")

    def __init__(self, manager: ReplicaManager, limits: FetchLimits, reader: Reader, reply: FetchReply) -> None:
        super().__init__()
        self._manager = manager
        self._limits = limits
        self._reader = reader
        self._reply = reply
        self._looked = False

    def try_complete(self) -> bool:
        if not self._looked:
            self._looked = True  # it waits because everything was read a moment ago
            return False
        return self._manager.enough(self._limits, self._reader)

    def on_complete(self) -> None:
        reader = self._reader
        reader.waiting = None
        if reader.full:
            reader.stir_all()
        self._reply(self._manager.read(self._limits, reader)[0])

    def on_cancel(self, error: KafkaError) -> None:
        self.on_complete()

    def hurry(self) -> None:
        self._manager.fetches.complete(self)
