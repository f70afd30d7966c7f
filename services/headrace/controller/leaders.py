"""Who leads: elections after brokers come, go or restart, on request, and to get leaders back where they belong.

The rules are Kafka's. The leader is the first live member of the ISR in the order of the replicas. A broker that is
gone leaves the ISR, but the last members stay in it, because they alone hold everything that was acknowledged: then
the partition has no leader until one of them is back, unless unclean election is allowed. Every change of the leader,
also to nobody and also to a new incarnation of the same broker, raises the leader epoch; every change raises the
partition epoch.

Nothing is acknowledged (acks=all) while fewer than min.insync.replicas are in sync, so whoever leaves the ISR then, or
makes it so small, holds as much as those who stay: it is an eligible leader replica (KIP-966) and leads when they
cannot. A broker that comes back without some of its records (its power went) has no place in either set. When nobody
has one any more, the one that led last may lead: of all logs that lost something, its is the best guess.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from headrace.cluster.image import NO_LEADER, Image, Node, Partition
from headrace.controller.plan import Incarnation, PartitionId, Plan, View, resolve_partition
from headrace.errors import ErrorCode, KafkaError
from headrace.rpc.errors import error_message
from headrace.v1 import common_pb2 as pb
from headrace.v1 import controller_pb2 as cpb

UncleanAllowed = Callable[[str], bool]
"""Whether `unclean.leader.election.enable` holds for a topic."""


def first_leader(replicas: Iterable[int], usable: Callable[[int], bool]) -> Partition:
    """The first state of a new partition: everyone who is there is in sync, for there is nothing to copy."""
    replicas = tuple(replicas)
    isr = tuple(r for r in replicas if usable(r))
    return Partition(leader=isr[0], leader_epoch=0, isr=isr, replicas=replicas)


def moved(
    state: Partition,
    leader: int,
    isr: tuple[int, ...],
    *,
    min_isr: int,
    lost: Collection[int] = (),
    new_term: bool = False,
) -> Partition:
    """`state` with this leader and ISR, epochs raised as far as needed; the same object when nothing changes.

    `lost` are those who must not be eligible for having been in sync before.
    """
    elr = eligible(state, state.replicas, isr, min_isr, lost)
    last = NO_LEADER if leader != NO_LEADER else _last_leader(state)
    changed = leader != state.leader or new_term
    if not changed and (isr, elr, last) == (state.isr, state.elr, state.last_known_leader):
        return state
    return replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch + changed,
        isr=isr,
        partition_epoch=state.partition_epoch + 1,
        elr=elr,
        last_known_leader=last,
    )


def eligible(
    before: Partition, replicas: tuple[int, ...], isr: tuple[int, ...], min_isr: int, lost: Collection[int] = ()
) -> tuple[int, ...]:
    """Who, after `before` and beside its new ISR, holds everything that was ever acknowledged."""
    if len(isr) >= min(min_isr, len(replicas)):
        return ()
    held = {*before.isr, *before.elr}
    return tuple(r for r in replicas if r in held and r not in isr and r not in lost)


def _last_leader(state: Partition) -> int:
    return state.leader if state.leader != NO_LEADER else state.last_known_leader


def settle(
    state: Partition,
    usable: Callable[[int], bool],
    *,
    min_isr: int = 1,
    restarted: Collection[int] = (),
    lost: Collection[int] = (),
    emptied: Collection[int] = (),
    failed: Collection[int] = (),
    unclean: bool = False,
) -> Partition:
    """The state a partition should have with the brokers that are there now.

    `restarted` are usable brokers that were away in between, `lost` those of them that came back without their last
    records, `emptied` those that came back without their disk. `failed` cannot read this replica.
    """
    gone = {*lost, *failed}
    steady = [r for r in state.isr if usable(r) and r not in restarted]
    if steady:
        isr = tuple(steady)
        leader = state.leader if state.leader in isr else _first(state.replicas, isr)
        return moved(state, leader, isr, min_isr=min_isr, lost=gone)
    holders = tuple(r for r in state.isr if r not in lost)
    if len(state.replicas) == 1:
        # Nobody else could ever hold more than this one does, so an empty disk is as good as it gets.
        holders = state.isr
    back = tuple(r for r in holders if usable(r))
    if not back:
        back = tuple(r for r in state.elr if r not in gone and usable(r))[:1]
    if back:
        leader = _first(state.replicas, back)
        return moved(state, leader, back, min_isr=min_isr, lost=gone, new_term=leader == state.leader)
    last = _last_leader(state)
    if not holders and not set(state.elr) - gone and last in state.replicas and last not in emptied and usable(last):
        return moved(state, last, (last,), min_isr=1, new_term=last == state.leader)
    if unclean:
        # Any log is better than an empty one, and a replica that is only being added may have just that.
        live = [r for r in state.replicas if usable(r) and r not in state.adding]
        live.sort(key=lambda r: r in emptied)
        if live:
            return moved(state, live[0], (live[0],), min_isr=1, new_term=live[0] == state.leader)
    offline = moved(state, NO_LEADER, holders, min_isr=min_isr, lost=gone)
    if offline.last_known_leader in emptied:
        offline = replace(offline, last_known_leader=NO_LEADER, partition_epoch=state.partition_epoch + 1)
    if state.isr and not holders:
        # Should somebody decide to lose records, then those that an empty disk never had come last.
        kept = tuple(r for r in state.replicas if r not in emptied)
        offline = replace(offline, replicas=kept + tuple(r for r in state.replicas if r in emptied))
    return offline


def _first(replicas: Iterable[int], eligible: Collection[int]) -> int:
    return next(r for r in replicas if r in eligible)


def reconcile(view: View, unclean_allowed: UncleanAllowed) -> Plan:
    """What the brokers that are there now mean for all partitions: for any number that came, went or restarted.

    It looks at what is, not at what happened, so it is also what a new controller does first.
    """
    plan = Plan()
    restarted, lost, emptied = set(), set(), set()
    for broker, node in view.image.brokers.items():
        seen, now = view.incarnations.get(broker), incarnation_of(node)
        if seen == now:
            continue
        plan.incarnations[broker] = now
        if seen is not None and not seen.lives_on_in(now):
            restarted.add(broker)
            if not seen.kept_records_in(now):
                lost.add(broker)
            if seen.directory_id != now.directory_id:
                emptied.add(broker)
    for (name, index), state in view.partitions():
        failed = [r for r in (*state.isr, *state.elr) if view.has_failed(r, (name, index))]
        if not restarted and not failed and state.leader in state.isr and all(map(view.usable, state.isr)):
            continue
        settled = settle(
            state,
            patient(view, (name, index), state),
            min_isr=view.min_isr(name),
            restarted=restarted,
            lost=lost,
            emptied=emptied,
            failed=failed,
            unclean=unclean_allowed(name),
        )
        if settled is not state:
            plan.partitions[name, index] = settled
    return plan


def incarnation_of(node: Node) -> Incarnation:
    return Incarnation(node.epoch, node.directory_id, node.incarnation_id, node.lineage_id)


def patient(view: View, partition: PartitionId, state: Partition) -> Callable[[int], bool]:
    """A broker that wants to stop still counts for a partition that it leads and nobody else can."""

    def usable(broker: int) -> bool:
        if view.usable(broker, partition):
            return True
        return (
            broker == state.leader
            and broker in view.image.brokers
            and not view.has_failed(broker, partition)
            and not any(view.usable(r, partition) for r in (*state.isr, *state.elr))
        )

    return usable


def shut_down(view: View, broker: int) -> tuple[Plan, list[PartitionId]]:
    """Moves a stopping broker's leaderships away and takes it out of ISRs; also what it still leads.

    `view.stopping` has the broker in it already.
    """
    plan, remaining = Plan(), []
    for partition_id, state in view.partitions():
        if broker not in state.isr:
            continue
        settled = settle(state, patient(view, partition_id, state), min_isr=view.min_isr(partition_id[0]))
        if settled is not state:
            plan.partitions[partition_id] = settled
        if settled.leader == broker:
            remaining.append(partition_id)
    return plan, remaining


def elect(view: View, request: cpb.ElectLeadersRequest) -> tuple[Plan, cpb.ElectLeadersResponse]:
    """Elections on request: the preferred replica, or (unclean) anyone for a partition without a leader."""
    plan, response = Plan(), cpb.ElectLeadersResponse()
    everything = not request.partitions
    for named in request.partitions or _all_partitions(view.image):
        refusal: KafkaError | None = None
        try:
            topic, state = resolve_partition(view.image, named)
            partition_id = (topic.name, named.partition)
            elect_one = _elect_unclean if request.unclean else _elect_preferred
            plan.partitions[partition_id] = elect_one(view, partition_id, state)
        except KafkaError as refused:
            if everything and refused.code is ErrorCode.ELECTION_NOT_NEEDED:
                continue
            refusal = refused.bare()
        response.results.add(partition=named, error=error_message(refusal) if refusal else None)
    return plan, response


def _all_partitions(image: Image) -> Iterable[pb.TopicPartition]:
    for name, topic in image.topics.items():
        for index in range(len(topic.partitions)):
            yield pb.TopicPartition(topic=name, topic_id=topic.id.bytes, partition=index)


def _elect_preferred(view: View, partition_id: PartitionId, state: Partition) -> Partition:
    if not state.replicas:
        raise KafkaError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "its state in the registry cannot be read")
    preferred = state.preferred_leader
    if state.leader == preferred:
        raise KafkaError(
            ErrorCode.ELECTION_NOT_NEEDED, f"broker {preferred} is the preferred replica and leads already"
        )
    if not view.usable(preferred, partition_id):
        raise KafkaError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"broker {preferred}, the preferred one, is not there"
        )
    if preferred not in state.isr:
        raise KafkaError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"broker {preferred}, the preferred one, is not in sync (ISR {list(state.isr)}): wait until it is",
        )
    return moved(state, preferred, state.isr, min_isr=view.min_isr(partition_id[0]))


def _elect_unclean(view: View, partition_id: PartitionId, state: Partition) -> Partition:
    if state.leader != NO_LEADER:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, f"broker {state.leader} leads already")
    min_isr = view.min_isr(partition_id[0])
    settled = settle(state, lambda r: view.usable(r, partition_id), min_isr=min_isr, unclean=True)
    if settled.leader == NO_LEADER:
        raise KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"none of the replicas {list(state.replicas)} is there to lead"
        )
    return settled


def rebalance(view: View, imbalance_percentage: int) -> Plan:
    """Gives leaderships back to preferred replicas on brokers where more than this share is led by others."""
    preferred: dict[int, int] = {}
    elsewhere: dict[int, list[tuple[PartitionId, Partition]]] = {}
    for partition_id, state in view.partitions():
        broker = state.preferred_leader
        preferred[broker] = preferred.get(broker, 0) + 1
        if state.leader not in (broker, NO_LEADER):
            elsewhere.setdefault(broker, []).append((partition_id, state))
    plan = Plan()
    for broker, found in elsewhere.items():
        if not view.usable(broker) or len(found) * 100 <= imbalance_percentage * preferred[broker]:
            continue
        for partition_id, state in found:
            if view.has_failed(broker, partition_id):
                continue
            if broker in state.isr and not state.adding and not state.removing:
                plan.partitions[partition_id] = moved(state, broker, state.isr, min_isr=view.min_isr(partition_id[0]))
    return plan
