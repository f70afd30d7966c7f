"""A segment: a stretch of the log in one file, with its two sparse indexes beside it.

`<base offset>.log` holds record batches one after the other, nothing else; the base offset is in its name (20 digits)
and is not above the first batch's. All segments but the last are sealed: they never grow, their indexes are complete
and their files may be closed at any time. `size` is the length that holds whole batches: bytes after it are what a
failed write left.

An index entry is made for a batch when the bytes since the last entry, with the batch, would pass
`index.interval.bytes`. So from any entry to the next there are at most that many bytes, or one single batch, and a
lookup reads no more than that (Kafka, which leaves the batch out of the sum, reads up to one batch more).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import NamedTuple

from headrace.records.batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, Batch
from headrace.records.errors import CorruptMessage
from headrace.storage.files import Data, File, FileRange, Files
from headrace.storage.index import IndexCorrupt, OffsetIndex
from headrace.storage.time_index import TimeIndex, TimestampOffset

LOG, INDEX, TIME_INDEX, SNAPSHOT, TXN_INDEX = ".log", ".index", ".timeindex", ".snapshot", ".txnindex"
DELETED, CLEANED, SWAP = ".deleted", ".cleaned", ".swap"
MAX_RELATIVE_OFFSET = 2**31 - 1
MAX_POSITION = 2**31 - 1
_WALK_BYTES = 64 * 1024
_logger = logging.getLogger(__name__)


def file_name(base_offset: int, suffix: str) -> str:
    """
    >>> file_name(42, LOG)
    '00000000000000000042.log'
    """
    return f"{base_offset:020d}{suffix}"


class Limits(NamedTuple):
    """What a segment needs of a log's configuration."""

    index_interval_bytes: int
    index_bytes: int


class Segment:
    """See the module's docstring."""

    __slots__ = (
        "_bytes_since_index",
        "_first_timestamp",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_mending",
        "base_offset",
        "full",
        "interval",
        "log",
        "offsets",
        "size",
        "times",
    )

    def __init__(
        self, files: Files, folder: str, base_offset: int, limits: Limits, *, size: int | None, suffix: str = ""
    ) -> None:
        """An existing segment of `size` bytes, or a new one with None; nothing is read or created yet."""
        fresh = size is None
        stem = os.path.join(folder, f"{base_offset:020d}")
        self.base_offset = base_offset
        self.interval = limits.index_interval_bytes
        self.log: File = files.open(f"{stem}{LOG}{suffix}")
        self.offsets = OffsetIndex(files.open(f"{stem}{INDEX}{suffix}"), base_offset, limits.index_bytes, fresh=fresh)
        self.times = TimeIndex(files.open(f"{stem}{TIME_INDEX}{suffix}"), base_offset, limits.index_bytes, fresh=fresh)
        self.size = size or 0
        self._bytes_since_index = 0 if fresh else -1
        self._max_timestamp: int | None = -1 if fresh else None
        self._max_timestamp_offset = base_offset
        self._first_timestamp: int | None = None
        self.full = False
        """Whether an index has no room left: time for a new segment."""
        self._mending = False
        """Whether the indexes were made anew for a look-up that has not succeeded yet: twice would not help."""

    # -- writing -------------------------------------------------------------------------------------------------

    def append(self, data: Data) -> None:
        """Write whole batches at the end; `note` each of them afterwards. Nothing stays when it fails."""
        try:
            self.log.append(data)
        except OSError:
            self.log.truncate(self.size)
            raise
        self.size += len(data)

    def note(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Index a batch that was written at `position`."""
        if max_timestamp > (self.largest()[0] if self._max_timestamp is None else self._max_timestamp):
            self._max_timestamp = max_timestamp
            self._max_timestamp_offset = last_offset
        since = self._bytes_since_index
        if position == 0:
            self._first_timestamp = max_timestamp
            since = 0
        elif since < 0:
            since = position - self.offsets.last()[1]
            self._unseal_times()
        if since + size > self.interval and position:
            full = self.offsets.append(last_offset, position)
            if self.times.maybe_append(self._max_timestamp or 0, self._max_timestamp_offset) or full:
                self.full = True
            since = 0
        self._bytes_since_index = since + size

    def save_indexes(self) -> None:
        """Write the indexes out, with the segment's largest timestamp as the last entry of the time index."""
        if self._max_timestamp is not None and self.size:
            self.times.maybe_append(self._max_timestamp, self._max_timestamp_offset)
        self.offsets.save()
        self.times.save()

    def seal(self) -> None:
        """No more batches: write the indexes out and let go of their memory."""
        self.save_indexes()
        self.offsets.seal()
        self.times.seal()

    def _unseal_times(self) -> None:
        """Forget the entries of the time index that have none of the offset index beside or after them.

        A stop or a cut left them. With them the time index would grow with every restart, and recovery takes indexes of
        such lengths for damaged.
        """
        if len(self.offsets):
            self.times.truncate_to(self.offsets.last()[0] + 1)
        else:
            self.times.cut(0)

    def sync(self) -> None:
        """Make a sealed segment durable, indexes and all. Safe from a worker thread."""
        for part in self.parts():
            part.sync()

    def truncate_to(self, offset: int) -> None:
        """Cut the batch with `offset` and all after it."""
        position = self.locate(offset)
        largest = self.largest()
        self.offsets.truncate_to(offset)
        self.times.truncate_to(offset)
        self._unseal_times()
        if position < self.size:
            self.log.truncate(position)
            self.size = position
        self._bytes_since_index = position - self.offsets.last()[1]
        self.full = False
        if largest.timestamp >= 0 and largest.offset < offset:
            return  # it is still there
        last = self.times.last()
        for batch in self.headers(self.offsets.lookup(max(last.offset, self.base_offset))[1]):
            if batch.max_timestamp > last.timestamp:
                last = TimestampOffset(batch.max_timestamp, batch.last_offset)
        self._max_timestamp, self._max_timestamp_offset = last

    def rebuild_indexes(self) -> None:
        """Make both indexes anew from the batch headers, up to the first one that is none."""
        self.reset()
        try:
            for batch in self.headers():
                self.note(batch.position, batch.size, batch.last_offset, batch.max_timestamp)
        except CorruptMessage as error:
            _logger.error("%s; the index ends before it", error)

    def reset(self) -> None:
        """Forget the indexes' entries, to `note` every batch again."""
        self.offsets.reset()
        self.times.reset()
        self._bytes_since_index = 0
        self._max_timestamp = -1
        self._max_timestamp_offset = self.base_offset
        self._first_timestamp = None
        self.full = False

    # -- reading -------------------------------------------------------------------------------------------------

    def headers(self, position: int = 0, chunk: int = _WALK_BYTES) -> Iterator[Batch]:
        """The batch headers from `position` (a batch's beginning) on, with their positions in the file.

        `chunk` bytes are read first; a smaller one than the default grows again from a single header on.
        """
        size = self.size
        chunk = max(chunk, HEADER_SIZE)
        grown = chunk if chunk >= _WALK_BYTES else 0
        while position < size:
            data = self.log.pread(min(chunk, size - position), position)
            at = 0
            while at + HEADER_SIZE <= len(data):
                base_offset, length, epoch, magic, *rest = HEADER.unpack_from(data, at)
                batch_size = length + LOG_OVERHEAD
                if magic != 2 or batch_size < HEADER_SIZE or position + at + batch_size > size:
                    raise CorruptMessage(f"{self.log.path}: there is no batch at {position + at}")
                yield Batch(position + at, batch_size, base_offset, epoch, magic, *rest)
                at += batch_size
            if at == 0:
                raise CorruptMessage(f"{self.log.path}: there is no batch at {position}")
            position += at
            chunk = min(max(grown * 2, HEADER_SIZE), _WALK_BYTES)
            grown = chunk

    def locate(self, offset: int) -> int:
        """Where the batch begins that holds `offset`, or the first one after it; the segment's size when none does.

        The index only says where to begin. What it leads to is looked at, so that one rotten bit in it is noticed.
        """
        entry_offset, position, bound = self.offsets.lookup_range(offset, self.size)
        gap = bound - position
        try:
            if position < 0 or gap < 0 or bound > self.size or position == self.size > 0:
                raise CorruptMessage(f"{self.offsets.file.path}: the entries around {offset} are outside of the log")
            # Either the gap is small and read at once, or it is one batch, of which the header is enough.
            read_ahead = gap if gap <= self.interval and entry_offset != offset else 0
            begin = position
            for batch in self.headers(position, read_ahead or HEADER_SIZE):
                if batch.position == begin > 0:
                    self._check_landing(batch, entry_offset)
                if batch.last_offset >= offset:
                    return batch.position
                if batch.last_offset + 1 == offset:
                    return batch.position + batch.size  # where readers ask mostly: nothing else can be there
                if batch.position >= bound:
                    raise CorruptMessage(f"{self.offsets.file.path}: {offset} is after {bound}")
            return self.size
        except CorruptMessage as error:
            self._mend(error)
            position = self.locate(offset)
            self._mending = False
            return position

    def end_of(self, position: int, max_bytes: int, limit: int, *, at_least_one: bool) -> int:
        """The end of as many whole batches from `position` on as fit `max_bytes` and end by `limit`."""
        if position + max_bytes >= limit:
            return limit
        entry_offset, end = self.offsets.lookup_position(position + max_bytes)
        if end > position:
            try:
                self._check_landing(next(self.headers(end, HEADER_SIZE)), entry_offset)
                return end
            except CorruptMessage as error:
                self._mend(error)
                end = self.end_of(position, max_bytes, limit, at_least_one=at_least_one)
                self._mending = False
                return end
        end = position
        for batch in self.headers(position, min(max_bytes + HEADER_SIZE, self.interval)):
            after = batch.position + batch.size
            if after > position + max_bytes:
                return after if at_least_one and end == position else end
            end = after
        return end

    def _check_landing(self, batch: Batch, entry_offset: int) -> None:
        """Raise `CorruptMessage` unless an entry for `entry_offset` may have led to this batch.

        Kafka's own files have one entry for several batches that came together, with the last offset of them all.
        """
        if not self.base_offset <= batch.base_offset <= batch.last_offset <= entry_offset:
            raise CorruptMessage(f"{self.offsets.file.path}: {entry_offset} is not at {batch.position}")

    def _mend(self, error: CorruptMessage) -> None:
        """Make the indexes anew: nine times of ten they led astray, and the log is sound. When what was looked for is
        not found then either, the log is not."""
        if self._mending:
            raise error
        self._mending = True
        _logger.warning("%s; the indexes are made anew", error)
        sealed = self.offsets.tail is None
        self.rebuild_indexes()
        if sealed:
            self.seal()
            self._bytes_since_index = -1

    def range(self, position: int, end: int) -> FileRange:
        return FileRange(self.log.handle(), position, end - position)

    def largest(self) -> TimestampOffset:
        """The largest timestamp in the segment and its offset; (-1, base offset) when there is none.

        The time index's last entry, written when the segment was sealed or closed.
        """
        if self._max_timestamp is None:
            last = self.times.last()
            try:
                self._check_time(last)
                self._max_timestamp, self._max_timestamp_offset = last
            except CorruptMessage as error:
                self._mend(error)
                self._mending = False
                return self.largest()
        return TimestampOffset(self._max_timestamp, self._max_timestamp_offset)

    def _check_time(self, entry: TimestampOffset) -> int:
        """Where the batch begins that an entry of the time index names; `CorruptMessage` if its time is another."""
        if entry == (-1, self.base_offset):
            return 0
        batch = next(self.headers(self.locate(entry.offset), HEADER_SIZE), None)
        if batch is None or batch.max_timestamp != entry.timestamp:
            raise CorruptMessage(f"{self.times.file.path}: {entry.offset} is not of {entry.timestamp}")
        return batch.position

    def first_timestamp(self) -> int:
        """The largest timestamp of the first batch, from which `segment.ms` counts; -1 when the segment is empty."""
        if self._first_timestamp is None:
            first = next(self.headers(0, HEADER_SIZE), None)
            if first is None:
                return -1
            self._first_timestamp = first.max_timestamp
        return self._first_timestamp

    def find_timestamp(self, timestamp: int, from_offset: int) -> Batch | None:
        """The first batch after `from_offset` that holds a timestamp of at least `timestamp`."""
        if self.largest().timestamp < timestamp:
            return None
        below = self.times.lookup(timestamp)
        try:
            position = self._check_time(below)
        except CorruptMessage as error:
            self._mend(error)
            found = self.find_timestamp(timestamp, from_offset)
            self._mending = False
            return found
        if from_offset > below.offset:
            position = self.locate(from_offset)
        for batch in self.headers(position, HEADER_SIZE):
            if batch.max_timestamp >= timestamp and batch.last_offset >= from_offset:
                return batch
        return None

    def read_batch(self, batch: Batch) -> bytes:
        return self.log.pread(batch.size, batch.position)

    # -- files ---------------------------------------------------------------------------------------------------

    def parts(self) -> tuple[File, File, File]:
        return self.log, self.offsets.file, self.times.file

    def check_indexes(self) -> None:
        """Raise `IndexCorrupt` if an index is missing or cannot be right. Reads no log data."""
        try:
            self.offsets.check(self.size)
            self.times.check()
        except FileNotFoundError as error:
            raise IndexCorrupt(f"{error.filename} is missing") from None
        if self.size and not len(self.times):
            raise IndexCorrupt(f"{self.times.file.path} is empty, its log is not")

    def close(self) -> None:
        for part in self.parts():
            part.close()

    def rename(self, old_suffix: str, new_suffix: str) -> None:
        """Change what the names of the files end with, as in `.deleted`; a part that is not there is skipped."""
        for part in self.parts():
            try:
                part.rename(part.path.removesuffix(old_suffix) + new_suffix)
            except FileNotFoundError:
                part.path = part.path.removesuffix(old_suffix) + new_suffix

    def remove(self) -> None:
        for part in self.parts():
            part.remove()
