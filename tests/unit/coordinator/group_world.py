"""A shard with a virtual clock, a log in memory and timers: what the service does with effects, without a service.

Used by the scenarios and by the random tests. It holds the logic to its promises: every call is answered exactly once,
and replaying the log at any time gives the state the shard says it has.
"""

from __future__ import annotations

import heapq
import itertools
import uuid
from collections.abc import Callable
from typing import Any

from headrace.coordinator.config import GroupConfig
from headrace.coordinator.effects import Append, CancelTimer, Effect, Record, Reply, Resign, StartTimer, TimerKey
from headrace.coordinator.groups import Shard
from headrace.coordinator.records import State
from headrace.coordinator.topics import TopicInfo, Topics
from headrace.errors import ErrorCode


class World:
    """Carries effects out. Appends are stored at once, unless `hold` is set: then `store` and `fail` decide."""

    def __init__(self, config: GroupConfig | None = None, topics: dict[str, int] | None = None) -> None:
        self.config = config or GroupConfig()
        self.now = 0
        self.log: list[Record] = []
        self.hold = False
        self.held: list[Append] = []
        self.answers: dict[Any, Any] = {}
        self.waiting: dict[Any, int] = {}
        self.resigned: ErrorCode | None = None
        self.on_reply: Callable[[Any, Any], None] = lambda token, response: None
        self.on_store: Callable[[Append], None] = lambda append: None
        self.topics = Topics()
        self._ids = itertools.count(1)
        self._topic_ids = itertools.count(1)
        self._timers: dict[TimerKey, int] = {}
        self._heap: list[tuple[int, int, TimerKey]] = []
        self._order = itertools.count()
        self.set_topics(topics or {}, first=True)
        self.shard = self._new_shard()

    def _new_shard(self) -> Shard:
        return Shard(self.config, lambda: str(next(self._ids)), self.topics)

    def set_topics(self, topics: dict[str, int], *, first: bool = False, recreate: bool = False) -> None:
        old = {} if recreate else self.topics.by_name
        self.topics = Topics(
            TopicInfo(name, old[name].id if name in old else uuid.UUID(int=next(self._topic_ids)), count)
            for name, count in topics.items()
        )
        if not first:
            self.run(self.shard.metadata_changed(self.topics, self.now))

    def call(self, call: Any) -> None:
        assert call.token not in self.waiting, f"token {call.token} is used twice"
        assert call.token not in self.answers, f"token {call.token} is used twice"
        self.waiting[call.token] = self.now
        self.run(self.shard.handle(call, self.now))

    def ask(self, call: Any) -> Any:
        """A call that has to be answered at once."""
        self.call(call)
        return self.answers[call.token]

    def run(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                assert effect.token in self.waiting, f"{effect.token} is answered twice, or was never asked: {effect}"
                del self.waiting[effect.token]
                self.answers[effect.token] = effect.response
                self.on_reply(effect.token, effect.response)
            elif isinstance(effect, StartTimer):
                assert effect.deadline >= self.now
                self._timers[effect.key] = effect.deadline
                heapq.heappush(self._heap, (effect.deadline, next(self._order), effect.key))
            elif isinstance(effect, CancelTimer):
                self._timers.pop(effect.key, None)
            elif isinstance(effect, Append):
                self.held.append(effect)
            elif isinstance(effect, Resign):
                self.resigned = effect.error
        if not self.hold:
            self.store()

    def store(self) -> None:
        """Everything that is held is stored, in order."""
        while self.held:
            append = self.held.pop(0)
            self.log += append.records
            self.on_store(append)
            self.run(self.shard.appended([append.id], self.now))

    def fail(self, error: ErrorCode) -> None:
        """Everything that is held is refused, in order."""
        held, self.held = self.held, []
        for append in held:
            self.run(self.shard.append_failed(append.id, error, self.now))

    def advance(self, ms: int) -> None:
        """Let time pass, with every timer at its moment."""
        until = self.now + ms
        while self._heap and self._heap[0][0] <= until:
            deadline, _, key = heapq.heappop(self._heap)
            if self._timers.get(key) == deadline:
                del self._timers[key]
                self.now = deadline
                self.run(self.shard.timer(key, self.now))
        self.now = until

    def replayed(self) -> State:
        return State().replay_all(self.log)

    def failover(self) -> None:
        """The coordinator dies with everything that is not stored; another loads the log."""
        self.held.clear()
        self.waiting.clear()
        self._timers.clear()
        self._heap.clear()
        self.shard = self._new_shard()
        self.run(self.shard.load(self.replayed(), self.now))

    def check_replay(self) -> None:
        assert not self.held
        assert self.shard.state() == self.replayed()
