"""Who in a group reads what: Kafka's assignors as plain functions from subscriptions to shares.

All of them give the same answer whatever the order of their input, so that any member may be the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.client.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member wants to read, and what it has from an earlier generation.

    >>> Subscription(("orders",)).owned
    ()
    """

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    instance_id: str = ""
    user_data: bytes | None = field(default=None, repr=False)


Shares = dict[str, list[TopicPartition]]
Assignor = Callable[[Mapping[str, int], Mapping[str, Subscription]], Shares]
"""From partition counts by topic, and subscriptions by member id, to everyone's share."""


def range_assignor(counts: Mapping[str, int], members: Mapping[str, Subscription]) -> Shares:
    """Each topic cut into runs of partitions, the first members getting one more where it does not divide.

    >>> range_assignor({"t": 3}, {"a": Subscription(("t",)), "b": Subscription(("t",))})["a"]
    [TopicPartition(topic='t', partition=0), TopicPartition(topic='t', partition=1)]
    """
    shares: Shares = {member: [] for member in members}
    for topic in sorted(counts):
        wanting = [member for member in _ordered(members) if topic in members[member].topics]
        if not wanting:
            continue
        each, extra = divmod(counts[topic], len(wanting))
        start = 0
        for place, member in enumerate(wanting):
            stop = start + each + (place < extra)
            shares[member] += [TopicPartition(topic, index) for index in range(start, stop)]
            start = stop
    return shares


def round_robin_assignor(counts: Mapping[str, int], members: Mapping[str, Subscription]) -> Shares:
    """All partitions of all topics dealt out one by one.

    >>> round_robin_assignor({"t": 3}, {"a": Subscription(("t",)), "b": Subscription(("t",))})["a"]
    [TopicPartition(topic='t', partition=0), TopicPartition(topic='t', partition=2)]
    """
    shares: Shares = {member: [] for member in members}
    order = _ordered(members)
    turn = 0
    for partition in _partitions(counts):
        for step in range(len(order)):
            member = order[(turn + step) % len(order)]
            if partition.topic in members[member].topics:
                shares[member].append(partition)
                turn = (turn + step + 1) % len(order)
                break
    return shares


def sticky_assignor(counts: Mapping[str, int], members: Mapping[str, Subscription]) -> Shares:
    """As even as the subscriptions allow, and of those the one that moves the fewest partitions.

    >>> kept = Subscription(("t",), (TopicPartition("t", 1),), 1)
    >>> sticky_assignor({"t": 2}, {"a": kept, "b": Subscription(("t",))})["a"]
    [TopicPartition(topic='t', partition=1)]
    """
    partitions = _partitions(counts)
    order = _ordered(members)
    able = {topic: [m for m in order if topic in members[m].topics] for topic in counts}
    owner = _kept(partitions, members)
    load = dict.fromkeys(order, 0)
    for member in owner.values():
        load[member] += 1
    # Those that few may have first: the others can still go around them.
    for partition in sorted(partitions, key=lambda p: (len(able[p.topic]), p)):
        if partition not in owner and able[partition.topic]:
            member = min(able[partition.topic], key=lambda m: (load[m], m))
            owner[partition] = member
            load[member] += 1
    _balance(owner, load, able)
    shares: Shares = {member: [] for member in members}
    for partition in partitions:
        if partition in owner:
            shares[owner[partition]].append(partition)
    return shares


def cooperative_sticky_assignor(counts: Mapping[str, int], members: Mapping[str, Subscription]) -> Shares:
    """Sticky, in two steps: what moves is given to nobody now, and to its new owner once the old one has let go.

    >>> a = Subscription(("t",), (TopicPartition("t", 0), TopicPartition("t", 1)), 1)
    >>> cooperative_sticky_assignor({"t": 2}, {"a": a, "b": Subscription(("t",))})["b"]
    []
    """
    shares = sticky_assignor(counts, members)
    held = {partition: member for member, wish in members.items() for partition in wish.owned}
    return {
        member: [partition for partition in share if held.get(partition, member) == member]
        for member, share in shares.items()
    }


ASSIGNORS: dict[str, Assignor] = {
    "range": range_assignor,
    "roundrobin": round_robin_assignor,
    "sticky": sticky_assignor,
    "cooperative-sticky": cooperative_sticky_assignor,
}


def _ordered(members: Mapping[str, Subscription]) -> list[str]:
    """Static members by their own name, so that a restart does not change the order."""
    return sorted(members, key=lambda member: (members[member].instance_id or member, member))


def _partitions(counts: Mapping[str, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for topic in sorted(counts) for index in range(counts[topic])]


def _kept(partitions: Sequence[TopicPartition], members: Mapping[str, Subscription]) -> dict[TopicPartition, str]:
    """What stays where it is. Of two claims the one of the later generation counts, of two equal ones neither."""
    exists = set(partitions)
    claims: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in sorted(members):
        wish = members[member]
        for partition in wish.owned:
            if partition not in exists or partition.topic not in wish.topics:
                continue
            generation, _ = claims.get(partition, (-2, None))
            if wish.generation > generation:
                claims[partition] = (wish.generation, member)
            elif wish.generation == generation:
                claims[partition] = (generation, None)
    return {partition: member for partition, (_, member) in claims.items() if member is not None}


def _balance(owner: dict[TopicPartition, str], load: dict[str, int], able: Mapping[str, list[str]]) -> None:
    """Moves partitions from those with more to those with at least two fewer, until there is no such pair."""
    held: dict[str, list[TopicPartition]] = {member: [] for member in load}
    for partition in sorted(owner):
        held[owner[partition]].append(partition)
    moved = True
    while moved:
        moved = False
        for member in sorted(load, key=lambda m: (-load[m], m)):
            for partition in reversed(held[member]):
                least = min(able[partition.topic], key=lambda m: (load[m], m))
                if load[least] + 1 < load[member]:
                    held[member].remove(partition)
                    held[least].append(partition)
                    owner[partition] = least
                    load[member] -= 1
                    load[least] += 1
                    moved = True
