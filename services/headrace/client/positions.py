"""Where a consumer is in each of its partitions, and what was fetched ahead. No I/O.

`position` is what the application has been given; `fetch_offset` is what to ask a broker for next; between them lies
the buffer. Every jump (seek, reset, new assignment) grows `version`, and whatever was asked for under an older version
is thrown away when it arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from headrace.client.decoding import decode, next_offset
from headrace.client.types import ConsumerRecord, TopicPartition


class PartitionPosition:
    """One assigned partition."""

    __slots__ = (
        "buffer", "fetch_offset", "high_watermark", "leader_epoch", "log_start", "not_before", "partition", "paused",
        "position", "records", "reset", "version",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.position: int | None = None
        self.fetch_offset = -1
        self.paused = False
        self.version = 0
        self.buffer: deque[bytes] = deque()
        self.records: deque[ConsumerRecord] = deque()
        """Decoded from the front of the buffer, not handed out yet."""
        self.high_watermark = -1
        self.log_start = -1
        self.leader_epoch = -1
        self.reset: int | None = None
        """A time to go to (-1 the end, -2 the start); None: as `auto.offset.reset` says."""
        self.not_before = 0.0

    @property
    def fetchable(self) -> bool:
        return self.position is not None and not self.paused

    def jump(self, offset: int | None, reset: int | None = None) -> int:
        """Go to an offset, or (None) to one that has to be found out. Returns the bytes that were thrown away."""
        self.position = offset
        self.fetch_offset = -1 if offset is None else offset
        self.reset = reset
        self.version += 1
        self.not_before = 0.0
        return self._clear()

    def _clear(self) -> int:
        freed = sum(map(len, self.buffer))
        self.buffer.clear()
        self.records.clear()
        return freed

    @property
    def lag(self) -> int | None:
        """How many records are after the position; None before the first answer."""
        if self.position is None or self.high_watermark < 0:
            return None
        return max(0, self.high_watermark - self.position)


class Positions:
    """Everything a consumer is assigned, with a bound on what is fetched ahead."""

    def __init__(self, max_buffered: int, check_crcs: bool = True) -> None:
        self._max_buffered = max_buffered
        self._check_crcs = check_crcs
        self._states: dict[TopicPartition, PartitionPosition] = {}
        self.buffered = 0
        """Bytes fetched and not handed out."""

    def __contains__(self, partition: object) -> bool:
        return partition in self._states

    def __getitem__(self, partition: TopicPartition) -> PartitionPosition:
        return self._states[partition]

    def __iter__(self) -> Iterator[PartitionPosition]:
        return iter(self._states.values())

    def get(self, partition: TopicPartition) -> PartitionPosition | None:
        return self._states.get(partition)

    @property
    def partitions(self) -> set[TopicPartition]:
        return set(self._states)

    @property
    def full(self) -> bool:
        """Whether reading on would break the bound."""
        return self.buffered >= self._max_buffered

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Exactly these from now on; those that stay keep their position and their buffer."""
        wanted = dict.fromkeys(partitions)
        for partition in [p for p in self._states if p not in wanted]:
            self.buffered -= self._states[partition].jump(None)
            del self._states[partition]
        for partition in wanted:
            if partition not in self._states:
                self._states[partition] = PartitionPosition(partition)

    def jump(self, partition: TopicPartition, offset: int | None, reset: int | None = None) -> None:
        self.buffered -= self._states[partition].jump(offset, reset)

    def arrived(self, state: PartitionPosition, version: int, data: bytes) -> bool:
        """Keeps what a broker sent; False when it was asked for before a jump, or does not follow."""
        if state.version != version or self._states.get(state.partition) is not state:
            return False
        end = next_offset(data)
        if end > state.fetch_offset:
            state.buffer.append(data)
            state.fetch_offset = end
            self.buffered += len(data)
        return True

    def take(self, most: int) -> list[tuple[PartitionPosition, list[ConsumerRecord]]]:
        """Up to `most` buffered records, partition by partition; those with data take turns at being first."""
        found: list[tuple[PartitionPosition, list[ConsumerRecord]]] = []
        for state in list(self._states.values()):
            if most <= 0:
                break
            if state.paused or not (state.records or state.buffer):
                continue
            taken = self._take_from(state, most)
            if taken:
                most -= len(taken)
                found.append((state, taken))
                # To the end of the line.
                self._states[state.partition] = self._states.pop(state.partition)
        return found

    def _take_from(self, state: PartitionPosition, most: int) -> list[ConsumerRecord]:
        taken: list[ConsumerRecord] = []
        topic, partition = state.partition
        while len(taken) < most:
            if not state.records:
                if not state.buffer:
                    break
                data = state.buffer[0]
                records = decode(data, topic, partition, state.position or 0, self._check_crcs)
                state.buffer.popleft()
                self.buffered -= len(data)
                if not records:
                    # Nothing for the application in it (control batches): the position moves all the same.
                    state.position = max(state.position or 0, next_offset(data))
                    continue
                if not taken and len(records) <= most:
                    taken = records
                    continue
                state.records.extend(records)
            room = most - len(taken)
            if len(state.records) <= room:
                taken.extend(state.records)
                state.records.clear()
            else:
                taken.extend(state.records.popleft() for _ in range(room))
        return taken
