"""A flush in three steps, so that the slow one can leave the caller's thread."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.storage.files import File, Files


class Flush:
    """What to make durable, and up to which offset the log is durable then (see `Log.begin_flush`)."""

    __slots__ = ("_file_system", "_files", "_folders", "truncations", "upto")

    def __init__(
        self, files: Files, folders: Sequence[str], parts: Sequence[File], upto: int, truncations: int
    ) -> None:
        """`folders` are those in which names changed; `truncations` is the log's count of them at this moment."""
        self._file_system = files
        self._folders = folders
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
        for folder in self._folders:
            self._file_system.sync_dir(folder)
