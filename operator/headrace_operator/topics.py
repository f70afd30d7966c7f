"""Topic resources against the topics there are: what to create, change and delete, and what to say of each.

Pure, and over all Topics of a cluster at once, so that a thousand of them are a few bulk calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from headrace.client import NewTopic, TopicPartition
from headrace.cluster.configs import TOPIC_KEYS
from headrace.cluster.image import NO_LEADER, Image, Topic
from headrace.config import InvalidConfig
from headrace_operator import picture, scaling
from headrace_operator.ledger import Owned
from headrace_operator.manifests.settings import texts
from headrace_operator.resources import TopicSpec

NOT_ENOUGH, CONFLICT, OTHER_GOES = "NotEnoughBrokers", "Conflict", "WaitingForDeletion"
ANOTHERS = frozenset({CONFLICT, OTHER_GOES})
"""Reasons of a Topic whose name in Kafka is still that of another one's topic: nothing of that is said of it."""
WRONG = frozenset({CONFLICT, NOT_ENOUGH, "InvalidConfig", "PartitionsCannotShrink"})
"""Reasons that a person has to do something about."""
LEFT_ALONE = frozenset({"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"})
"""Overrides that tools set for the time of a move; they are not drift."""


@dataclass(frozen=True, slots=True)
class TopicResource:
    """A Topic as it stands in the API server."""

    resource: str
    """Its name there."""
    uid: str
    created: str
    spec: TopicSpec
    deleting: bool = False
    """Somebody else's finalizer still holds it."""

    @property
    def name(self) -> str:
        """The topic's name in Kafka."""
        return self.spec.name or self.resource


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to say of a Topic."""

    ready: bool
    reason: str
    message: str
    progressing: bool = False


@dataclass(slots=True)
class Plan:
    """What to do in the cluster, what to say of each Topic (by uid), and what the ledger takes in and lets go."""

    creates: dict[str, NewTopic] = field(default_factory=dict)
    partitions: dict[str, int] = field(default_factory=dict)
    configs: dict[str, dict[str, str | None]] = field(default_factory=dict)
    moves: dict[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    deletes: dict[str, str] = field(default_factory=dict)
    """Names of topics whose Topic is gone, by its uid."""
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    keep: dict[str, Owned] = field(default_factory=dict)
    forget: set[str] = field(default_factory=set)
    created: set[str] = field(default_factory=set)
    """Names of topics that the cluster took, once this was carried out."""

    @property
    def acts(self) -> bool:
        """Whether the cluster is to be changed."""
        return bool(self.creates or self.partitions or self.configs or self.moves or self.deletes)


def waiting(topics: Iterable[TopicResource], reason: str, message: str) -> Plan:
    """What to say while the cluster cannot be asked."""
    return Plan(verdicts={topic.uid: Verdict(False, reason, message) for topic in topics})


def plan(
    topics: Iterable[TopicResource], image: Image, usable: Collection[int], owned: Mapping[str, Owned] | None = None
) -> Plan:
    """The plan; `usable` are brokers that may get replicas, `owned` is what the ledger says."""
    there, owned = list(topics), owned or {}
    found = Plan()
    found.deletes = {uid: owned[uid].topic for uid in owned.keys() - {topic.uid for topic in there}}
    going = set(found.deletes.values())
    held = picture.held(image)
    for name, rivals in _by_name(there).items():
        winner, *others = rivals
        for other in others:
            found.verdicts[other.uid] = Verdict(
                False,
                CONFLICT,
                f"the topic {name} belongs to the Topic {winner.resource}, which is older: delete one of the two",
            )
            if other.uid in owned:
                found.forget.add(other.uid)
        if winner.deleting:
            continue
        if name in going:
            message = f"the topic {name} of a Topic that was deleted goes first, with its data"
            found.verdicts[winner.uid] = Verdict(False, OTHER_GOES, message, True)
            continue
        if (winner.spec.deletion_policy == "Delete") != (winner.uid in owned):
            _enter(found, winner)
        _one(found, winner, image, usable, held)
    return found


def _enter(found: Plan, topic: TopicResource) -> None:
    if topic.spec.deletion_policy == "Delete":
        found.keep[topic.uid] = Owned(topic.resource, topic.name)
    else:
        found.forget.add(topic.uid)


def _by_name(topics: Iterable[TopicResource]) -> dict[str, list[TopicResource]]:
    """Topics by name in Kafka, those that want the same one by age."""
    found: dict[str, list[TopicResource]] = {}
    for topic in sorted(topics, key=lambda t: (t.created, t.resource)):
        found.setdefault(topic.name, []).append(topic)
    return found


def _one(found: Plan, topic: TopicResource, image: Image, usable: Collection[int], held: Counter[int]) -> None:
    spec, actual = topic.spec, image.topics.get(topic.name)
    try:
        config = normalized(spec.config)
    except InvalidConfig as error:
        found.verdicts[topic.uid] = Verdict(False, "InvalidConfig", error.message)
        return
    if actual is None:
        if spec.replicas is not None and spec.replicas > len(usable):
            found.verdicts[topic.uid] = Verdict(False, NOT_ENOUGH, _too_few(spec.replicas, usable))
            return
        found.creates[topic.name] = NewTopic(topic.name, spec.partitions, spec.replicas, config)
        found.verdicts[topic.uid] = Verdict(False, "Creating", "it is being created", True)
        return
    _alter(found, topic, actual, image, usable, held, config)


def _alter(
    found: Plan,
    topic: TopicResource,
    actual: Topic,
    image: Image,
    usable: Collection[int],
    held: Counter[int],
    config: Mapping[str, str],
) -> None:
    spec = topic.spec
    doing = []
    if changes := config_changes(config, image.topic_config(topic.name)):
        found.configs[topic.name] = changes
        doing.append("settings change")
    if spec.partitions is not None and spec.partitions < len(actual.partitions):
        found.verdicts[topic.uid] = Verdict(
            False,
            "PartitionsCannotShrink",
            f"it has {len(actual.partitions)} partitions, which can never be fewer: give at least as many",
        )
        return
    if spec.partitions is not None and spec.partitions > len(actual.partitions):
        # The controller gives them as many replicas as the others have, on brokers that are alive, and refuses else.
        factor = max(len(picture.target(state)) for state in actual.partitions)
        if factor <= len(usable):
            found.partitions[topic.name] = spec.partitions
            doing.append(f"it grows to {spec.partitions} partitions")
        else:
            doing.append(f"it grows to {spec.partitions} partitions once {factor} brokers are alive")
    short = False
    if spec.replicas is not None:
        moves = replica_moves(actual, spec.replicas, image, usable, held)
        found.moves |= moves
        under_way = sum(picture.moving(state) for state in actual.partitions)
        if moves or under_way:
            doing.append(f"{max(len(moves), under_way)} of {len(actual.partitions)} partitions move")
        short = any(
            not picture.moving(state) and len(state.replicas) < spec.replicas and (topic.name, index) not in moves
            for index, state in enumerate(actual.partitions)
        )
    verdict = _judge(actual, image, doing)
    if short and verdict.ready:
        verdict = Verdict(False, NOT_ENOUGH, _too_few(spec.replicas or 0, usable), bool(doing))
    found.verdicts[topic.uid] = verdict


def _judge(actual: Topic, image: Image, doing: list[str]) -> Verdict:
    leaderless = [i for i, p in enumerate(actual.partitions) if p.leader == NO_LEADER or p.leader not in image.brokers]
    if leaderless:
        return Verdict(False, "NoLeader", f"partitions {picture.some(leaderless)} have no leader", bool(doing))
    if doing:
        return Verdict(True, "Changing", ", ".join(doing), True)
    return Verdict(True, "AsSpecified", "the topic is as it shall be")


def _too_few(replicas: int, usable: Collection[int]) -> str:
    return f"it shall have {replicas} replicas and {len(usable)} brokers are alive: add brokers, or lower it"


def normalized(config: Mapping[str, object]) -> dict[str, str]:
    """A topic's settings in the one spelling the cluster keeps; InvalidConfig says what is wrong."""
    return {n: TOPIC_KEYS[n].render(TOPIC_KEYS[n].parse(text)) for n, text in sorted(texts(config).items())}


def config_changes(wanted: Mapping[str, str], actual: Mapping[str, str]) -> dict[str, str | None]:
    """What to set, and (None) what to take back."""
    found: dict[str, str | None] = {name: text for name, text in wanted.items() if actual.get(name) != text}
    found |= {name: None for name in actual if name not in wanted and name not in LEFT_ALONE}
    return found


def replica_moves(
    topic: Topic, replicas: int, image: Image, usable: Collection[int], held: Counter[int]
) -> dict[TopicPartition, tuple[int, ...]]:
    """Moves that give each partition its number of replicas; partitions that move already are left to arrive, and
    those that too few brokers are alive for stay as they are."""
    found: dict[TopicPartition, tuple[int, ...]] = {}
    for index, state in enumerate(topic.partitions):
        chosen = list(state.replicas)
        if picture.moving(state) or len(chosen) == replicas:
            continue
        free = [b for b in usable if b not in chosen]
        if len(chosen) + len(free) < replicas:
            continue
        while len(chosen) > replicas:
            # The last one goes, unless one is out of sync: that one is missed least.
            gone = next((r for r in reversed(chosen) if r not in state.isr), chosen[-1])
            chosen.remove(gone)
            held[gone] -= 1
        while len(chosen) < replicas:
            new = scaling.choose(image, chosen, free, held)
            free.remove(new)
            chosen.append(new)
            held[new] += 1
        found[TopicPartition(topic.name, index)] = tuple(chosen)
    return found
