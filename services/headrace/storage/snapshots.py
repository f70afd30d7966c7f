"""The snapshots of the producers' state in a partition: taking them, and bringing the state back from them and the log.

A `.snapshot` file is written for each segment. In between, the last few states are kept in memory (`mark`): recovery
reads the active segment in any case, but a running follower that is told to cut its log must not read a segment of
hundreds of thousands of batches for it, with all its other partitions waiting.
"""

from __future__ import annotations

import logging
import os

from headrace.records.batch import NO_PRODUCER_ID
from headrace.records.errors import CorruptMessage
from headrace.storage.files import File, Files
from headrace.storage.producer_state import ProducerState, SnapshotCorrupt
from headrace.storage.segment import SNAPSHOT, file_name
from headrace.storage.segments import Segments

MARK_BATCHES = 4096
"""Batches from one state in memory to the next, or four for each producer: making one costs as much as they do."""
_KEPT_MARKS = 4
_logger = logging.getLogger(__name__)


class Snapshots:
    """Which snapshots are there. One is kept for each segment's base offset, and the newest."""

    __slots__ = ("_files", "_folder", "_marks", "_unsynced", "offsets")

    def __init__(self, files: Files, folder: str, offsets: list[int]) -> None:
        self._files = files
        self._folder = folder
        self.offsets = offsets
        self._unsynced: list[File] = []
        self._marks: list[tuple[int, bytes]] = []

    def _path(self, offset: int) -> str:
        return os.path.join(self._folder, file_name(offset, SNAPSHOT))

    def take(self, state: ProducerState, offset: int) -> None:
        """Write the state of the log up to `offset`; the next flush makes it durable."""
        file = self._files.open(self._path(offset))
        file.truncate(0)
        file.append(state.encode())
        file.close()
        if offset not in self.offsets:
            self.offsets.append(offset)
        self._unsynced.append(file)

    def mark(self, state: ProducerState, offset: int, batches: int) -> bool:
        """Keep the state of the log up to `offset` in memory, if that is due `batches` after the last one."""
        if batches < max(MARK_BATCHES, 4 * len(state.producers)):
            return False
        self._marks.append((offset, state.encode()))
        del self._marks[:-_KEPT_MARKS]
        return True

    def take_unsynced(self) -> list[File]:
        """The files a flush has to make durable."""
        files, self._unsynced = self._unsynced, []
        return files

    def remove(self, offset: int) -> None:
        if offset in self.offsets:
            self.offsets.remove(offset)
            self._files.remove(self._path(offset))

    def remove_all(self) -> None:
        self._marks.clear()
        for offset in sorted(self.offsets):
            self.remove(offset)

    def remove_after(self, offset: int) -> None:
        while self._marks and self._marks[-1][0] > offset:
            self._marks.pop()
        for newer in sorted(o for o in self.offsets if o > offset):
            self.remove(newer)

    def remove_stray(self, segments: Segments) -> None:
        """Remove snapshots that belong to no segment any more, but keep the newest."""
        kept = {segment.base_offset for segment in segments}
        for stray in sorted(set(self.offsets) - kept - {max(self.offsets, default=0)}):
            self.remove(stray)

    def load(self, upto: int) -> tuple[ProducerState, int]:
        """The newest usable state not after `upto`, and its offset; (nothing, 0) when there is none."""
        marked, data = max((mark for mark in self._marks if mark[0] <= upto), default=(-1, b""))
        for offset in sorted((o for o in self.offsets if marked < o <= upto), reverse=True):
            try:
                return ProducerState.decode(self._files.read(self._path(offset)), offset), offset
            except (SnapshotCorrupt, FileNotFoundError) as error:
                _logger.warning("%s cannot be used: %s", self._path(offset), error)
                self.remove(offset)
        return (ProducerState.decode(data, marked), marked) if data else (ProducerState(), 0)

    def rewind(self, state: ProducerState, segments: Segments, end: int) -> None:
        """Make `state` that of the log cut at `end`, from what it remembers; what it does not is read."""
        unsure = state.rewind(end)
        self.remove_after(end)
        if unsure:
            read = self.restore(segments, segments.first.base_offset, end).producers
            for producer_id in unsure:
                if producer_id in read:
                    state.producers[producer_id] = read[producer_id]
                else:
                    del state.producers[producer_id]

    def restore(self, segments: Segments, start: int, end: int) -> ProducerState:
        """The state of the log up to `end`, from the nearest snapshot and the batch headers after it.

        Snapshots after `end` are removed: the log was cut, they are not true any more.
        """
        self.remove_after(end)
        state, offset = self.load(end)
        offset = max(offset, start)
        segment = segments.floor(offset) if offset < end else None
        try:
            while segment is not None and segment.base_offset < end:
                for batch in segment.headers(segment.locate(offset)):
                    if batch.base_offset >= end:
                        break
                    if batch.producer_id != NO_PRODUCER_ID:
                        state.update(batch, batch.base_offset)
                segment = segments.after(segment)
        except CorruptMessage as error:
            _logger.error("%s; producers that wrote only after it are not known", error)
        return state
