"""One partition of the offsets topic while this process owns it: the group logic, with its timers and its log.

Life: `start` writes the ownership into the log (from then on an earlier owner can write nothing), reads the log, and
serves. `stop` sends everyone who waits away; a hosting is never started again, the next ownership makes a new one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from headrace.coordinator.appending import PartitionWriter, Sender
from headrace.coordinator.effects import Append, CancelTimer, Effect, Reply, Resign, StartTimer, TimerKey
from headrace.coordinator.groups import Shard
from headrace.coordinator.loading import Loader
from headrace.coordinator.records import owner_record
from headrace.coordinator.topics import Topics
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Clock
from headrace.timing.driver import TimerDriver
from headrace.timing.wheel import TimerEntry

log = logging.getLogger(__name__)

LATE_MS = 100
"""A timer that rings this much too late says that the process stood still: a stop, a slow disk, no CPU."""

_OWNERSHIP = 0
"""The append id of the record that opens an ownership; the logic counts from 1."""


class GroupClock:
    """Milliseconds since 1970 that never go back: wall time at the start and monotonic time from there."""

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._base = clock.time_ms() - int(clock.monotonic() * 1000)

    def now(self) -> int:
        return self._base + int(self._monotonic() * 1000)


class _Timer(TimerEntry):
    """A timer of the logic's. One that rings late gets once more as long as it was late.

    All of them wait for a member to speak, and what it said while this process stood still is in its socket, unread:
    time in which nobody could be heard does not count. Once, so that a process that is always late still expires.
    """

    __slots__ = ("_extended", "_hosting", "_key")

    def __init__(self, hosting: Hosting, key: TimerKey) -> None:
        super().__init__()
        self._hosting = hosting
        self._key = key
        self._extended = False

    def on_due(self) -> None:
        late = self._hosting.lateness(self.due_ms)
        if late >= LATE_MS and not self._extended:
            self._extended = True
            self._hosting.extend(self, late)
        else:
            self._hosting.timer(self._key)


class Hosting:
    """An ownership of one partition. `lost` is called at most once, with the error clients get from then on."""

    def __init__(
        self,
        coordinator: int,
        index: int,
        epoch: int,
        shard: Shard,
        clock: GroupClock,
        timers: TimerDriver,
        sender: Sender,
        loader: Loader,
        lost: Callable[[Hosting, bool], None],
    ) -> None:
        self.index = index
        self.epoch = epoch
        self.serving = False
        self.shard = shard
        self._coordinator = coordinator
        self._clock = clock
        self._driver = timers
        self._timers: dict[TimerKey, _Timer] = {}
        self._writer = PartitionWriter(index, epoch, self, sender)
        self._loader = loader
        self._lost = lost
        self._stopped = False
        self._opened: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._act: dict[type, Callable[[Any], None]] = {
            Reply: self._reply,
            Append: self._append,
            StartTimer: self._start_timer,
            CancelTimer: self._cancel_timer,
            Resign: self._resign,
        }

    async def start(self) -> None:
        """Returns when the groups are served."""
        self._writer.append(_OWNERSHIP, [owner_record(self._coordinator, self.epoch)])
        last = await self._opened
        state = await self._loader.load(self.index, last)
        if self._stopped:
            return
        self.serving = True
        self._run(self.shard.load(state, self._clock.now()))

    def stop(self, code: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """Everyone who waits is answered with `code`; nothing is written any more."""
        if self._stopped:
            return
        self._stopped = True
        self._writer.close()
        self._opened.cancel()
        if self.serving:
            self.serving = False
            self._run(self.shard.unload(code, self._clock.now()))
        for timer in self._timers.values():
            self._driver.cancel(timer)
        self._timers.clear()

    # --- what comes in

    def handle(self, call: Any) -> None:
        """A request; its token is called with the answer, now or later."""
        if not self.serving:
            code = ErrorCode.NOT_COORDINATOR if self._stopped else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            raise KafkaError(code, f"the groups of partition {self.index} are being loaded")
        self._run(self.shard.handle(call, self._clock.now()))

    def timer(self, key: TimerKey) -> None:
        self._timers.pop(key, None)
        if self.serving:
            self._run(self.shard.timer(key, self._clock.now()))

    def lateness(self, due_ms: int) -> int:
        """How many milliseconds ago a timer should have rung."""
        return self._driver.now_ms() - due_ms

    def extend(self, timer: _Timer, delay_ms: int) -> None:
        self._driver.schedule(timer, delay_ms)

    def topics_changed(self, topics: Topics) -> None:
        self._run(self.shard.metadata_changed(topics, self._clock.now()))

    def expire_offsets(self) -> None:
        if self.serving:
            self._run(self.shard.expire_offsets(self._clock.now()))

    # --- what became of appends

    def stored(self, append_ids: list[int], base_offset: int) -> None:
        if append_ids[0] == _OWNERSHIP:
            if not self._opened.done():
                self._opened.set_result(base_offset)
            return
        self._run(self.shard.appended(append_ids, self._clock.now()))

    def failed(self, append_ids: list[int], error: ErrorCode) -> None:
        if append_ids[0] == _OWNERSHIP:
            log.warning("partition %d cannot be opened yet: %s", self.index, error.name)
            self._writer.append(_OWNERSHIP, [owner_record(self._coordinator, self.epoch)])
            return
        now = self._clock.now()
        for append_id in append_ids:
            self._run(self.shard.append_failed(append_id, error, now))

    def fenced(self) -> None:
        log.warning("partition %d has a newer owner than epoch %d: dropped", self.index, self.epoch)
        self._end(fenced=True)

    def gave_up(self) -> None:
        log.warning("partition %d: what its log holds is not known, it is loaded again", self.index)
        self._end(fenced=False)

    def _end(self, fenced: bool) -> None:
        if not self._stopped:
            self.stop()
            self._lost(self, fenced)

    # --- what the logic wants done

    def _run(self, effects: list[Effect]) -> None:
        act = self._act
        for effect in effects:
            act[type(effect)](effect)

    def _reply(self, effect: Reply) -> None:
        effect.token(effect.response)

    def _append(self, effect: Append) -> None:
        self._writer.append(effect.id, effect.records)

    def _start_timer(self, effect: StartTimer) -> None:
        before = self._timers.get(effect.key)
        if before is not None:
            self._driver.cancel(before)
        timer = self._timers[effect.key] = _Timer(self, effect.key)
        self._driver.schedule(timer, max(0, effect.deadline - self._clock.now()))

    def _cancel_timer(self, effect: CancelTimer) -> None:
        timer = self._timers.pop(effect.key, None)
        if timer is not None:
            self._driver.cancel(timer)

    def _resign(self, effect: Resign) -> None:
        self.gave_up()
