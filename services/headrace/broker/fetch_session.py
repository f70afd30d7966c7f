"""Incremental fetch sessions (KIP-227): a reader names its partitions once and then only what changed.

A session is a bounded memory of what one reader wants. Its epoch grows with every request, so a request that was lost
or repeated is noticed. Partitions that have nothing new are left out of answers.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Random

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MAX_EPOCH = 0x7FFFFFFF
MAX_OFFSET = 0x7FFFFFFFFFFFFFFF

Key = tuple[str | uuid.UUID, int]
"""Topic (by name, or by id from Fetch version 13 on) and partition."""


class Wanted(NamedTuple):
    """Where a reader wants to go on in one partition."""

    offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    high_watermark: int = MAX_OFFSET
    """What a follower knows of it; a consumer does not say."""


@dataclass(slots=True)
class Session:
    """One reader's memory. `sent` holds the marks it was told last, to leave out what it knows already."""

    id: int
    epoch: int = 1
    wanted: dict[Key, Wanted] = field(default_factory=dict)
    sent: dict[Key, tuple[int, int]] = field(default_factory=dict)
    privileged: bool = False
    """A follower's session is not evicted for a consumer's."""
    used_at: float = 0.0
    by_id: bool = False

    def is_news(self, key: Key, has_data: bool, failed: bool, high_watermark: int, log_start_offset: int) -> bool:
        """Whether an answer must name this partition; remembers what it says."""
        marks = (high_watermark, log_start_offset)
        if failed:
            self.sent.pop(key, None)
            return True
        changed = self.sent.get(key) != marks
        if has_data or changed:
            self.sent[key] = marks
            return True
        return False


class Sessions:
    """All sessions of a broker, at most `slots`; a full cache evicts one that was unused for `eviction_seconds`."""

    def __init__(self, slots: int, eviction_seconds: float, random: Random) -> None:
        self._slots = slots
        self._eviction = eviction_seconds
        self._random = random
        self._sessions: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self,
        session_id: int,
        epoch: int,
        wanted: Iterable[tuple[Key, Wanted]],
        forgotten: Iterable[Key],
        *,
        by_id: bool,
        privileged: bool,
        now: float,
    ) -> tuple[Session | None, dict[Key, Wanted]]:
        """The session a request belongs to (None: none) and every partition it wants.

        Raises FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_TOPIC_ID_ERROR, after which a
        reader starts again with a full request.
        """
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(session_id, None)
            everything = dict(wanted)
            session = self._create(everything, by_id, privileged, now) if epoch == INITIAL_EPOCH else None
            return session, everything
        found = self._sessions.get(session_id)
        if found is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"fetch session {session_id} is not known here")
        if epoch != found.epoch:
            raise KafkaError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"fetch session {session_id} is at epoch {found.epoch}, not {epoch}",
            )
        if by_id != found.by_id:
            raise KafkaError(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, "a session uses topic names or topic ids, not both"
            )
        found.epoch = 1 if epoch == MAX_EPOCH else epoch + 1
        found.used_at = now
        found.wanted.update(wanted)
        for key in forgotten:
            found.wanted.pop(key, None)
            found.sent.pop(key, None)
        return found, found.wanted

    def _create(self, wanted: dict[Key, Wanted], by_id: bool, privileged: bool, now: float) -> Session | None:
        if len(self._sessions) >= self._slots and not self._evict(privileged, now):
            return None
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._random.getrandbits(31)
        session = Session(session_id, wanted=dict(wanted), by_id=by_id, privileged=privileged, used_at=now)
        self._sessions[session_id] = session
        return session

    def _evict(self, privileged: bool, now: float) -> bool:
        oldest = min(
            (s for s in self._sessions.values() if privileged or not s.privileged),
            key=lambda s: s.used_at,
            default=None,
        )
        if oldest is None:
            return False
        if now - oldest.used_at < self._eviction and not (privileged and not oldest.privileged):
            return False
        del self._sessions[oldest.id]
        return True
