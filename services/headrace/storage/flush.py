"""A flush in three steps, so that the slow one can leave the caller's thread."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.storage.files import File, Files


class Flush:
    """What to make durable, and up to which offset the log is durable then (see `Log.begin_flush`)."""

    __slots__ = ("_file_system", "_files", "_folder", "truncations", "upto")

    def __init__(self, files: Files, folder: str | None, parts: Sequence[File], upto: int, truncations: int) -> None:
        """`folder` is None when no name in it has changed; `truncations` is the log's count of them at this moment."""
        self._file_system = files
        self._folder = folder
        self._files = parts
        self.upto = upto
        self.truncations = truncations

    def run(self) -> None:
        """Sync. May run on a worker thread; raises OSError. A file deleted meanwhile is skipped."""
        for file in self._files:
            try:
                file.sync()
            except FileNotFoundError:
                continue
        if self._folder is not None:
            self._file_system.sync_dir(self._folder)
