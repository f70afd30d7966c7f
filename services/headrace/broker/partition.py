"""One replica on this broker: its log, whether it leads or follows, and how far readers may see.

The partition decides; it never waits and never sends. Whatever it wants others to know (a new high watermark, a wish
for another set of in-sync replicas) it returns or leaves in an attribute, and the replica manager acts on it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import NamedTuple

from headrace.broker.isr import Progress
from headrace.broker.reader import Place
from headrace.broker.stats import TopicStats
from headrace.cluster.image import NO_LEADER
from headrace.cluster.image import Partition as PartitionState
from headrace.cluster.topics import is_internal
from headrace.errors import ErrorCode, KafkaError
from headrace.storage.log import Log
from headrace.storage.results import AppendInfo, ReadInfo

ANY_EPOCH = -1


class EpochEnd(NamedTuple):
    """The largest known epoch not above the one asked about, and the offset after its last record."""

    leader_epoch: int
    end_offset: int


class Partition:
    """A replica. `lead` and `follow` take the controller's word; everything else follows from it."""

    def __init__(
        self, topic: str, topic_id: uuid.UUID, index: int, broker_id: int, log: Log, high_watermark: int
    ) -> None:
        self.topic = topic
        self.internal = is_internal(topic)
        self.topic_id = topic_id
        self.index = index
        self.broker_id = broker_id
        self.log = log
        self.leader = NO_LEADER
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.copies = 0
        """How many replicas there are, counted once: every append with acks=all asks."""
        self.known_isr: tuple[int, ...] = ()
        """What the controller said last; a leader's own wishes are in `progress`."""
        self.eligible: tuple[int, ...] = ()
        """Who else may lead because nothing was acknowledged since it left the in-sync set (KIP-966)."""
        self.progress: Progress | None = None
        """Present while this broker leads."""
        self.epoch_start = 0
        self.announced = 0
        """The high watermark that followers should know by now."""
        self.readers: dict[Place, None] = {}
        """Whose readers want to be told when something moves here."""
        self.traffic = TopicStats()
        """Where what comes in and goes out is counted: the topic's, once the replica manager knows this partition."""
        self.leader_throttled = False
        self.follower_throttled = False
        """Whether replication.throttled.replicas names this replica."""
        self.high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def is_leader(self) -> bool:
        return self.progress is not None

    @property
    def isr(self) -> tuple[int, ...]:
        return self.progress.isr if self.progress else ()

    @property
    def in_sync(self) -> bool:
        """Whether this replica is in the in-sync set, as far as the controller has said."""
        return self.broker_id in self.known_isr

    @property
    def under_replicated(self) -> bool:
        return self.progress is not None and len(self.progress.isr) < len(self.replicas)

    @property
    def under_min_isr(self) -> bool:
        return self.progress is not None and len(self.progress.isr) < self.min_isr

    @property
    def min_isr(self) -> int:
        """How many have to be in sync before anything is acknowledged; never more than there are replicas, as in Kafka.

        While others are eligible, the controller counted too few, perhaps by a setting that is not known here yet: what
        was acknowledged now could be lost with them in the lead.
        """
        least = self.log.config.min_insync_replicas
        if least > self.copies:
            least = self.copies
        return max(least, len(self.known_isr) + 1) if self.eligible else least

    # --- the controller's word

    def lead(self, state: PartitionState, now: float, *, answers_wish: bool = False) -> bool:
        """Leads under `state`; True when this begins a new leader epoch. Older words are ignored.

        The same state said again (by a new controller) settles no wish: that one may be on its way to being granted.
        """
        if self._stale(state):
            return False
        new_epoch = state.leader_epoch > self.leader_epoch
        if self.progress is None or new_epoch:
            self.epoch_start = self.log.log_end_offset
            self.log.epochs.assign(state.leader_epoch, self.epoch_start)
            self.progress = Progress(self.broker_id, state.replicas, state.isr, now)
        else:
            settled = answers_wish or state.partition_epoch > self.partition_epoch
            self.progress.confirm(state.replicas, state.isr, now, settled=settled)
        self._take(state)
        self.advance()
        return new_epoch

    def follow(self, state: PartitionState) -> bool:
        """Follows `state.leader` (or nobody); True when the leader or its epoch is another one than before."""
        if self._stale(state):
            return False
        moved = self.progress is not None or state.leader_epoch > self.leader_epoch or state.leader != self.leader
        self.progress = None
        self._take(state)
        return moved

    def _stale(self, state: PartitionState) -> bool:
        return (state.leader_epoch, state.partition_epoch) < (self.leader_epoch, self.partition_epoch)

    def _take(self, state: PartitionState) -> None:
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas = state.replicas
        self.copies = len(state.replicas)
        self.known_isr = state.isr
        self.eligible = state.elr

    # --- the data path

    def append(self, records: memoryview, acks: int, now_ms: int) -> AppendInfo:
        """Appends what a producer sent. With acks=all it is refused while too few replicas are in sync."""
        progress = self.progress
        if progress is None:
            raise self.not_leader()
        if acks == -1 and len(progress.isr) < self.min_isr:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self!r} has {len(progress.isr)} in-sync replicas, min.insync.replicas is {self.min_isr}",
            )
        info = self.log.append_as_leader(records, self.leader_epoch, now_ms)
        if not progress.followers:
            self.high_watermark = self.log.log_end_offset
        elif len(progress.isr) == 1:
            self.advance()  # nobody else has to fetch it first
        return info

    def acknowledged(self, required: int) -> KafkaError | bool:
        """Whether everything below `required` is on all in-sync replicas: yes, not yet, or an error to answer."""
        progress = self.progress
        if progress is None:
            return self.not_leader()
        if self.high_watermark < required:
            return False
        if len(progress.isr) < self.min_isr:
            return KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                f"{self!r} lost in-sync replicas while it was written; the record may or may not survive",
            )
        return True

    def read(self, offset: int, max_bytes: int, *, replica: bool, min_one_batch: bool = True) -> ReadInfo:
        """File ranges from `offset` on: up to the log end for a replica, up to the high watermark for a reader.

        A reader may be ahead of the high watermark: a new leader, or a follower, learns later than its clients how far
        everyone is. There is nothing to read for it yet; out of range is only what the log does not reach.
        """
        upto = self.log.log_end_offset if replica else self.high_watermark
        return self.log.read(offset, max_bytes, upto=upto, min_one_batch=min_one_batch)

    def check_epoch(self, current_leader_epoch: int, *, leader_only: bool = True) -> None:
        """Refuses a request that was meant for another leader epoch, or for the leader when this is none."""
        if current_leader_epoch != ANY_EPOCH and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, f"{self!r} is at leader epoch {self.leader_epoch}")
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"{self!r} is only at leader epoch {self.leader_epoch}")
        if leader_only and self.progress is None:
            raise self.not_leader()

    def diverging(self, last_fetched_epoch: int, offset: int) -> EpochEnd | None:
        """Where a follower's log parts from this one, when what it holds before `offset` is not what is here."""
        if last_fetched_epoch < 0:
            return None
        epoch, end = self.log.end_offset_for_epoch(last_fetched_epoch)
        if epoch < last_fetched_epoch or end < offset:
            return EpochEnd(epoch, end)
        return None

    def epoch_end(self, epoch: int) -> EpochEnd:
        return EpochEnd(*self.log.end_offset_for_epoch(epoch))

    # --- what followers report

    def follower_fetched(
        self, replica: int, offset: int, broker_epoch: int, now: float, log_start_offset: int = -1
    ) -> bool:
        """Notes how far a follower is; True when the high watermark moved.

        A fetch from an earlier registration of the follower is refused: what it held then may be gone. One from beyond
        the log's end says nothing about this log.
        """
        progress = self.progress
        if progress is None:
            raise self.not_leader()
        follower = progress.followers.get(replica)
        if follower is None:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"broker {replica} is no replica of {self!r}")
        if broker_epoch < follower.broker_epoch:
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"broker {replica} has registered again since: epoch {follower.broker_epoch}, not {broker_epoch}",
            )
        end = self.log.log_end_offset
        if offset > end:
            return False
        follower.broker_epoch = broker_epoch
        follower.log_start_offset = log_start_offset
        follower.fetched(offset, end, now)
        return self.advance()

    def follower_was_idle(self, place: Place) -> None:
        """Something moves after a time in which a follower had all there was and its fetches looked at other things.

        Each of them said that it still has everything; the last one counts.
        """
        progress, reader, want = self.progress, place.reader, place.want
        follower = progress.followers.get(reader.replica_id) if progress is not None else None
        if (
            follower is not None
            and follower.log_end_offset == want.offset
            and follower.broker_epoch == reader.broker_epoch
            and want.current_leader_epoch in (ANY_EPOCH, self.leader_epoch)
        ):
            follower.was_idle(reader.fetched_at)

    def may_join(self, replica: int) -> bool:
        """Whether a follower outside the in-sync set has come far enough to be wished into it."""
        progress = self.progress
        return progress is not None and progress.may_join(replica, self.high_watermark, self.epoch_start)

    def nearest(self, offset: int, rack_of: Callable[[int], str | None], rack: str) -> int | None:
        """The replica in the reader's rack that it should read `offset` from (KIP-392); None: from this leader.

        Only followers in sync are chosen, and only when they hold the offset; the one furthest ahead goes first.
        """
        progress = self.progress
        if progress is None or rack_of(self.broker_id) == rack:
            return None
        best, furthest = None, -1
        for member in progress.isr:
            follower = progress.followers.get(member)
            if follower is None or rack_of(member) != rack:
                continue
            if follower.log_start_offset <= offset <= follower.log_end_offset and follower.log_end_offset > furthest:
                best, furthest = member, follower.log_end_offset
        return best

    def advance(self) -> bool:
        """Moves the high watermark as far as the in-sync replicas allow; True when it moved."""
        progress = self.progress
        if progress is None:
            return False
        mark = progress.high_watermark(self.high_watermark, self.log.log_end_offset, self.min_isr)
        if mark > self.high_watermark:
            self.high_watermark = mark
            return True
        return False

    def not_leader(self) -> KafkaError:
        where = f"broker {self.leader} leads it" if self.leader != NO_LEADER else "nobody leads it"
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self!r} is not led here: {where}")
