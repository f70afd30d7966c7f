"""What a shard counts, as plain numbers; the service turns them into metrics under Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Metrics:
    """Counters since the shard was loaded. Durations are sums in milliseconds beside their counts."""

    classic_rebalances: int = 0
    """Rebalances of classic groups that ended in Stable (group-completed-rebalance)."""
    classic_rebalance_ms: int = 0
    classic_rebalances_begun: int = 0
    consumer_rebalances: int = 0
    """Epochs of consumer groups (consumer-group-rebalance)."""
    members_expired: int = 0
    """Members removed because they were silent or slow."""
    heartbeats: int = 0
    offset_commits: int = 0
    offset_expirations: int = 0
    offset_deletions: int = 0

    def add(self, other: Metrics) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
