"""AlterPartition: a leader asks for another ISR, and gets it if it has read the newest state.

Compare-and-swap on the partition epoch, under the leader's epoch and the registrations of everyone it names, so that
neither a deposed leader nor a follower that restarted in between can slip into an ISR. A move of the partition that
was waiting for its new replicas to be in sync is completed in the same change.
"""

from __future__ import annotations

from headrace.cluster.image import Partition
from headrace.cluster.protos import partition_to_proto
from headrace.controller import reassignment
from headrace.controller.leaders import patient, settle
from headrace.controller.plan import PartitionId, Plan, View, resolve_partition
from headrace.errors import ErrorCode, KafkaError
from headrace.rpc.errors import error_message
from headrace.v1 import controller_pb2 as cpb

UNKNOWN_EPOCH = -1


def check_broker(view: View, broker: int, epoch: int) -> None:
    """Refuses a request from a broker that is not registered (any more) as what it says it is."""
    node = view.image.brokers.get(broker)
    if node is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker} is not registered; register again")
    if node.epoch != epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"broker {broker} is registered with epoch {node.epoch}, the request came from epoch {epoch}",
        )


def alter(view: View, request: cpb.AlterPartitionRequest) -> tuple[Plan, cpb.AlterPartitionResponse]:
    """The plan for all partitions of the request that may change, and the answer for every one."""
    plan, response = Plan(), cpb.AlterPartitionResponse()
    try:
        check_broker(view, request.broker_id, request.broker_epoch)
    except KafkaError as refused:
        response.error.CopyFrom(error_message(refused))
        return plan, response
    for asked in request.partitions:
        result = response.results.add(partition=asked.partition)
        index = asked.partition.partition
        try:
            topic, state = resolve_partition(view.image, asked.partition)
            state = plan.partitions.get((topic.name, index), state)
            result.state.CopyFrom(partition_to_proto(index, state))
            wanted = _checked(view, request.broker_id, (topic.name, index), state, asked)
        except KafkaError as refused:
            result.error.CopyFrom(error_message(refused))
            continue
        if wanted is not state:
            plan.partitions[topic.name, index] = wanted
            result.state.CopyFrom(partition_to_proto(index, wanted))
        if wanted.leader != request.broker_id:
            news = f"broker {wanted.leader} leads now"
            result.error.CopyFrom(error_message(KafkaError(ErrorCode.NEW_LEADER_ELECTED, news)))
    return plan, response


def _checked(
    view: View, broker: int, partition: PartitionId, state: Partition, asked: cpb.AlterPartitionRequest.Partition
) -> Partition:
    if asked.leader_epoch > state.leader_epoch or asked.partition_epoch > state.partition_epoch:
        raise KafkaError(
            ErrorCode.NOT_CONTROLLER,
            f"leader epoch {asked.leader_epoch} and partition epoch {asked.partition_epoch} are newer than"
            f" {state.leader_epoch} and {state.partition_epoch} here: ask the active controller",
        )
    if asked.leader_epoch < state.leader_epoch:
        raise KafkaError(
            ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {asked.leader_epoch} is over, it is {state.leader_epoch} now"
        )
    if broker != state.leader:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"broker {broker} does not lead, {state.leader} does")
    if asked.partition_epoch < state.partition_epoch:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"partition epoch {asked.partition_epoch} is old, it is {state.partition_epoch} now: use the new state",
        )
    isr = tuple(asked.isr)
    if len(set(isr)) != len(isr) or not set(isr) <= set(state.replicas):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"ISR {list(isr)} has to be some of the replicas {list(state.replicas)}, each once",
        )
    if broker not in isr:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"ISR {list(isr)} leaves out its own leader {broker}")
    if asked.isr_epochs and len(asked.isr_epochs) != len(isr):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{len(isr)} replicas need as many epochs, not {len(asked.isr_epochs)}"
        )
    _check_eligible(view, broker, partition, isr, tuple(asked.isr_epochs) or (UNKNOWN_EPOCH,) * len(isr))
    min_isr = view.min_isr(partition[0])
    wanted = reassignment.with_isr(view, state, isr, min_isr)
    if broker not in view.stopping:
        return wanted
    # A leader that wants to stop hands over as soon as somebody has caught up.
    return settle(wanted, patient(view, partition, wanted), min_isr=min_isr)


def _check_eligible(
    view: View, leader: int, partition: PartitionId, isr: tuple[int, ...], epochs: tuple[int, ...]
) -> None:
    for member, epoch in zip(isr, epochs, strict=True):
        if member != leader and not view.usable(member, partition):
            reason = "wants to stop" if member in view.stopping else "is not registered"
            if view.has_failed(member, partition):
                reason = "lost its disk under this replica"
            raise KafkaError(ErrorCode.INELIGIBLE_REPLICA, f"broker {member} {reason}, it cannot be in the ISR")
        registered = view.image.brokers[member].epoch
        if epoch not in (UNKNOWN_EPOCH, registered):
            raise KafkaError(
                ErrorCode.INELIGIBLE_REPLICA,
                f"broker {member} restarted (epoch {registered}, not {epoch}): it has to catch up again first",
            )
