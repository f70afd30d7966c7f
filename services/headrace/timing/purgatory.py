"""Where requests wait for something to happen: for followers to catch up (produce), for bytes to arrive (fetch).

An operation waits under some keys and for a time at most. `check(key)` is called when something under the key has
changed and completes, in one pass, what can be completed. An operation that ends stays in the lists of its other keys
until they are checked or purged; they are purged when at least as many ended operations are listed as waiting ones
(and no fewer than the purge interval), so that each operation pays for its own removal once.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from typing import Protocol

from headrace.errors import ErrorCode, KafkaError
from headrace.timing.wheel import TimerEntry

logger = logging.getLogger(__name__)

_ENDED = -1


class PurgatoryFull(KafkaError):
    """No more operations may wait here. The caller answers now with what it has."""

    def __init__(self, name: str, limit: int) -> None:
        super().__init__(
            ErrorCode.REQUEST_TIMED_OUT, f"the {name} purgatory holds {limit} operations: the broker is overloaded"
        )


class Timer(Protocol):
    """What a purgatory needs of `driver.TimerDriver`."""

    def schedule(self, entry: TimerEntry, delay_ms: float) -> None: ...

    def cancel(self, entry: TimerEntry) -> bool: ...


class DelayedOperation(TimerEntry, ABC):
    """Ends exactly once, through exactly one of `on_complete`, `on_expire` and `on_cancel`.

    `try_complete` only looks; it must not touch the purgatory. The three others may, also for the same keys.
    """

    __slots__ = ("_purgatory", "_watches")

    def __init__(self) -> None:
        super().__init__()
        self._purgatory: Purgatory | None = None
        self._watches = 0  # in how many keys' lists it is, or _ENDED

    @property
    def ended(self) -> bool:
        return self._watches == _ENDED

    @abstractmethod
    def try_complete(self) -> bool:
        """Whether what it waits for has happened."""

    @abstractmethod
    def on_complete(self) -> None:
        """What it waited for has happened."""

    def on_expire(self) -> None:
        """Its time is over: by default it answers with what there is, as a fetch does."""
        self.on_complete()

    @abstractmethod
    def on_cancel(self, error: KafkaError) -> None:
        """It can no longer happen here, for example because the leader moved."""

    def on_due(self) -> None:
        if self._purgatory is not None:
            self._purgatory._expire(self)


class Purgatory:
    """Operations of one kind. All of it runs in one loop; callbacks run after the lists are in order again."""

    def __init__(self, name: str, timer: Timer, max_operations: int = 1_000_000, purge_interval: int = 1000) -> None:
        self.name = name
        self.completed = 0
        self.expired = 0
        self.cancelled = 0
        self._timer = timer
        self._max_operations = max_operations
        self._purge_interval = purge_interval
        self._watchers: dict[Hashable, list[DelayedOperation]] = {}
        self.size = 0
        """How many operations wait (Kafka's NumDelayedOperations)."""
        self._listed = 0  # entries in all lists ...
        self._stale = 0  # ... and how many of them belong to operations that have ended

    @property
    def watched(self) -> int:
        """How many list entries there are, those of ended operations included (Kafka's PurgatorySize)."""
        return self._listed

    @property
    def keys(self) -> int:
        return len(self._watchers)

    def add(self, operation: DelayedOperation, keys: Iterable[Hashable], timeout_ms: float) -> bool:
        """Completes the operation at once if it can be (True), else lets it wait under `keys` (False).

        Raises `PurgatoryFull`; the operation is then untouched.
        """
        if operation._purgatory is not None:
            raise ValueError("the operation was added before")
        if operation.try_complete():
            operation._purgatory = self
            operation._watches = _ENDED
            self.completed += 1
            operation.on_complete()
            return True
        if self.size >= self._max_operations:
            raise PurgatoryFull(self.name, self._max_operations)
        operation._purgatory = self
        self._timer.schedule(operation, timeout_ms)
        watchers = self._watchers
        count = 0
        for key in keys:
            waiting = watchers.get(key)
            if waiting is None:
                watchers[key] = [operation]
            else:
                waiting.append(operation)
            count += 1
        operation._watches = count
        self._listed += count
        self.size += 1
        return False

    def watches(self, key: Hashable) -> bool:
        """Whether `check` has anything to look at."""
        return key in self._watchers

    def check(self, key: Hashable) -> int:
        """Completes what waits under `key` and can be completed; returns how many."""
        waiting = self._watchers.get(key)
        if waiting is None:
            return 0
        kept: list[DelayedOperation] = []
        done: list[DelayedOperation] = []
        for operation in waiting:
            if operation._watches == _ENDED:
                continue
            if operation.try_complete():
                self._end(operation)
                done.append(operation)
            else:
                kept.append(operation)
        self._replace(key, len(waiting), kept)
        self.completed += len(done)
        self._call(done, lambda operation: operation.on_complete())
        return len(done)

    def check_all(self, keys: Iterable[Hashable]) -> int:
        """`check` for each key: one call for everything a request or a loop turn has changed."""
        return sum(self.check(key) for key in keys)

    def cancel_all(self, key: Hashable, error: KafkaError) -> int:
        """Ends with `error` whatever waits under `key`; returns how many."""
        waiting = self._watchers.get(key)
        if waiting is None:
            return 0
        done = [operation for operation in waiting if operation._watches != _ENDED]
        for operation in done:
            self._end(operation)
        self._replace(key, len(waiting), [])
        self.cancelled += len(done)
        self._call(done, lambda operation: operation.on_cancel(error))
        return len(done)

    def cancel(self, operation: DelayedOperation) -> bool:
        """Forgets one operation without a callback (its connection is gone); False when it has ended already."""
        if operation._purgatory is not self or operation._watches == _ENDED:
            return False
        self._end(operation)
        self.cancelled += 1
        self._purge_if_due()
        return True

    def complete(self, operation: DelayedOperation) -> bool:
        """Ends one operation as completed, whatever it waits for; False when it has ended already."""
        if operation._purgatory is not self or operation._watches == _ENDED:
            return False
        self._end(operation)
        self.completed += 1
        self._purge_if_due()
        operation.on_complete()
        return True

    def purge(self) -> None:
        """Drops ended operations from every list."""
        for key in list(self._watchers):
            waiting = self._watchers[key]
            self._replace(key, len(waiting), [op for op in waiting if op._watches != _ENDED], purge=False)

    def _expire(self, operation: DelayedOperation) -> None:
        if operation._watches == _ENDED:
            return
        self._end(operation)
        self.expired += 1
        self._purge_if_due()
        operation.on_expire()

    def _end(self, operation: DelayedOperation) -> None:
        self._timer.cancel(operation)
        self._stale += operation._watches
        operation._watches = _ENDED
        self.size -= 1

    def _replace(self, key: Hashable, before: int, kept: list[DelayedOperation], purge: bool = True) -> None:
        # Every entry that is dropped belongs to an operation that has ended.
        dropped = before - len(kept)
        self._listed -= dropped
        self._stale -= dropped
        if not kept:
            del self._watchers[key]
        elif dropped:
            self._watchers[key] = kept
        if purge:
            self._purge_if_due()

    def _purge_if_due(self) -> None:
        if self._stale > self._purge_interval and 2 * self._stale > self._listed:
            self.purge()

    def _call(self, operations: list[DelayedOperation], callback: Callable[[DelayedOperation], None]) -> None:
        for operation in operations:
            try:
                callback(operation)
            except Exception:
                logger.exception("an operation of the %s purgatory failed at its end", self.name)
