"""Opening a log: after a clean stop from names, sizes and small files; after an unclean one from the bytes themselves.

Clean: the log's end is the recovery point of the checkpoint, and a snapshot of that name says the same; nothing of the
log is read, not even its last header.

Unclean: every segment that reaches up to the recovery point, and the last one in any case, is read from its beginning.
Each batch must be whole, have the right checksum and a higher offset than the one before. At the first that fails the
log ends. Usually that is a write torn by the crash, and it is cut off. If an intact batch lies behind it, or another
segment, the disk lost something in the middle: a log is a prefix or it is nothing, so what follows is not served, but
it is set aside (`*.damaged`, never read or removed again) and not destroyed. On the way indexes, leader epochs and the
producers' state are made anew.

Also here: what a crash in a deletion or in a swap of cleaned segments leaves is finished or undone (see `Log`).
May run on a worker thread, one log at a time; the log belongs to whoever uses it afterwards.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from sys import intern

from crc32c import crc32c

from headrace.records.batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, NO_PRODUCER_ID, Batch
from headrace.storage.checkpoint import CheckpointCorrupt
from headrace.storage.config import LogConfig
from headrace.storage.files import Files
from headrace.storage.index import IndexCorrupt
from headrace.storage.leader_epoch import FILE_NAME as LEADER_EPOCHS
from headrace.storage.leader_epoch import LeaderEpochs
from headrace.storage.log import Log
from headrace.storage.producer_state import ProducerState
from headrace.storage.segment import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    Limits,
    Segment,
    file_name,
)
from headrace.storage.segments import Segments
from headrace.storage.snapshots import MARK_BATCHES, Snapshots

DAMAGED = ".damaged"
_CHUNK = 1 << 19
_CRC_FROM = 21
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Known:
    """What the log dir's checkpoints say of a log, and whether the process that wrote them stopped cleanly."""

    recovery_point: int = 0
    log_start_offset: int = 0
    clean: bool = False


def open_log(files: Files, folder: str, config: LogConfig, known: Known | None = None, roll_jitter: float = 0.0) -> Log:
    """Open the log in `folder`, or begin one. Raises OSError when the disk fails."""
    known = known or Known()
    folder = intern(folder)  # as its files do: then there is one
    files.mkdir(folder)
    names = _finish_swaps(files, folder, _drop_leftovers(files, folder, files.scan(folder)))
    loader = _Loader(files, folder, config, names)
    if not loader.segments:
        return loader.begin(known.log_start_offset, roll_jitter)
    return loader.load(known, roll_jitter)


def _drop_leftovers(files: Files, folder: str, names: dict[str, int]) -> dict[str, int]:
    """Remove files on their way out, and a replacement of segments that had not come to `.swap` completely."""
    unfinished = [_base_offset(name) for name in names if name.endswith(CLEANED)]
    for name in list(names):
        undone = name.endswith(SWAP) and unfinished and _base_offset(name) >= min(unfinished)
        if undone or name.endswith((DELETED, CLEANED, ".tmp")):
            files.remove(os.path.join(folder, name))
            del names[name]
    return names


def _finish_swaps(files: Files, folder: str, names: dict[str, int]) -> dict[str, int]:
    """Let segments that were about to be swapped in take the place of those they were made from."""
    swaps = [name for name in names if name.endswith(SWAP)]
    if not swaps:
        return names
    for name in swaps:
        if name.endswith(LOG + SWAP):
            base = _base_offset(name)
            segment = Segment(files, folder, base, Limits(0, 0), size=names[name], suffix=SWAP)
            end = max((batch.last_offset for batch in segment.headers()), default=base) + 1
            for old in [n for n in names if n.endswith(LOG) and base <= _base_offset(n) < end]:
                for suffix in (LOG, INDEX, TIME_INDEX, TXN_INDEX):
                    files.remove(os.path.join(folder, file_name(_base_offset(old), suffix)))
            segment.close()
    for name in swaps:
        files.rename(os.path.join(folder, name), os.path.join(folder, name.removesuffix(SWAP)))
    files.sync_dir(folder)
    return files.scan(folder)


def _base_offset(name: str) -> int:
    return int(name.split(".", 1)[0])


def _offsets_of(names: dict[str, int], suffix: str) -> list[int]:
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(int(stem) for stem in stems if stem.isdigit())


class _Loader:
    """One opening of one log."""

    def __init__(self, files: Files, folder: str, config: LogConfig, names: dict[str, int]) -> None:
        self.files = files
        self.folder = folder
        self.config = config
        self.names = names
        limits = Limits(config.index_interval_bytes, config.segment_index_bytes)
        self.segments = [
            Segment(files, folder, base, limits, size=names[file_name(base, LOG)]) for base in _offsets_of(names, LOG)
        ]
        self.snapshots = Snapshots(files, folder, _offsets_of(names, SNAPSHOT))
        self.unsynced: list[Segment] = []
        """Sealed after the last flush perhaps: its records are durable, its indexes may not be."""
        self.cut = False
        """Whether something that was written is not in the log any more."""
        self.epochs_damaged = False
        self.epochs = self._load_epochs()

    def _load_epochs(self) -> LeaderEpochs:
        path = os.path.join(self.folder, LEADER_EPOCHS)
        try:
            return LeaderEpochs.load(self.files, path, present=LEADER_EPOCHS in self.names)
        except CheckpointCorrupt as error:
            _logger.warning("%s; the epochs are read from the log", error)
            self.epochs_damaged = True
            return LeaderEpochs(self.files, path)

    def begin(self, start_offset: int, roll_jitter: float) -> Log:
        """A log without segments: a new one, or one that lost all it had."""
        limits = Limits(self.config.index_interval_bytes, self.config.segment_index_bytes)
        segment = Segment(self.files, self.folder, start_offset, limits, size=None)
        segment.log.truncate(0)
        self.epochs.clear()
        self.snapshots.remove_all()
        return self._log([segment], ProducerState(), start_offset, start_offset, start_offset, roll_jitter)

    def load(self, known: Known, roll_jitter: float) -> Log:
        self._remove_orphans()
        end = self._clean_end(known.recovery_point) if known.clean else None
        if end is not None:
            self._mend_indexes(self.segments, deep=False)
            state, taken_at = self.snapshots.load(end)
            if taken_at != end and end:
                state = self.snapshots.restore(Segments(self.segments), known.log_start_offset, end)
            if self.epochs_damaged:
                self._read_epochs()
        else:
            state, end = self._recover(known.recovery_point)
        start = max(known.log_start_offset, self.segments[0].base_offset)
        if start > end:
            _logger.error("%s: the log ends at %d, before its start %d: it begins anew there", self.folder, end, start)
            for segment in reversed(self.segments):
                segment.remove()
            self.cut = True
            return self.begin(start, roll_jitter)
        self.epochs.truncate_from(end)
        self.epochs.begin_at(start)
        return self._log(self.segments, state, start, end, min(known.recovery_point, end), roll_jitter)

    def _log(
        self, segments: list[Segment], state: ProducerState, start: int, end: int, recovery_point: int, jitter: float
    ) -> Log:
        found = Segments(segments)
        self.snapshots.remove_stray(found)
        log = Log(
            self.files,
            self.folder,
            self.config,
            found,
            self.epochs,
            state,
            self.snapshots,
            log_start_offset=start,
            log_end_offset=end,
            recovery_point=recovery_point,
            roll_jitter=jitter,
        )
        log.sync_with_next_flush(self.unsynced)
        log.cut_by_recovery = self.cut
        return log

    def _remove_orphans(self) -> None:
        """Remove indexes whose log is gone: a deletion was cut short."""
        for suffix in (INDEX, TIME_INDEX, TXN_INDEX):
            for base in _offsets_of(self.names, suffix):
                if file_name(base, LOG) not in self.names:
                    self.files.remove(os.path.join(self.folder, file_name(base, suffix)))

    # -- clean ---------------------------------------------------------------------------------------------------

    def _clean_end(self, recovery_point: int) -> int | None:
        """Where a cleanly closed log ends; None when its files do not say so, and it has to be read."""
        active = self.segments[-1]
        if not active.size:
            return active.base_offset
        if recovery_point in self.snapshots.offsets and recovery_point > active.base_offset:
            return recovery_point
        return None

    def _mend_indexes(self, segments: list[Segment], *, deep: bool) -> None:
        """Make anew what is missing or cannot be right: by the files' sizes, and (`deep`) by their last entries."""
        for segment in segments:
            wrong = self._wrong_sizes(segment)
            if wrong is None and deep:
                try:
                    segment.check_indexes()
                except IndexCorrupt as error:
                    wrong = str(error)
            if wrong is not None:
                _logger.warning("%s: %s; the indexes are made anew", segment.log.path, wrong)
                segment.rebuild_indexes()
                if segment is not self.segments[-1]:
                    segment.seal()
                    segment.sync()

    def _wrong_sizes(self, segment: Segment) -> str | None:
        index = self.names.get(file_name(segment.base_offset, INDEX))
        time_index = self.names.get(file_name(segment.base_offset, TIME_INDEX))
        if index is None or time_index is None:
            return "an index is missing"
        # Every entry of the time index came with one of the offset index, but for the last, which sealing adds.
        if index % 8 or time_index % 12 or (segment.size and not time_index) or time_index // 12 > index // 8 + 1:
            return f"indexes of {index} and {time_index} bytes cannot be whole"
        return None

    def _read_epochs(self) -> None:
        for segment in self.segments:
            for batch in segment.headers():
                self.epochs.assign(batch.leader_epoch, batch.base_offset)

    # -- unclean -------------------------------------------------------------------------------------------------

    def _recover(self, recovery_point: int) -> tuple[ProducerState, int]:
        """Read what may not have come to disk. Returns the producers' state and the log's end."""
        first = len(self.segments) - 1
        # Also the one that ends just there: it may have been cut to that end, and not for good.
        while first > 0 and self.segments[first].base_offset >= recovery_point:
            first -= 1
        if self.epochs_damaged:
            first = 0
        trusted = self.segments[:first]
        self.unsynced = trusted[-1:]
        self._mend_indexes(trusted, deep=True)
        begin = self.segments[first].base_offset
        state = self.snapshots.restore(Segments(self.segments), self.segments[0].base_offset, begin)
        self.epochs.truncate_from(begin)

        met = 0

        def meet(batch: Batch) -> None:
            nonlocal met
            met += 1
            if met >= MARK_BATCHES and self.snapshots.mark(state, batch.base_offset, met):
                met = 0
            if batch.leader_epoch > self.epochs.latest:
                self.epochs.assign(batch.leader_epoch, batch.base_offset)
            if batch.producer_id != NO_PRODUCER_ID:
                state.update(batch, batch.base_offset)

        end = begin
        for number in range(first, len(self.segments)):
            segment = self.segments[number]
            if (
                number > first
                and end != segment.base_offset
                and not (self.config.compact and end < segment.base_offset)
            ):
                _logger.error("%s: the log ends at %d, before this segment", segment.log.path, end)
                self._set_aside(number)
                break
            end, damaged = recover_segment(self.files, segment, meet)
            self.cut |= damaged
            end = max(end, segment.base_offset)
            if number < len(self.segments) - 1:
                if damaged:
                    self._set_aside(number + 1)
                    break
                segment.seal()
                self.unsynced.append(segment)
        self.snapshots.remove_after(end)
        return state, end

    def _set_aside(self, number: int) -> None:
        """Keep segments that cannot be served, under names that nothing reads."""
        self.cut = True
        for segment in self.segments[number:]:
            _logger.error("%s is set aside as %s", segment.log.path, segment.log.path + DAMAGED)
            segment.log.rename(segment.log.path + DAMAGED)
            segment.offsets.file.remove()
            segment.times.file.remove()
        del self.segments[number:]


def recover_segment(files: Files, segment: Segment, meet: Callable[[Batch], None]) -> tuple[int, bool]:
    """Read a whole segment, cut it after its last valid batch and make its indexes anew.

    `meet` is called with each batch of a producer with an id, and where the leader epoch changes. Returns the offset
    after the last one (the base offset when there is none) and whether anything had to be cut.
    """
    segment.reset()
    position, end, size = 0, segment.base_offset, segment.size
    buffer = memoryview(bytearray(min(_CHUNK, size)))
    last_epoch = None
    broken = False
    unpack, note = HEADER.unpack_from, segment.note
    while position < size and not broken:
        there = segment.log.pread_into(buffer, position)
        at, needed = 0, HEADER_SIZE
        while at + HEADER_SIZE <= there:
            base, length, epoch, magic, crc, _, delta, _, max_timestamp, producer_id, _, _, _ = unpack(buffer, at)
            needed = length + LOG_OVERHEAD
            begin = position + at
            if magic != 2 or needed < HEADER_SIZE or base < end or delta < 0 or begin + needed > size:
                broken = True
                break
            after = at + needed
            if after > there:
                break
            if crc32c(buffer[at + _CRC_FROM : after]) != crc:
                broken = True
                break
            end = base + delta + 1
            note(begin, needed, end - 1, max_timestamp)
            if producer_id != NO_PRODUCER_ID or epoch != last_epoch:
                header = unpack(buffer, at)
                meet(Batch(begin, needed, header[0], *header[2:]))
                last_epoch = epoch
            at = after
        position += at
        if at == 0 and not broken:
            # Either a batch that the buffer is too small for, or the end of the file in the middle of a header.
            broken = there < len(buffer)
            buffer = memoryview(bytearray(max(needed, _CHUNK)))
    if position == size:
        return end, False
    _logger.warning("%s: no valid batch at %d, %d bytes are cut off", segment.log.path, position, size - position)
    _keep_damage(files, segment, position, end)
    segment.size = position
    segment.log.truncate(position)
    segment.log.sync()
    return end, True


def _keep_damage(files: Files, segment: Segment, position: int, end: int) -> None:
    """Copy what is about to be cut off if an intact batch lies in it: then it is not a torn write but damage."""
    header = segment.log.pread(HEADER_SIZE, position)
    if len(header) < HEADER_SIZE:
        return
    following = position + HEADER.unpack(header)[1] + LOG_OVERHEAD
    if not position < following < segment.size:
        return
    header = segment.log.pread(HEADER_SIZE, following)
    if len(header) < HEADER_SIZE:
        return
    base, length, _, magic, crc, *_ = HEADER.unpack(header)
    batch = segment.log.pread(max(length, 0) + LOG_OVERHEAD, following)
    if magic != 2 or base < end or crc32c(memoryview(batch)[_CRC_FROM:]) != crc:
        return
    kept = files.open(segment.log.path + DAMAGED)
    kept.truncate(0)
    for at in range(position, segment.size, _CHUNK):
        kept.append(segment.log.pread(min(_CHUNK, segment.size - at), at))
    kept.sync()
    kept.close()
    _logger.error("%s holds what was cut off: there are intact batches in it", kept.path)
