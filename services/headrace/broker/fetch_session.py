"""Incremental fetch sessions (KIP-227): a reader names its partitions once and then only what changed.

A session is a bounded memory of what one reader wants. Its epoch grows with every request, so a request that was lost
or repeated is noticed. Partitions that have nothing new are left out of answers.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.broker.reader import Key, Place, Reader, Wanted
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Random

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MAX_EPOCH = 0x7FFFFFFF


class Session(Reader):
    """One reader's memory, also of what it was told last, to leave out what it knows already."""

    __slots__ = ("by_id", "epoch", "id", "privileged", "used_at")

    def __init__(
        self,
        id: int,
        wanted: Iterable[tuple[Key, Wanted]] = (),
        *,
        by_id: bool = False,
        privileged: bool = False,
        used_at: float = 0.0,
    ) -> None:
        super().__init__(wanted)
        self.id = id
        self.epoch = 1
        self.by_id = by_id
        self.privileged = privileged
        """A follower's session is not evicted for a consumer's."""
        self.used_at = used_at

    def knows(self, place: Place, high_watermark: int, log_start_offset: int) -> bool:
        return self.full or place.sent == (high_watermark, log_start_offset)

    def is_news(self, place: Place, has_data: bool, failed: bool, high_watermark: int, log_start_offset: int) -> bool:
        """Whether an answer must name this partition; remembers what it says."""
        marks = (high_watermark, log_start_offset)
        if failed:
            place.sent = None
            return True
        if has_data or place.sent != marks:
            place.sent = marks
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
        replica_id: int,
        broker_epoch: int,
        now: float,
    ) -> Session:
        """The session a request belongs to; one that is not remembered has no id.

        Raises FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_TOPIC_ID_ERROR, after which a
        reader starts again with a full request.
        """
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._close(session_id)
            session = Session(NO_SESSION, wanted, by_id=by_id, privileged=replica_id >= 0, used_at=now)
            if epoch == INITIAL_EPOCH:
                if replica_id >= 0:
                    self._replace(replica_id, broker_epoch)
                self._remember(session)
            return session
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
        found.hurry()
        found.full = False
        found.epoch = 1 if epoch == MAX_EPOCH else epoch + 1
        found.used_at = now
        for key, want in wanted:
            found.want(key, want)
        for key in forgotten:
            found.forget(key)
        return found

    def _replace(self, replica_id: int, broker_epoch: int) -> None:
        """A broker follows over one session: what an earlier connection or process of it left behind goes."""
        for left in [s for s in self._sessions.values() if s.replica_id == replica_id]:
            if left.broker_epoch <= broker_epoch:
                self._close(left.id)

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()

    def _remember(self, session: Session) -> None:
        if len(self._sessions) >= self._slots and not self._evict(session.privileged, session.used_at):
            return
        while session.id == NO_SESSION or session.id in self._sessions:
            session.id = self._random.getrandbits(31)
        self._sessions[session.id] = session

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
        self._close(oldest.id)
        return True
