"""Server-side assignors of consumer groups: who shall read which partition.

Both are pure: the members with their subscriptions, what they had before, and the topics go in; a share for every
member comes out. Equal input gives equal output, whatever order it comes in.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from headrace.coordinator.calls import Partitions
from headrace.coordinator.values import NO_PARTITIONS


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """What an assignor knows of a member."""

    topics: frozenset[uuid.UUID]
    previous: Partitions = NO_PARTITIONS
    instance_id: str | None = None


Assignor = Callable[[Mapping[str, MemberSpec], Mapping[uuid.UUID, int]], dict[str, Partitions]]
"""(members by id, partitions by topic) → shares by member id."""


def range_assignor(members: Mapping[str, MemberSpec], topics: Mapping[uuid.UUID, int]) -> dict[str, Partitions]:
    """Each topic cut into even runs for its subscribers, in a fixed order (static members first), so that partition n
    of two topics with the same number of partitions goes to the same member."""
    shares: dict[str, list[tuple[uuid.UUID, int]]] = {member_id: [] for member_id in members}
    order = sorted(members, key=lambda m: (members[m].instance_id is None, members[m].instance_id or "", m))
    for topic_id, count in topics.items():
        subscribers = [member_id for member_id in order if topic_id in members[member_id].topics]
        if not subscribers:
            continue
        quota, extra = divmod(count, len(subscribers))
        start = 0
        for position, member_id in enumerate(subscribers):
            end = start + quota + (position < extra)
            shares[member_id] += [(topic_id, index) for index in range(start, end)]
            start = end
    return {member_id: frozenset(share) for member_id, share in shares.items()}


def uniform_assignor(members: Mapping[str, MemberSpec], topics: Mapping[uuid.UUID, int]) -> dict[str, Partitions]:
    """As even as the subscriptions allow, moving as little as possible from what members had."""
    subscriptions = {spec.topics for spec in members.values()}
    if len(subscriptions) <= 1:
        return _uniform_same(members, topics)
    return _uniform_mixed(members, topics)


def _uniform_same(members: Mapping[str, MemberSpec], topics: Mapping[uuid.UUID, int]) -> dict[str, Partitions]:
    """All members subscribe to the same topics: shares differ by one at most."""
    if not members:
        return {}
    subscribed = next(iter(members.values())).topics
    free = {(t, index) for t in subscribed for index in range(topics.get(t, 0))}
    quota, extra = divmod(len(free), len(members))
    shares: dict[str, set[tuple[uuid.UUID, int]]] = {}
    # Who had most keeps one more than the others, as long as there are such places: fewest partitions move.
    for member_id in sorted(members, key=lambda m: (-len(members[m].previous), m)):
        had = sorted(members[member_id].previous & free)
        room = quota + 1 if extra and len(had) > quota else quota
        extra -= room > quota
        shares[member_id] = set(had[:room])
        free.difference_update(had[:room])
    left = sorted(free, reverse=True)
    for member_id in sorted(shares, key=lambda m: (len(shares[m]), m)):
        share = shares[member_id]
        room = quota - len(share)
        if extra and len(share) <= quota:
            room += 1
            extra -= 1
        share.update(left.pop() for _ in range(min(room, len(left))))
    return {member_id: frozenset(share) for member_id, share in shares.items()}


def _uniform_mixed(members: Mapping[str, MemberSpec], topics: Mapping[uuid.UUID, int]) -> dict[str, Partitions]:
    """Members subscribe to different topics: keep what is valid, give the rest to who has least, then even out."""
    subscribers = {t: sorted(m for m in members if t in members[m].topics) for t in topics}
    owner: dict[tuple[uuid.UUID, int], str] = {}
    load = dict.fromkeys(members, 0)
    for member_id in sorted(members):
        spec = members[member_id]
        for partition in sorted(spec.previous):
            topic_id, index = partition
            if topic_id in spec.topics and index < topics.get(topic_id, 0) and partition not in owner:
                owner[partition] = member_id
                load[member_id] += 1
    # Topics with few readers first: their partitions have the least choice.
    for topic_id in sorted(topics, key=lambda t: (len(subscribers[t]), t)):
        if not subscribers[topic_id]:
            continue
        heap = [(load[m], m) for m in subscribers[topic_id]]
        heapify(heap)
        for index in range(topics[topic_id]):
            if (topic_id, index) not in owner:
                count, member_id = heappop(heap)
                owner[(topic_id, index)] = member_id
                load[member_id] = count + 1
                heappush(heap, (count + 1, member_id))
    _even_out(owner, load, subscribers)
    shares: dict[str, list[tuple[uuid.UUID, int]]] = {member_id: [] for member_id in members}
    for partition, member_id in owner.items():
        shares[member_id].append(partition)
    return {member_id: frozenset(share) for member_id, share in shares.items()}


def _even_out(
    owner: dict[tuple[uuid.UUID, int], str], load: dict[str, int], subscribers: Mapping[uuid.UUID, list[str]]
) -> None:
    """Move partitions from members with more to members with at least two fewer until no such move is left.

    Each move makes the sum of squared loads smaller, so this ends.
    """
    held: dict[uuid.UUID, dict[str, list[int]]] = {}
    for (topic_id, index), member_id in sorted(owner.items()):
        held.setdefault(topic_id, {}).setdefault(member_id, []).append(index)
    moved = True
    while moved:
        moved = False
        for topic_id in sorted(held):
            by_member = held[topic_id]
            while True:
                giver = max((m for m in by_member if by_member[m]), key=lambda m: (load[m], m))
                taker = min(subscribers[topic_id], key=lambda m: (load[m], m))
                if load[giver] - load[taker] < 2:
                    break
                index = by_member[giver].pop()
                by_member.setdefault(taker, []).append(index)
                owner[(topic_id, index)] = taker
                load[giver] -= 1
                load[taker] += 1
                moved = True


ASSIGNORS: dict[str, Assignor] = {"uniform": uniform_assignor, "range": range_assignor}
