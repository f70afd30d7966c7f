"""Which leader epoch began at which offset: what followers need to find where their log leaves the leader's.

File `leader-epoch-checkpoint` in the partition's folder, format of `checkpoint`, entries `<epoch> <start offset>`.
It is written when a log is flushed, rolled, emptied or closed, not at each new epoch or cut: what began after the
recovery point is read back from the batches by recovery, so the file has to be right only below it.
"""

from __future__ import annotations

from bisect import bisect_right

from headrace.storage.checkpoint import CheckpointCorrupt, parse_lines, render_lines, replace_file
from headrace.storage.files import Files

FILE_NAME = "leader-epoch-checkpoint"
UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class LeaderEpochs:
    """The cache: epochs and their start offsets, both growing."""

    __slots__ = ("_dirty", "_files", "_starts", "epochs", "latest", "path")

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self.path = path
        self.epochs: list[int] = []
        self._starts: list[int] = []
        self._dirty = False
        self.latest = UNDEFINED_EPOCH
        """The newest epoch, or -1."""

    @classmethod
    def load(cls, files: Files, path: str, *, present: bool = True) -> LeaderEpochs:
        """From the file. `present` spares the attempt where the caller has listed the folder."""
        cache = cls(files, path)
        if not present:
            return cache
        try:
            for epoch, start in parse_lines(path, files.read(path)):
                cache.assign(int(epoch), int(start))
        except FileNotFoundError:
            return cache
        except CheckpointCorrupt:
            raise
        except ValueError:
            raise CheckpointCorrupt(f"{path}: an entry is not '<epoch> <start offset>'") from None
        cache._dirty = False
        return cache

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self.epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record that `epoch` writes from `start_offset` on. Nothing happens if it is not newer than the latest."""
        if epoch < 0 or (self.epochs and epoch <= self.epochs[-1]):
            return
        while self._starts and self._starts[-1] >= start_offset:
            self._starts.pop()
            self.epochs.pop()
        self.epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest = epoch
        self._dirty = True

    def epoch_at(self, offset: int) -> int:
        """The epoch that wrote `offset`, or -1."""
        found = bisect_right(self._starts, offset)
        return self.epochs[found - 1] if found else UNDEFINED_EPOCH

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(the largest known epoch not above `epoch`, where it ended); (-1, -1) when that is not known.

        The latest epoch ends at the log's end. An epoch older than all known ones "ends" where the first known one
        begins, under its own number: a follower with only such an epoch shares nothing after that point.
        """
        if epoch == UNDEFINED_EPOCH or not self.epochs or epoch > self.epochs[-1]:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self.epochs[-1]:
            return epoch, log_end_offset
        after = bisect_right(self.epochs, epoch)
        if after == 0:
            return epoch, self._starts[0]
        return self.epochs[after - 1], self._starts[after]

    def truncate_from(self, offset: int) -> None:
        """Forget epochs that began at or after `offset`: the log ends there now."""
        while self._starts and self._starts[-1] >= offset:
            self._starts.pop()
            self.epochs.pop()
            self.latest = self.epochs[-1] if self.epochs else UNDEFINED_EPOCH
            self._dirty = True

    def begin_at(self, offset: int) -> None:
        """Forget what lies before `offset`: the log starts there now. The epoch in force at it starts there."""
        before = bisect_right(self._starts, offset)
        if before > 1 or (before == 1 and self._starts[0] < offset):
            epoch = self.epochs[before - 1]
            self._starts[:before] = [offset]
            self.epochs[:before] = [epoch]
            self._dirty = True

    def clear(self) -> None:
        self.epochs.clear()
        self._starts.clear()
        self.latest = UNDEFINED_EPOCH
        self._dirty = True

    def save(self) -> None:
        """Write the file if anything changed."""
        if self._dirty:
            lines = (f"{epoch} {start}" for epoch, start in zip(self.epochs, self._starts, strict=True))
            replace_file(self._files, self.path, render_lines(lines))
            self._dirty = False
