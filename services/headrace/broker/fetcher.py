"""How a follower copies: what it asks its leader for, and what it makes of the answer. No sockets in here.

One `Fetcher` covers every partition that this broker follows under one leader broker. It asks for each log's end, says
which epoch wrote its last record, and either gets batches that continue there or is told where the two logs part; then
it truncates, never to the high watermark but to what the epochs say (KIP-101, KIP-279, KIP-595), and asks again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headrace.broker.partition import Partition
from headrace.broker.throttle import Throttle
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.fetch import FetchRequest, ForgottenPartition, PartitionResult, RequestedPartition
from headrace.wire.fetch_client import FetchResponse

log = logging.getLogger(__name__)

FULL, NO_SESSION = 0, 0
LONGEST_PAUSE = 1.0
"""Seconds after which a throttled partition is looked at again, for the rate can change."""
FIRST_RETRY = 0.02
"""Seconds before a refused partition is first asked for again; a leader that was just elected has not heard of it."""
_SESSION_LOST = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)

Key = tuple[uuid.UUID, int]


@dataclass(frozen=True, slots=True)
class FetcherLimits:
    """Kafka's replica.fetch.* settings."""

    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 10 << 20
    partition_max_bytes: int = 1 << 20
    backoff: float = 1.0


class Fetcher:
    """The partitions followed under one leader, and the fetch session with it."""

    def __init__(
        self,
        broker_id: int,
        limits: FetcherLimits,
        broker_epoch: Callable[[], int],
        throttle: Throttle | None = None,
    ) -> None:
        self._broker_id = broker_id
        self._limits = limits
        self._broker_epoch = broker_epoch
        self._partitions: dict[Key, Partition] = {}
        self._throttle = throttle or Throttle()
        self._delayed: dict[Key, float] = {}
        self._refusals: dict[Key, int] = {}
        self._session_id = NO_SESSION
        self._session_epoch = FULL
        self._sessionless = False
        """Whether the leader had no room for a session."""
        self._asked: dict[Key, RequestedPartition] = {}
        self._changed: dict[Key, None] = {}
        """Where the next request may have to say something else than the last one."""

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def in_session(self) -> bool:
        """Whether a request may follow another that is not answered yet: the leader then answers that one at once."""
        return self._session_epoch != FULL

    def add(self, partition: Partition) -> None:
        key = (partition.topic_id, partition.index)
        self._partitions[key] = partition
        self._delayed.pop(key, None)
        self._refusals.pop(key, None)
        self._changed[key] = None

    def remove(self, partition: Partition) -> bool:
        key = (partition.topic_id, partition.index)
        self._delayed.pop(key, None)
        self._refusals.pop(key, None)
        self._changed[key] = None
        return self._partitions.pop(key, None) is not None

    def refresh(self, partition: Partition) -> None:
        """Something changed in this log that did not come from the leader."""
        self._changed[partition.topic_id, partition.index] = None

    def reset_session(self) -> None:
        """The next request names everything; the leader drops the session that this one replaces."""
        self._session_epoch = FULL
        self._sessionless = False
        self._asked = {}

    def request(self, now: float) -> FetchRequest | None:
        """What to ask now: everything in a full request, else what differs from the last one. None: nothing."""
        self._hold_throttled(now)
        retry = self.next_retry(now)
        if self._session_epoch == FULL:
            self._asked, self._changed = {}, dict.fromkeys(self._partitions)
        named, forgotten = self._differences()
        if not self._asked:
            self.reset_session()
            return None
        max_wait_ms = self._limits.max_wait_ms if retry is None else min(self._limits.max_wait_ms, int(retry * 1000))
        epoch = self._session_epoch
        if epoch != FULL:
            self._session_epoch = _after(epoch)
        elif not self._sessionless:
            max_wait_ms = 0  # it opens the session; the next request waits in it, and can be cut short
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=self._limits.min_bytes,
            max_bytes=self._limits.max_bytes,
            session_id=self._session_id,
            session_epoch=epoch,
            partitions=named,
            forgotten=forgotten,
            replica_id=self._broker_id,
            replica_epoch=self._broker_epoch(),
        )

    def _differences(self) -> tuple[list[RequestedPartition], list[ForgottenPartition]]:
        """What to name and what to leave out from now on, of what has changed since the last request."""
        changed, self._changed = self._changed, {}
        asked = self._asked
        named: list[RequestedPartition] = []
        forgotten: list[ForgottenPartition] = []
        for key in changed:
            partition = self._partitions.get(key)
            if partition is None or key in self._delayed or partition.log.failure is not None:
                if asked.pop(key, None) is not None:
                    forgotten.append(ForgottenPartition(*key))
                continue
            want = self._wanted(partition)
            if asked.get(key) != want:
                asked[key] = want
                named.append(want)
        return named, forgotten

    def _wanted(self, partition: Partition) -> RequestedPartition:
        held = partition.log
        end = held.log_end_offset
        return RequestedPartition(
            partition.topic_id,
            partition.index,
            end,
            self._limits.partition_max_bytes,
            partition.leader_epoch,
            held.epochs.epoch_at(end - 1) if end > held.log_start_offset else -1,
            held.log_start_offset,
            high_watermark=partition.high_watermark,
        )

    def _hold_throttled(self, now: float) -> None:
        """Leaves partitions that still catch up out of the request while they have used up their rate."""
        if self._throttle.exceeded(now):
            until = now + min(self._throttle.wait(now), LONGEST_PAUSE)
            for key, partition in self._partitions.items():
                if partition.follower_throttled and not partition.in_sync:
                    self._delayed[key] = until
                    self._changed[key] = None

    def due_in(self, now: float) -> float | None:
        """Seconds until a partition that is held back may be asked for, if there is one."""
        return min((max(0.0, at - now) for at in self._delayed.values()), default=None)

    def next_retry(self, now: float) -> float | None:
        """Seconds until the first partition that is held back may be asked for again."""
        if not self._delayed:
            return None
        due = [key for key, at in self._delayed.items() if at <= now]
        for key in due:
            del self._delayed[key]
            self._changed[key] = None
        return min((at - now for at in self._delayed.values()), default=None)

    def received(self, response: FetchResponse, now: float, now_ms: int) -> list[Partition]:
        """Takes an answer; returns the partitions whose log or high watermark moved."""
        if response.error_code in _SESSION_LOST:
            self.reset_session()
            return []
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code), "the leader refused to be followed")
        self._session_id = response.session_id
        self._sessionless = response.session_id == NO_SESSION
        if self._sessionless:
            self._session_epoch = FULL
        elif self._session_epoch == FULL:
            self._session_epoch = _after(FULL)
        return [p for result in response.partitions if (p := self._take(result, now, now_ms)) is not None]

    def _take(self, result: PartitionResult, now: float, now_ms: int) -> Partition | None:
        key: Key = (result.topic, result.partition)  # type: ignore[assignment]  # followers ask by id
        partition, asked = self._partitions.get(key), self._asked.get(key)
        if partition is None or asked is None:
            return None
        self._changed[key] = None
        if partition.leader_epoch != asked.current_leader_epoch or partition.log.log_end_offset != asked.fetch_offset:
            return None  # an answer to a question of another epoch
        try:
            moved = self._apply(partition, result, now, now_ms)
            if self._refusals:
                self._refusals.pop(key, None)
            return partition if moved else None
        except KafkaError as error:
            self._hold_back(key, partition, error, now)
            return None

    def _apply(self, partition: Partition, result: PartitionResult, now: float, now_ms: int) -> bool:
        held = partition.log
        if result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and result.log_start_offset >= 0:
            # Either the leader has deleted what comes next here, or its log ends before this one and no epoch says
            # where they part (an unclean election): only what the leader holds counts.
            log.warning("%r: the leader begins at %d: starting over there", partition, result.log_start_offset)
            held.truncate_fully(result.log_start_offset)
            partition.high_watermark = result.log_start_offset
            return True
        if result.error_code:
            raise KafkaError(ErrorCode(result.error_code), "the leader answered so")
        if result.diverging_epoch != (-1, -1):
            return self._truncate(partition, *result.diverging_epoch)
        before = (held.log_end_offset, partition.high_watermark, held.log_start_offset)
        for part in _parts(result):
            held.append_as_follower(part, now_ms)
            if partition.follower_throttled and not partition.in_sync:
                self._throttle.spend(len(part), now)
        if held.log_start_offset < result.log_start_offset <= held.log_end_offset:
            held.delete_records_before(result.log_start_offset)
        mark = min(result.high_watermark, held.log_end_offset)
        partition.high_watermark = max(partition.high_watermark, mark)
        return before != (held.log_end_offset, partition.high_watermark, held.log_start_offset)

    def _truncate(self, partition: Partition, epoch: int, end: int) -> bool:
        """Cuts the log where it parts from the leader's: where the last epoch that both know ended in both."""
        held = partition.log
        own_epoch, own_end = held.end_offset_for_epoch(epoch)
        if own_epoch < 0:
            cut = end
        elif own_epoch == epoch:
            cut = min(end, own_end)
        else:
            cut = own_end
        cut = max(min(cut, held.log_end_offset), held.log_start_offset)
        log.info("%r: truncating from %d to %d, epoch %d", partition, held.log_end_offset, cut, epoch)
        held.truncate_to(cut)
        partition.high_watermark = min(partition.high_watermark, held.log_end_offset)
        return True

    def _hold_back(self, key: Key, partition: Partition, error: KafkaError, now: float) -> None:
        refusals = self._refusals.get(key, 0)
        self._refusals[key] = refusals + 1
        seconds = min(self._limits.backoff, FIRST_RETRY * (1 << min(refusals, 16)))
        # Said once a series: a broker that is behind the others may hold thousands of partitions back, again and again.
        if seconds >= self._limits.backoff > FIRST_RETRY * (1 << min(max(refusals - 1, 0), 16)):
            log.info("%r: following waits for %g s, and again until it is answered: %s", partition, seconds, error)
        self._delayed[key] = now + seconds


def _after(epoch: int) -> int:
    return 1 if epoch == 0x7FFFFFFF else epoch + 1


def _parts(result: PartitionResult) -> Iterable[memoryview]:
    """The records of an answer, as views of its frame."""
    records = result.records
    pieces = records if isinstance(records, list) else [records]
    return [memoryview(piece) for piece in pieces if isinstance(piece, bytes | bytearray | memoryview) and len(piece)]
