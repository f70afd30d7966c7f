"""Replication throttles: how many bytes a second replicas that catch up may take from those that serve clients.

`leader.replication.throttled.rate` bounds what a broker sends to such followers, its counterpart for followers what
it fetches itself. The topic settings that end in `replication.throttled.replicas` name the replicas that are meant, as
`partition:broker` pairs or `*`. Followers in sync are never throttled: a producer would wait for them.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.storage.config import MAX_LONG

LEADER = "leader.replication.throttled.replicas"
FOLLOWER = "follower.replication.throttled.replicas"
UNLIMITED = MAX_LONG
BURST_SECONDS = 1.0

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"


class Throttle:
    """A token bucket that may go into debt: what was asked for is given whole, and waited for afterwards."""

    def __init__(self, rate: int = UNLIMITED) -> None:
        self.rate = rate
        self._tokens = 0.0
        self._at: float | None = None

    def set_rate(self, rate: int) -> None:
        """Takes effect at once; what was saved up or owed under the old rate is forgotten."""
        if rate != self.rate:
            self.rate = rate
            self._at = None

    def exceeded(self, now: float) -> bool:
        """Whether nothing more may be sent right now."""
        if self.rate >= UNLIMITED:
            return False
        self._refill(now)
        return self._tokens <= 0

    def spend(self, size: int, now: float) -> None:
        if self.rate < UNLIMITED:
            self._refill(now)
            self._tokens -= size

    def wait(self, now: float) -> float:
        """Seconds until something may be sent again."""
        if not self.exceeded(now):
            return 0.0
        return (1 - self._tokens) / self.rate if self.rate else BURST_SECONDS

    def _refill(self, now: float) -> None:
        limit = self.rate * BURST_SECONDS
        if self._at is None:
            self._tokens = limit
        else:
            self._tokens = min(limit, self._tokens + (now - self._at) * self.rate)
        self._at = now


def names(values: Mapping[str, str], key: str, partition: int, broker: int) -> bool:
    """Whether a topic's setting `key` throttles this replica.

    >>> names({LEADER: "0:1,1:2"}, LEADER, 1, 2), names({LEADER: "*"}, LEADER, 7, 7), names({}, LEADER, 0, 0)
    (True, True, False)
    """
    given = values.get(key, "")
    if not given:
        return False
    entries = [entry.strip() for entry in given.split(",")]
    return "*" in entries or f"{partition}:{broker}" in entries
