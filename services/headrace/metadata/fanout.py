"""One stream of changes to many readers, in bounded memory.

Everyone shares the same messages. A reader that comes back gets what it missed while the history still has it; one
that comes too late, or is too slow to take what waits for it, starts again from a snapshot. So a reader costs at most
`pending_limit`, and the history `history_limit`, however long they last.

What a message is, and what is in it, does not matter here: it has a revision and a weight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Step(Generic[T]):
    """What changed at one revision."""

    revision: int
    message: T
    weight: int = 1


class Take:
    """What a reader does next when there is no message for it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


SNAPSHOT = Take("SNAPSHOT")
"""Read a snapshot of now, and tell the subscription its revision."""
WAIT = Take("WAIT")
"""Nothing is there: wait to be woken."""


class Subscription(Generic[T]):
    """One reader's place in the stream. `wake` is called when there is something to take, or when it ended."""

    def __init__(self, fanout: Fanout[T], wake: Callable[[], None]) -> None:
        self._fanout = fanout
        self._wake = wake
        self._pending: deque[Step[T]] = deque()
        self._weight = 0
        self._revision = 0
        self._snapshot = False
        self.ended = False

    @property
    def pending(self) -> int:
        """Weight of what waits for this reader."""
        return self._weight

    def take(self) -> Step[T] | Take:
        """The next step, or what to do instead."""
        if self._snapshot:
            # A replica that is behind the reader has no snapshot for it: time does not go back.
            if self._fanout.revision < self._revision:
                return WAIT
            self._snapshot = False
            self._revision = self._fanout.revision
            return SNAPSHOT
        if not self._pending:
            return WAIT
        step = self._pending.popleft()
        self._weight -= step.weight
        self._revision = step.revision
        return step

    def close(self) -> None:
        self._fanout.leave(self)

    def start(self, after: int, missed: list[Step[T]] | None) -> None:
        """Begins after revision `after` with what was `missed`; None: with a snapshot."""
        self._revision = after
        if missed is None:
            self._snapshot = True
            return
        for step in missed:
            self.offer(step)

    def offer(self, step: Step[T]) -> None:
        """One more step; when too much waits already, all of it gives way to a snapshot."""
        if self._snapshot or step.revision <= self._revision:
            # The snapshot will be of this revision or a later one; or the reader came from a replica that was ahead.
            self._wake()
            return
        if self._pending and self._weight + step.weight > self._fanout.pending_limit:
            self.restart()
            return
        self._pending.append(step)
        self._weight += step.weight
        self._wake()

    def restart(self) -> None:
        """Starts over with a snapshot."""
        self._pending.clear()
        self._weight = 0
        self._snapshot = True
        self._wake()

    def end(self) -> None:
        self._pending.clear()
        self.ended = True
        self._wake()


class Fanout(Generic[T]):
    """The history of steps, and the readers."""

    def __init__(self, history_limit: int = 100_000, pending_limit: int = 10_000) -> None:
        self.pending_limit = pending_limit
        self.revision = 0
        """The newest revision; a snapshot taken now is of this one."""
        self._history_limit = history_limit
        self._history: deque[Step[T]] = deque()
        self._history_weight = 0
        self._complete_after = 0
        self._readers: dict[Subscription[T], None] = {}
        """In the order in which they came, which a set would not keep."""
        self._closed = False

    @property
    def readers(self) -> int:
        return len(self._readers)

    def pending(self) -> list[int]:
        """What waits for each reader."""
        return [reader.pending for reader in list(self._readers)]

    @property
    def history_weight(self) -> int:
        return self._history_weight

    def subscribe(self, after: int, wake: Callable[[], None]) -> Subscription[T]:
        """A reader that already has revision `after` (0: nothing)."""
        subscription = Subscription(self, wake)
        missed: list[Step[T]] | None = None
        if after > 0 and after >= self._complete_after:
            missed = [step for step in self._history if step.revision > after]
        subscription.start(after, missed)
        if self._closed:
            subscription.end()
        else:
            self._readers[subscription] = None
        return subscription

    def leave(self, subscription: Subscription[T]) -> None:
        self._readers.pop(subscription, None)

    def publish(self, step: Step[T]) -> None:
        """The next step, for everyone."""
        self.revision = step.revision
        self._history.append(step)
        self._history_weight += step.weight
        while self._history_weight > self._history_limit:
            oldest = self._history.popleft()
            self._history_weight -= oldest.weight
            self._complete_after = oldest.revision
        for reader in self._readers:
            reader.offer(step)

    def advance(self, revision: int) -> None:
        """A revision at which nothing visible changed."""
        self.revision = revision

    def reset(self, revision: int) -> None:
        """The steps up to `revision` are not known: everyone starts again from a snapshot."""
        self.revision = revision
        self._history.clear()
        self._history_weight = 0
        self._complete_after = revision
        for reader in self._readers:
            reader.restart()

    def close(self) -> None:
        """Ends every reader's stream."""
        self._closed = True
        for reader in list(self._readers):
            reader.end()
