"""How much of its time a loop had nothing to do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class LoopIdle:
    """Made in a loop's thread, it says how idle that thread was; asked from any thread.

    The loop is this process's only request handler, so this is Kafka's RequestHandlerAvgIdlePercent. A thread's time on
    the processor can be had of any loop and costs nothing while nobody asks. What it misses is the time in which
    requests waited inside their handlers, for a slow disk or a throttled container: `busy_seconds` counts that.
    """

    def __init__(self, busy_seconds: Callable[[], float]) -> None:
        self._busy_seconds = busy_seconds
        clock_of = getattr(time, "pthread_getcpuclockid", None)  # macOS has none
        self._clock: int | None = clock_of(threading.get_ident()) if clock_of else None
        self._taken = self._now()

    def take_share(self) -> float:
        """The idle share since this was asked last."""
        before, self._taken = self._taken, self._now()
        passed, *used = (now - then for now, then in zip(self._taken, before, strict=True))
        return min(1.0, max(0.0, 1.0 - max(used) / passed)) if passed > 0 else 1.0

    def _now(self) -> tuple[float, float, float]:
        processor = time.clock_gettime(self._clock) if self._clock is not None else 0.0
        return time.perf_counter(), processor, self._busy_seconds()
