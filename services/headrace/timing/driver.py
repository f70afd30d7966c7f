"""Runs a timing wheel on an asyncio loop with one `call_at`: it sleeps until the next bucket that has something in it.

While nothing is pending no timer is armed at all. A cancelled entry does not move the alarm: it rings once for
nothing at worst, and is then set for the next entry.
"""

from __future__ import annotations

import asyncio
import logging
from math import ceil

from headrace.timing.wheel import TimerEntry, TimingWheel

logger = logging.getLogger(__name__)

_CANCELLED = -1


class TimerDriver:
    """One wheel and its alarm. Entries' `on_due` run in the loop, never from within `schedule`."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._time = self._loop.time
        self._wheel = TimingWheel(self.now_ms())
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._wheel)

    @property
    def armed(self) -> bool:
        return self._alarm is not None

    def now_ms(self) -> int:
        return int(self._time() * 1000)

    def schedule(self, entry: TimerEntry, delay_ms: float) -> None:
        """Has `entry.on_due` called in `delay_ms` or a little later, never earlier."""
        if self._closed:
            raise RuntimeError("the timer driver is closed")
        due = ceil(self._time() * 1000 + delay_ms)
        self._wheel.add(entry, due)
        if self._alarm is None or due < self._alarm_ms:
            self._arm()

    def cancel(self, entry: TimerEntry) -> bool:
        """After this the entry will not ring. False when it was not pending (any more)."""
        cancelled = self._wheel.cancel(entry)
        entry.due_ms = _CANCELLED
        return cancelled

    def close(self) -> None:
        """Nothing comes due any more."""
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _arm(self) -> None:
        due = self._wheel.next_due_ms()
        if due is None or (self._alarm is not None and self._alarm_ms <= due):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_ms = due
        self._alarm = self._loop.call_at(due / 1000, self._ring)

    def _ring(self) -> None:
        # The loop may ring up to its clock's resolution early: what was promised for then is due now.
        now = max(self.now_ms(), self._alarm_ms)
        self._alarm = None
        try:
            for entry in self._wheel.advance(now):
                if entry.due_ms == _CANCELLED or entry.pending:
                    continue  # one that rang before it in this turn cancelled it, or set it anew
                try:
                    entry.on_due()
                except Exception:
                    logger.exception("a timer failed")
        finally:
            if not self._closed:
                self._arm()
