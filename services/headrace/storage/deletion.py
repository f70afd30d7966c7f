"""The second step of a deletion: segments renamed to `.deleted`, waiting for `file.delete.delay.ms` to pass."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.storage.segment import DELETED, Segment


class Deletions:
    """Driven by the caller's clock. What waits when the process stops is removed when the log is opened again."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Sequence[Segment]]] = []

    def begin(self, segments: Sequence[Segment], due_ms: int) -> None:
        """Rename segments, oldest first, and remember to remove them."""
        for segment in segments:
            segment.rename("", DELETED)
        self._waiting.append((due_ms, segments))

    def next_due_ms(self) -> int | None:
        return min((due for due, _ in self._waiting), default=None)

    def take_due(self, now_ms: int) -> list[Segment]:
        """Those whose time has come, to be removed by the caller."""
        due = [segment for due_ms, segments in self._waiting if due_ms <= now_ms for segment in segments]
        self._waiting = [entry for entry in self._waiting if entry[0] > now_ms]
        return due

    def release(self) -> None:
        """Let go of the files."""
        for _, segments in self._waiting:
            for segment in segments:
                segment.close()
