"""Who to ask instead: the new leaders that Produce and Fetch name when they answer NOT_LEADER_OR_FOLLOWER (KIP-951)."""

from __future__ import annotations

import uuid

from headrace.broker.broker import Broker
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.topics import NodeEndpoint

NOBODY = (-1, -1)
_MOVED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class LeaderHints:
    """Collects the endpoints of the leaders that one response names."""

    def __init__(self, broker: Broker, listener: str) -> None:
        self._broker = broker
        self._listener = listener
        self.endpoints: list[NodeEndpoint] = []

    def of(self, topic: str | uuid.UUID, partition: int, error: KafkaError) -> tuple[int, int]:
        """Id and epoch of the leader, when the error says that it is elsewhere."""
        if error.code not in _MOVED:
            return NOBODY
        found = self._broker.leader_of(topic, partition)
        if found is None:
            return NOBODY
        state, node = found
        if node is not None and (at := node.kafka_by(self._listener)) is not None:
            endpoint = NodeEndpoint(node.id, at.host, at.port, node.rack or None)
            if endpoint not in self.endpoints:
                self.endpoints.append(endpoint)
        return state.leader, state.leader_epoch
