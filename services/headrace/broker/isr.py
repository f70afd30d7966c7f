"""Who is in sync with a leader, and how far everyone is: the high watermark as a plain function of what is known.

No log, no clock and no network in here. `Progress` is one leader's knowledge of its followers during one leader epoch;
the partition tells it what happened and asks what follows.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Follower:
    """What a leader knows of one follower, from that follower's fetches alone."""

    log_end_offset: int = -1
    log_start_offset: int = 0
    broker_epoch: int = -1
    caught_up_at: float = float("-inf")
    """The last moment at which the follower had everything the leader had."""
    fetched_at: float = float("-inf")
    leader_end_at_fetch: int = -1

    def fetched(self, offset: int, leader_end: int, now: float) -> None:
        """The follower asks for `offset`, so it holds everything before it.

        It counts as caught up at `now` if that is all there is, and as caught up at its previous fetch if it now has
        all there was then: a follower that is always one fetch behind a busy leader is in sync.
        """
        if offset >= leader_end:
            self.caught_up_at = now
        elif offset >= self.leader_end_at_fetch >= 0:
            self.caught_up_at = max(self.caught_up_at, self.fetched_at)
        self.log_end_offset = offset
        self.leader_end_at_fetch = leader_end
        self.fetched_at = now

    def was_idle(self, fetched_at: float) -> None:
        """Until now there was nothing beyond what it holds; it last asked at `fetched_at`."""
        self.caught_up_at = max(self.caught_up_at, fetched_at)
        self.fetched_at = max(self.fetched_at, fetched_at)
        self.leader_end_at_fetch = self.log_end_offset


class Progress:
    """A leader's in-sync replicas and its followers' positions in one leader epoch.

    `isr` is what the controller confirmed. While a wish for another set is under way (`pending`), the high watermark
    counts the members of both: whichever of the two turns out to be in force, nothing it promised can be lost.
    """

    __slots__ = ("broker_id", "followers", "isr", "no_wish_before", "pending")

    def __init__(self, broker_id: int, replicas: tuple[int, ...], isr: tuple[int, ...], now: float) -> None:
        self.broker_id = broker_id
        self.isr = isr
        self.pending: tuple[int, ...] | None = None
        self.no_wish_before = float("-inf")
        """After a refusal nobody is wished for until then: the reason has to go away first."""
        # A new leader gives every follower the benefit of the doubt: it has one lag time to show itself.
        self.followers = {r: Follower(caught_up_at=now) for r in replicas if r != broker_id}

    def confirm(self, replicas: tuple[int, ...], isr: tuple[int, ...], now: float, *, settled: bool = True) -> None:
        """The controller says what is in force now; followers that stay keep what is known of them.

        With `settled` any wish is answered by it. Otherwise it was only said again, and the wish may still be granted.
        """
        self.isr = isr
        if settled:
            self.pending = None
        self.followers = {
            r: self.followers.get(r) or Follower(caught_up_at=now) for r in replicas if r != self.broker_id
        }

    @property
    def maximal(self) -> frozenset[int]:
        """Everyone who may be in sync: in force, or wished for."""
        return frozenset(self.isr).union(self.pending or ())

    def high_watermark(self, current: int, leader_end: int, min_isr: int) -> int:
        """The first offset that not everyone in sync is known to hold; never below `current`.

        Below `min_isr` in-sync replicas it stands still, so that no reader sees what a lost replica could undo.
        """
        followers = self.followers
        if not followers:
            return leader_end
        if len(self.isr) < min_isr:
            return current
        lowest = leader_end
        for member in self.maximal:
            follower = followers.get(member)
            if follower is not None and follower.log_end_offset < lowest:
                lowest = follower.log_end_offset
        return max(current, lowest)

    def lagging(self, leader_end: int, now: float, max_lag: float) -> tuple[int, ...]:
        """Members in force that have not had everything for longer than `max_lag` seconds."""
        return tuple(
            member
            for member in self.isr
            if (follower := self.followers.get(member)) is not None
            and follower.log_end_offset != leader_end
            and now - follower.caught_up_at > max_lag
        )

    def may_join(self, replica: int, high_watermark: int, epoch_start: int) -> bool:
        """Whether a follower outside has come far enough: to the high watermark, and into this leader's epoch."""
        follower = self.followers.get(replica)
        return (
            follower is not None
            and replica not in self.maximal
            and follower.log_end_offset >= max(high_watermark, epoch_start)
        )
