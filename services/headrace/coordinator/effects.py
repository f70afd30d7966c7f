"""What the group logic asks of the world: answers to give, records to append, timers to keep.

The logic does no I/O. A call, a timer or the news that an append is stored goes in; a list of effects comes out, in
the order they have to be carried out. Two promises are made to whoever carries them out:

* Appends are stored in the order of their ids; `Shard.appended` or `Shard.append_failed` is called for each, in order.
* A timer may fire late or after it was cancelled: the logic knows which timers it still wants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from headrace.errors import ErrorCode

Token: TypeAlias = Callable[[Any], object]
"""Takes the answer to the request it came with. The logic only hands it back, and never calls it."""


def unanswered(response: Any) -> None:
    """The token of a call whose answer nobody waits for."""


Record: TypeAlias = tuple[bytes, bytes | None]
"""Key and value of a record of the offsets topic; no value is a tombstone."""


class Call(Protocol):
    """A request that waits for its answer."""

    @property
    def token(self) -> Token: ...

    def refuse(self, code: ErrorCode, message: str = "") -> Any: ...


class TimerKey(NamedTuple):
    """Which timer: what it is for, the group, and the member if it is a member's own."""

    kind: str
    group_id: str
    member_id: str = ""


@dataclass(slots=True)
class Reply:
    """Answer the request that carried this token."""

    token: Token
    response: Any


@dataclass(slots=True)
class StartTimer:
    """Call `Shard.timer` with this key at the deadline; replaces the timer of the same key."""

    key: TimerKey
    deadline: int


@dataclass(slots=True)
class CancelTimer:
    """The timer is not needed any more."""

    key: TimerKey


@dataclass(slots=True)
class Append:
    """Store these records in the shard's partition of the offsets topic, all of them or none."""

    id: int
    records: list[Record]


@dataclass(slots=True)
class Resign:
    """Memory is ahead of the log and cannot be made good: unload the shard and load it again from its log."""

    error: ErrorCode


Effect: TypeAlias = Reply | StartTimer | CancelTimer | Append | Resign

# A client that sees the log's own error would look for the wrong thing: these are what it can act on.
_APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


@dataclass(slots=True)
class _InFlight:
    """An append that is not stored yet, and what happens when it is (or is not)."""

    speculative: bool
    done: Callable[[], None] | None
    failed: Callable[[ErrorCode], object] | None
    waiters: list[tuple[Call, Any]] = field(default_factory=list)


class Effects:
    """Collects the effects of one step, and remembers the timers and appends that are under way."""

    def __init__(self) -> None:
        self._out: list[Effect] = []
        self._wanted: dict[TimerKey, int] = {}
        self._armed: dict[TimerKey, int] = {}
        self._in_flight: dict[int, _InFlight] = {}
        self.last_append = 0

    def take(self) -> list[Effect]:
        """The effects since the last time."""
        out = self._out
        self._out = []
        return out

    def reply(self, call: Call, response: Any) -> None:
        self._out.append(Reply(call.token, response))

    # Timers. Heartbeats move a deadline thousands of times a second, so moving one later costs no effect: the timer
    # that is armed fires at its old time, finds a later deadline, and is armed again.

    def schedule(self, key: TimerKey, deadline: int) -> None:
        """Want the timer at `deadline`, whatever was wanted before."""
        self._wanted[key] = deadline
        armed = self._armed.get(key)
        if armed is None or armed > deadline:
            self._armed[key] = deadline
            self._out.append(StartTimer(key, deadline))

    def cancel(self, key: TimerKey) -> None:
        self._wanted.pop(key, None)
        if self._armed.pop(key, None) is not None:
            self._out.append(CancelTimer(key))

    def scheduled(self, key: TimerKey) -> bool:
        return key in self._wanted

    def due(self, key: TimerKey, now: int) -> bool:
        """Whether a timer that fired is really due; one that was moved is armed again."""
        self._armed.pop(key, None)
        wanted = self._wanted.get(key)
        if wanted is None:
            return False
        if wanted > now:
            self._armed[key] = wanted
            self._out.append(StartTimer(key, wanted))
            return False
        del self._wanted[key]
        return True

    # Appends

    def append(
        self,
        records: list[Record],
        done: Callable[[], None] | None = None,
        failed: Callable[[ErrorCode], object] | None = None,
        *,
        speculative: bool = False,
    ) -> int:
        """Append `records`, then run `done`. `speculative`: memory already holds what the records say."""
        self.last_append += 1
        self._in_flight[self.last_append] = _InFlight(speculative, done, failed)
        self._out.append(Append(self.last_append, records))
        return self.last_append

    def reply_after(self, append_id: int, call: Call, response: Any) -> None:
        """Answer once that append is stored; at once if it is already."""
        waiting = self._in_flight.get(append_id)
        if waiting is None:
            self.reply(call, response)
        else:
            waiting.waiters.append((call, response))

    def appended(self, append_ids: Iterable[int]) -> None:
        for append_id in append_ids:
            stored = self._in_flight.pop(append_id, None)
            if stored is None:
                continue
            if stored.done is not None:
                stored.done()
            for call, response in stored.waiters:
                self._out.append(Reply(call.token, response))

    def append_failed(self, append_id: int, error: ErrorCode) -> None:
        lost = self._in_flight.pop(append_id, None)
        if lost is None:
            return
        code = _APPEND_ERRORS.get(error, error)
        for call, _ in lost.waiters:
            self.reply(call, call.refuse(code, "the group's change could not be stored, try again"))
        if lost.speculative:
            self._out.append(Resign(code))
        elif lost.failed is not None:
            lost.failed(code)

    def abandon(self, code: ErrorCode) -> None:
        """The shard goes: whoever waits for an append is sent away, every timer stops."""
        for lost in self._in_flight.values():
            for call, _ in lost.waiters:
                self.reply(call, call.refuse(code))
        self._in_flight.clear()
        for key in list(self._armed):
            self.cancel(key)
        self._wanted.clear()
