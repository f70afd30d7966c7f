"""The life of topics: create, add partitions, delete.

Each topic of a request is refused or planned on its own. Names, counts and placement follow `cluster.topics` and
`cluster.placement`; this is where they meet a request, the live brokers and what exists already.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.cluster import placement
from headrace.cluster.image import Topic
from headrace.cluster.topics import check_count, check_growth, check_new_name
from headrace.controller.leaders import first_leader
from headrace.controller.plan import Plan, View, resolve
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Random
from headrace.rpc.errors import error_message
from headrace.v1 import controller_pb2 as cpb

DEFAULT = -1
"""In a request: the cluster's default."""


@dataclass(frozen=True, slots=True)
class TopicRules:
    """What the cluster's settings say about topics."""

    num_partitions: int = 1
    replication_factor: int = 1
    deletion_enabled: bool = True
    overrides: Callable[[Mapping[str, str]], dict[str, str]] = dict
    """A new topic's settings as they are kept; raises INVALID_CONFIG for those that a topic cannot have."""


def create(
    view: View, request: cpb.CreateTopicsRequest, rules: TopicRules, random: Random
) -> tuple[Plan, cpb.CreateTopicsResponse]:
    """Plans every topic that can be made; with `validate_only` the plan is not to be carried out."""
    plan, response = Plan(), cpb.CreateTopicsResponse()
    twice = _repeated(asked.name for asked in request.topics)
    for asked in request.topics:
        result = response.topics.add(name=asked.name)
        try:
            if asked.name in twice:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"topic {asked.name} is in the request twice")
            topic = _new_topic(view, asked, rules, random)
            overrides = rules.overrides(asked.configs)
        except KafkaError as refused:
            result.error.CopyFrom(error_message(refused))
            continue
        step = Plan(topics={topic.name: topic})
        if overrides:
            step.topic_configs[topic.name] = overrides
        view = replace(view, image=step.over(view.image))
        plan.topics |= step.topics
        plan.topic_configs |= step.topic_configs
        _describe(result, topic)
        if request.validate_only:
            result.topic_id = b""
    return plan, response


def _new_topic(view: View, asked: cpb.CreateTopicsRequest.NewTopic, rules: TopicRules, random: Random) -> Topic:
    name = asked.name
    if name in view.image.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} already exists")
    check_new_name(name, view.image.topics)
    if asked.assignments:
        assigned = _manual(view, asked)
    else:
        count = rules.num_partitions if asked.partitions == DEFAULT else asked.partitions
        factor = rules.replication_factor if asked.replication_factor == DEFAULT else asked.replication_factor
        check_count(name, count)
        assigned = _placed(view, count, factor, random)
    topic_id = uuid.UUID(int=random.getrandbits(128), version=4)
    return Topic(name, topic_id, tuple(first_leader(replicas, view.usable) for replicas in assigned))


def _manual(view: View, asked: cpb.CreateTopicsRequest.NewTopic) -> list[placement.Replicas]:
    for word, value in (("number of partitions", asked.partitions), ("replication factor", asked.replication_factor)):
        if value != DEFAULT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"with replicas chosen by hand the {word} has to be -1, not {value}"
            )
    check_count(asked.name, len(asked.assignments))
    return _assigned(view, asked.assignments, first=0)


def _assigned(view: View, assignments: Sequence[cpb.ReplicaAssignment], first: int) -> list[placement.Replicas]:
    by_index = {given.partition: tuple(given.replicas) for given in assignments}
    expected = range(first, first + len(assignments))
    if sorted(by_index) != list(expected):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"replicas are given for partitions {sorted(given.partition for given in assignments)},"
            f" they have to be {expected.start} to {expected.stop - 1}, each once",
        )
    assigned = [by_index[index] for index in expected]
    placement.check_assignments(assigned, filter(view.usable, view.image.brokers), first)
    return assigned


def _placed(
    view: View, count: int, factor: int, random: Random, existing: Sequence[placement.Replicas] = ()
) -> list[placement.Replicas]:
    racks = {broker: node.rack for broker, node in view.image.brokers.items() if view.usable(broker)}
    cluster = placement.cluster_load(view.image)
    return placement.place(count, factor, racks, random=random, topic=existing, cluster=cluster)


def grow(view: View, request: cpb.CreatePartitionsRequest, random: Random) -> tuple[Plan, cpb.CreatePartitionsResponse]:
    """Plans more partitions for topics; there are never fewer."""
    plan, response = Plan(), cpb.CreatePartitionsResponse()
    twice = _repeated(asked.name for asked in request.topics)
    for asked in request.topics:
        result = response.topics.add(name=asked.name)
        try:
            if asked.name in twice:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"topic {asked.name} is in the request twice")
            topic = _grown(view, asked, random)
        except KafkaError as refused:
            result.error.CopyFrom(error_message(refused))
            continue
        step = Plan(topics={topic.name: topic})
        view = replace(view, image=step.over(view.image))
        plan.topics |= step.topics
        _describe(result, topic)
    return plan, response


def _grown(view: View, asked: cpb.CreatePartitionsRequest.Growth, random: Random) -> Topic:
    topic = view.image.topics.get(asked.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {asked.name}")
    _check_not_internal(topic)
    have = len(topic.partitions)
    check_growth(topic.name, have, asked.count)
    existing = [tuple(r for r in state.replicas if r not in state.removing) for state in topic.partitions]
    factor = max(map(len, existing))
    if asked.assignments:
        if len(asked.assignments) != asked.count - have:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{topic.name}: {asked.count - have} new partitions, but replicas for {len(asked.assignments)}",
            )
        # Callers number the new partitions from 0 or leave the number out: only their order counts.
        numbered = [
            cpb.ReplicaAssignment(partition=index, replicas=given.replicas)
            for index, given in enumerate(asked.assignments, have)
        ]
        assigned = _assigned(view, numbered, first=have)
        if len(assigned[0]) != factor:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{topic.name} has {factor} replicas a partition, the new ones have {len(assigned[0])}: give as many",
            )
    else:
        assigned = _placed(view, asked.count - have, factor, random, existing)
    added = tuple(first_leader(replicas, view.usable) for replicas in assigned)
    return replace(topic, partitions=topic.partitions + added)


def delete(view: View, request: cpb.DeleteTopicsRequest, rules: TopicRules) -> tuple[Plan, cpb.DeleteTopicsResponse]:
    """Plans the end of topics, named by name or by id."""
    plan, response = Plan(), cpb.DeleteTopicsResponse()
    twice = _repeated((asked.topic, asked.topic_id) for asked in request.topics)
    for asked in request.topics:
        result = response.topics.add(name=asked.topic, topic_id=asked.topic_id)
        try:
            if not rules.deletion_enabled:
                raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false on this cluster")
            if asked.topic and asked.topic_id:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "name a topic by its name or by its id, not by both")
            if (asked.topic, asked.topic_id) in twice:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"topic {asked.topic} is in the request twice")
            topic = resolve(view.image, asked)
            _check_not_internal(topic)
            if topic.name in plan.deleted:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"topic {topic.name} is in the request by name and by id")
        except KafkaError as refused:
            result.error.CopyFrom(error_message(refused))
            continue
        plan.deleted[topic.name] = topic
        _describe(result, topic)
    return plan, response


def _check_not_internal(topic: Topic) -> None:
    """Groups live where their names hash to: with other partitions, or none, their offsets would be lost."""
    if topic.internal:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is internal: it cannot be changed so")


def _repeated(names: Iterable[object]) -> set[object]:
    return {name for name, count in Counter(names).items() if count > 1}


def _describe(result: cpb.TopicResult, topic: Topic) -> None:
    result.name = topic.name
    result.topic_id = topic.id.bytes
    result.partitions = len(topic.partitions)
    result.replication_factor = len(topic.partitions[0].replicas)
