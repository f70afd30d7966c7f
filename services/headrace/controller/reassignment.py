"""Moving partitions between brokers, Kafka's way (KIP-455).

While a partition moves, its replicas are the target followed by those that will go; `adding` and `removing` say which
are which. The move is complete as soon as the whole target is in the ISR: then the others leave, under a new leader
epoch, and the leadership goes to a target replica if it was with one that left. Not earlier: one of those who leave may
be the only one beside a lone leader that holds what was acknowledged. A change of the replication factor is a move with
only one of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace.cluster.image import NO_LEADER, Partition
from headrace.controller.leaders import eligible, moved
from headrace.controller.plan import Plan, View, resolve_partition
from headrace.controller.protos import topic_of
from headrace.errors import ErrorCode, KafkaError
from headrace.rpc.errors import error_message
from headrace.v1 import controller_pb2 as cpb


def alter(
    view: View, request: cpb.AlterPartitionReassignmentsRequest
) -> tuple[Plan, cpb.AlterPartitionReassignmentsResponse]:
    """Starts moves, replaces moves under way, and cancels them (empty replicas)."""
    plan, response = Plan(), cpb.AlterPartitionReassignmentsResponse()
    for asked in request.partitions:
        result = response.results.add(partition=asked.partition)
        try:
            topic, state = resolve_partition(view.image, asked.partition)
            min_isr = view.min_isr(topic.name)
            target = tuple(asked.replicas)
            wanted = start(view, state, target, min_isr) if target else cancel(view, state, min_isr)
        except KafkaError as refused:
            result.error.CopyFrom(error_message(refused))
            continue
        if wanted is not state:
            plan.partitions[topic.name, asked.partition.partition] = wanted
    return plan, response


def start(view: View, state: Partition, target: Sequence[int], min_isr: int) -> Partition:
    """The state in which the partition is on its way to `target`, or already there when nothing has to be copied."""
    target = tuple(target)
    if len(set(target)) != len(target):
        raise _bad(f"replicas {list(target)} name a broker twice")
    unknown = [r for r in target if r not in view.image.brokers and r not in state.replicas]
    if unknown:
        raise _bad(f"brokers {unknown} are not registered; those that are: {sorted(view.image.brokers)}")
    settled = tuple(r for r in state.replicas if r not in state.adding)
    removing = tuple(r for r in state.replicas if r not in target)
    # Who was on its way in and is now on its way out stays marked as added: it may have nothing, and must not lead.
    adding = tuple(r for r in target if r not in settled)
    adding += tuple(r for r in removing if r in state.adding and r not in state.isr)
    wanted = replace(
        state,
        replicas=target + removing,
        adding=adding,
        removing=removing,
        partition_epoch=state.partition_epoch + 1,
    )
    if (wanted.replicas, wanted.adding, wanted.removing) == (state.replicas, state.adding, state.removing):
        return state
    return complete(view, wanted, min_isr)


def cancel(view: View, state: Partition, min_isr: int) -> Partition:
    """The state before the move: what was added goes, what was to go stays.

    The order is that of the move's target, then what was to go: nobody remembers the one before, as in Kafka.
    """
    if not state.adding and not state.removing:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "there is no move to cancel")
    replicas = tuple(r for r in state.replicas if r not in state.adding)
    isr = tuple(r for r in state.isr if r in replicas)
    if not isr:
        raise _bad(f"only replicas that are being added are in sync ({list(state.isr)}): let the move finish")
    return _without_move(view, state, replicas, isr, min_isr)


def with_isr(view: View, state: Partition, isr: tuple[int, ...], min_isr: int) -> Partition:
    """`state` with another ISR, and with its move completed if that was what it waited for."""
    return complete(view, moved(state, state.leader, isr, min_isr=min_isr), min_isr)


def complete(view: View, state: Partition, min_isr: int) -> Partition:
    """`state` with its move done if the whole target is in sync; else `state` itself."""
    if not state.adding and not state.removing:
        return state
    target = tuple(r for r in state.replicas if r not in state.removing)
    isr = tuple(r for r in state.isr if r in target)
    if set(target) != set(isr):
        return state
    leader = _leader(view, state, target, isr)
    if leader == NO_LEADER != state.leader:
        return state
    return _without_move(view, state, target, isr, min_isr)


def _leader(view: View, state: Partition, replicas: tuple[int, ...], isr: tuple[int, ...]) -> int:
    if state.leader in isr:
        return state.leader
    return next((r for r in replicas if r in isr and view.usable(r)), NO_LEADER)


def _without_move(
    view: View, state: Partition, replicas: tuple[int, ...], isr: tuple[int, ...], min_isr: int
) -> Partition:
    leader = _leader(view, state, replicas, isr)
    # Those who left must not be taken for members by a leader that has not heard of it: a new term makes that sure.
    new_term = leader != state.leader or set(replicas) != set(state.replicas)
    return replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch + new_term,
        isr=isr,
        replicas=replicas,
        adding=(),
        removing=(),
        partition_epoch=state.partition_epoch + 1,
        elr=eligible(state, replicas, isr, min_isr),
        last_known_leader=state.last_known_leader if leader == NO_LEADER else NO_LEADER,
    )


def under_way(view: View, request: cpb.ListPartitionReassignmentsRequest) -> cpb.ListPartitionReassignmentsResponse:
    """The partitions that are moving, of those asked for or of all."""
    response = cpb.ListPartitionReassignmentsResponse()
    asked: dict[str, set[int]] | None = {} if request.partitions else None
    for named in request.partitions:
        try:
            topic, _ = resolve_partition(view.image, named)
        except KafkaError:
            continue  # Kafka, too, leaves out what is not there: nothing of it is moving.
        if asked is not None:
            asked.setdefault(topic.name, set()).add(named.partition)
    for topic in view.image.topics.values():
        moving = [
            index
            for index, state in enumerate(topic.partitions)
            if (state.adding or state.removing) and (asked is None or index in asked.get(topic.name, ()))
        ]
        if moving:
            response.topics.append(topic_of(topic, moving))
    return response


def _bad(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
