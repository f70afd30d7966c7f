"""Where partitions go when brokers come and leave.

Both plans are made anew from the picture each time, in portions: what is moving already counts as moved, so asking
again goes on with the rest, and with what was created meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from headrace.client import TopicPartition
from headrace.cluster.image import Image
from headrace_operator import picture

PORTION = 50
"""Partitions that may move at a time."""


@dataclass(slots=True)
class Moves:
    """New replicas by partition, and what cannot move."""

    moves: dict[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    stuck: dict[TopicPartition, str] = field(default_factory=dict)
    left: int = 0
    """Partitions that still have to move, those under way included."""


def drain(image: Image, leaving: Collection[int], portion: int = PORTION) -> Moves:
    """Moves everything away from brokers that leave, to those that stay; nothing left: they hold nothing."""
    found = Moves()
    held = picture.held(image)
    staying = [b for b in image.brokers if b not in leaving]
    room = portion - _under_way(image)
    for name, state in picture.partitions(image):
        if not any(r in leaving for r in state.replicas):
            continue
        found.left += 1
        replicas = list(picture.target(state))
        if picture.moving(state) or not any(r in leaving for r in replicas):
            continue
        free = [b for b in staying if b not in replicas]
        if len(free) < sum(r in leaving for r in replicas):
            found.stuck[name] = (
                f"{name.topic} has {len(replicas)} replicas and only {len(staying)} brokers stay: "
                "lower its replicas, or keep more brokers"
            )
            continue
        if room <= 0:
            continue
        room -= 1
        for at, replica in enumerate(replicas):
            if replica in leaving:
                # The rack of who leaves is free again.
                replicas[at] = choose(image, [r for r in replicas if r not in leaving], free, held)
                free.remove(replicas[at])
                held[replicas[at]] += 1
                held[replica] -= 1
        found.moves[name] = tuple(replicas)
    return found


def spread(image: Image, fresh: Collection[int], portion: int = PORTION) -> Moves:
    """Gives new brokers their share, taking from those that hold most; nothing left: they have it."""
    found = Moves()
    held = picture.held(image)
    brokers = sorted(image.brokers)
    if not brokers or any(b not in image.brokers for b in fresh):
        found.left = 1
        return found
    share = sum(held[b] for b in brokers) // len(brokers)
    under_way = _under_way(image)
    room = portion - under_way
    wanted = Counter({b: share - held[b] for b in fresh if held[b] < share})
    for name, state in sorted(picture.partitions(image), key=lambda item: (item[0].partition, item[0].topic)):
        if not wanted or room <= 0:
            break
        if picture.moving(state):
            continue
        replicas = list(state.replicas)
        free = [b for b in wanted if b not in replicas]
        giving = [r for r in replicas if r not in fresh and held[r] > share]
        if not free or not giving:
            continue
        old = max(giving, key=lambda b: (held[b], b))
        others = [r for r in replicas if r != old]
        new = choose(image, others, free, held)
        # The share of leaderships moves along: the new replica takes the place of the old one in the order.
        found.moves[name] = tuple(new if r == old else r for r in replicas)
        held[old] -= 1
        held[new] += 1
        wanted[new] -= 1
        wanted = +wanted
        room -= 1
    found.left = len(found.moves) + under_way
    return found


def choose(image: Image, replicas: Collection[int], free: Collection[int], held: Counter[int]) -> int:
    """The broker for one more replica: in a rack without one if there is such, and with the fewest replicas."""
    racks = {image.brokers[r].rack for r in replicas if r in image.brokers}

    def cost(broker: int) -> tuple[bool, int, int]:
        rack = image.brokers[broker].rack
        return bool(rack) and rack in racks, held[broker], broker

    return min(free, key=cost)


def _under_way(image: Image) -> int:
    return sum(picture.moving(state) for _, state in picture.partitions(image))
