"""How much of its time a loop had nothing to do."""

from __future__ import annotations

import selectors
import time


class IdleSelector(selectors.DefaultSelector):
    """The loop's selector, which also says how long it waited: the request handler's idle time.

    The loop is this process's only request handler, so its idle share is Kafka's RequestHandlerAvgIdlePercent.
    """

    def __init__(self) -> None:
        super().__init__()
        self.idle_seconds = 0.0
        self._taken = (time.perf_counter(), 0.0)

    def take_share(self) -> float:
        """The idle share since this was asked last."""
        now, idle = time.perf_counter(), self.idle_seconds
        since, before = self._taken
        self._taken = (now, idle)
        return min(1.0, (idle - before) / (now - since)) if now > since else 1.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        since = time.perf_counter()
        ready = super().select(timeout)
        self.idle_seconds += time.perf_counter() - since
        return ready
