"""Decommissioning a broker: every replica it holds moves to others, as reassignments that can be watched and cancelled.

Nothing is remembered about it. Asking again plans what is left (topics made meanwhile, moves that were cancelled), and
a broker is done when nothing is left.
"""

from __future__ import annotations

from collections import Counter

from headrace.controller import reassignment
from headrace.controller.plan import Plan, View
from headrace.errors import ErrorCode, KafkaError
from headrace.rpc.errors import error_message
from headrace.v1 import common_pb2 as pb
from headrace.v1 import controller_pb2 as cpb


def drain(view: View, request: cpb.DrainBrokerRequest) -> tuple[Plan, cpb.DrainBrokerResponse]:
    """Plans the moves; what cannot move is named with the reason."""
    plan, response = Plan(), cpb.DrainBrokerResponse()
    leaving = request.broker_id
    held: Counter[int] = Counter(r for _, state in view.partitions() for r in state.replicas)
    if leaving not in view.image.brokers and not held[leaving]:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"there is no broker {leaving}, and it holds nothing")
    for (name, index), state in view.partitions():
        if leaving not in state.replicas:
            continue
        named = pb.TopicPartition(topic=name, topic_id=view.image.topics[name].id.bytes, partition=index)
        target = tuple(r for r in state.replicas if r not in state.removing)
        if leaving not in target:
            response.moving.append(named)
            continue
        try:
            chosen = _replacement(view, target, leaving, held)
            moved = reassignment.start(
                view, state, tuple(chosen if r == leaving else r for r in target), view.min_isr(name)
            )
        except KafkaError as refused:
            response.stuck.add(partition=named, error=error_message(refused))
            continue
        held[chosen] += 1
        response.moving.append(named)
        if moved is not state:
            plan.partitions[name, index] = moved
    return plan, response


def _replacement(view: View, target: tuple[int, ...], leaving: int, held: Counter[int]) -> int:
    """The broker that takes over: in a rack that has no other replica if there is one, and with the fewest replicas."""
    brokers = view.image.brokers
    racks = {brokers[r].rack for r in target if r != leaving and r in brokers}
    free = [b for b in brokers if view.usable(b) and b not in target]
    if not free:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"every other broker holds a replica already ({list(target)}): add a broker, or lower the factor",
        )
    return min(free, key=lambda b: (bool(brokers[b].rack) and brokers[b].rack in racks, held[b], b))
