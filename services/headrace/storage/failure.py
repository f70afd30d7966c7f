"""What happens to a log when its disk fails: one error, remembered, told once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from headrace.errors import KafkaError
from headrace.storage.results import StorageError


class Fallible(ABC):
    """Something on a disk that refuses every call after the first OSError."""

    folder: str

    def __init__(self) -> None:
        self.failure: StorageError | None = None
        self.on_failure: Callable[[OSError], None] | None = None
        """Told of the first failure, so that the whole log dir goes offline."""

    @abstractmethod
    def release(self) -> None:
        """Let go of the files without writing anything."""

    def take_offline(self, error: OSError) -> None:
        """Refuse every call from now on: the disk failed, here or under another log of the same dir."""
        if self.failure is None:
            self.failure = StorageError(self.folder, error)
            self.release()

    def failed(self, error: OSError) -> KafkaError:
        """The error to raise for `error`."""
        known = self.failure
        self.take_offline(error)
        if known is None and self.on_failure is not None:
            self.on_failure(error)
        return self.failure or StorageError(self.folder, error)


class Guard:
    """Turns an OSError inside of it into the log's failure, and refuses to begin after one."""

    __slots__ = ("_log",)

    def __init__(self, log: Fallible) -> None:
        self._log = log

    def __enter__(self) -> None:
        if self._log.failure is not None:
            raise self._log.failure

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError):
            raise self._log.failed(error) from error
