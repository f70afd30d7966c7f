"""Where new partitions go.

In this order: replicas of a partition on different brokers, then on as many racks as can be, then the topic even over
the brokers, then the brokers with the fewest replicas of any topic, then chance. A topic's own evenness comes before
the cluster's, because a topic that sits on the one new and empty broker is only as fast as that broker.

The first replica of each partition is its preferred leader; those are made even the same way. Which replica of a
partition leads is settled after all replicas are placed, by moving leaderships along chains (a hands one to b, b one
to c) until no chain evens out more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.cluster.image import Image
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Random

Replicas = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """How many replicas, and how many of them as the first, each broker holds."""

    replicas: Mapping[int, int] = field(default_factory=dict)
    leaders: Mapping[int, int] = field(default_factory=dict)


def load_of(assignments: Iterable[Replicas]) -> Load:
    """What `assignments` put on each broker."""
    replicas: dict[int, int] = {}
    leaders: dict[int, int] = {}
    for assigned in assignments:
        if assigned:
            leaders[assigned[0]] = leaders.get(assigned[0], 0) + 1
        for broker in assigned:
            replicas[broker] = replicas.get(broker, 0) + 1
    return Load(replicas, leaders)


def cluster_load(image: Image) -> Load:
    """What all topics of `image` put on each broker."""
    return load_of(partition.replicas for topic in image.topics.values() for partition in topic.partitions)


def check_replication_factor(replication_factor: int, brokers: Iterable[int]) -> None:
    """Refuses a replication factor that the live brokers cannot give."""
    live = sorted(brokers)
    if replication_factor < 1:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR, f"replication factor {replication_factor} is not allowed: at least 1"
        )
    if replication_factor > len(live):
        names = f"{len(live)}: {', '.join(map(str, live))}" if live else "none"
        noun = "broker" if replication_factor == 1 else "brokers"
        verb = "is" if len(live) == 1 else "are"
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor} needs {replication_factor} live {noun}, there {verb} {names}",
        )


def place(
    count: int,
    replication_factor: int,
    racks: Mapping[int, str],
    *,
    random: Random,
    topic: Sequence[Replicas] = (),
    cluster: Load | None = None,
) -> list[Replicas]:
    """Replicas of `count` new partitions, the preferred leader first.

    `racks` are the live brokers with their racks (empty: not told; those count as one rack), `topic` the partitions
    that the topic already has, `cluster` what the brokers hold of all topics.
    """
    check_replication_factor(replication_factor, racks)
    own, all_topics = load_of(topic), cluster or Load()
    board = _Board(racks, own, all_topics, random)
    placed = [board.choose(replication_factor) for _ in range(count)]
    leaders = _even_leaders(placed, own.leaders, all_topics.leaders, random)
    return [_first(leader, chosen, random) for leader, chosen in zip(leaders, placed, strict=True)]


def check_assignments(assignments: Sequence[Replicas], brokers: Iterable[int], first: int = 0) -> None:
    """Refuses replicas that a caller chose by hand: empty, repeated, of different number, or on unknown brokers."""
    known = set(brokers)
    for partition, replicas in enumerate(assignments, first):
        problem = None
        if not replicas:
            problem = "has no replicas"
        elif len(set(replicas)) != len(replicas):
            problem = f"has a broker twice in {list(replicas)}"
        elif len(replicas) != len(assignments[0]):
            problem = f"has {len(replicas)} replicas but partition {first} has {len(assignments[0])}: give all the same"
        elif unknown := [broker for broker in replicas if broker not in known]:
            live = ", ".join(map(str, sorted(known)))
            problem = f"names broker {unknown[0]}, which is not alive; live brokers: {live or 'none'}"
        if problem:
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"partition {partition} {problem}")


class _Board:
    """The running counts while replicas are chosen."""

    def __init__(self, racks: Mapping[int, str], own: Load, cluster: Load, random: Random) -> None:
        self._racks = racks
        self._random = random
        self._own = {broker: own.replicas.get(broker, 0) for broker in racks}
        self._all = {broker: cluster.replicas.get(broker, 0) for broker in racks}
        self._rack_own: dict[str, int] = {}
        for broker, rack in racks.items():
            self._rack_own[rack] = self._rack_own.get(rack, 0) + self._own[broker]

    def choose(self, replication_factor: int) -> list[int]:
        """The replicas of one more partition, in no meaningful order."""
        chosen: list[int] = []
        in_rack = dict.fromkeys(self._rack_own, 0)
        free = sorted(self._racks)
        self._random.shuffle(free)
        for _ in range(replication_factor):
            broker = min(free, key=lambda b: self._rank(b, in_rack))
            free.remove(broker)
            chosen.append(broker)
            in_rack[self._racks[broker]] += 1
        for broker in chosen:
            self._own[broker] += 1
            self._all[broker] += 1
            self._rack_own[self._racks[broker]] += 1
        return chosen

    def _rank(self, broker: int, in_rack: Mapping[str, int]) -> tuple[int, int, int, int]:
        rack = self._racks[broker]
        return in_rack[rack], self._own[broker], self._rack_own[rack], self._all[broker]


def _even_leaders(
    placed: Sequence[Sequence[int]], own: Mapping[int, int], cluster: Mapping[int, int], random: Random
) -> list[int]:
    """The leader of each partition, as even as the replicas allow."""
    topic_count = dict(own)
    all_count = dict(cluster)
    leaders: list[int] = []
    led: dict[int, set[int]] = {}
    for index, replicas in enumerate(placed):
        candidates = list(replicas)
        random.shuffle(candidates)
        leader = min(candidates, key=lambda b: (topic_count.get(b, 0), all_count.get(b, 0)))
        leaders.append(leader)
        led.setdefault(leader, set()).add(index)
        topic_count[leader] = topic_count.get(leader, 0) + 1
        all_count[leader] = all_count.get(leader, 0) + 1
    while chain := _chain(placed, led, topic_count):
        for index, giver, taker in chain:
            led[giver].remove(index)
            led.setdefault(taker, set()).add(index)
            leaders[index] = taker
        topic_count[chain[0][1]] -= 1
        topic_count[chain[-1][2]] = topic_count.get(chain[-1][2], 0) + 1
    return leaders


def _chain(
    placed: Sequence[Sequence[int]], led: Mapping[int, set[int]], counts: Mapping[int, int]
) -> list[tuple[int, int, int]]:
    """Handovers (partition, giver, taker) from a broker to one that leads at least two fewer; empty: none is left."""
    for start in sorted(led, key=lambda b: (-counts[b], b)):
        came: dict[int, tuple[int, int]] = {}
        queue = deque([start])
        seen = {start}
        while queue:
            giver = queue.popleft()
            for index in sorted(led.get(giver, ())):
                for taker in placed[index]:
                    if taker in seen:
                        continue
                    seen.add(taker)
                    came[taker] = (index, giver)
                    if counts.get(taker, 0) <= counts[start] - 2:
                        return _trace(came, start, taker)
                    queue.append(taker)
    return []


def _trace(came: Mapping[int, tuple[int, int]], start: int, end: int) -> list[tuple[int, int, int]]:
    chain: list[tuple[int, int, int]] = []
    while end != start:
        index, giver = came[end]
        chain.append((index, giver, end))
        end = giver
    return chain[::-1]


def _first(leader: int, replicas: Iterable[int], random: Random) -> Replicas:
    # Followers in random order: when a broker dies, its leaderships go to many brokers and not to one.
    followers = [broker for broker in replicas if broker != leader]
    random.shuffle(followers)
    return (leader, *followers)
