"""A Topic's status: pure."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.client import TopicPartition
from headrace.cluster.image import Topic
from headrace_operator import conditions, picture, quantities
from headrace_operator.conditions import Condition
from headrace_operator.resources import TopicStatus
from headrace_operator.topics import Verdict


def status_of(
    name: str,
    verdict: Verdict,
    actual: Topic | None,
    sizes: Mapping[TopicPartition, int],
    before: TopicStatus,
    generation: int,
    time: str,
) -> TopicStatus:
    """The whole status; `sizes` are of one copy of each partition, where they are known."""
    progress = Condition(
        conditions.PROGRESSING,
        verdict.progressing,
        verdict.reason if verdict.progressing else "Settled",
        verdict.message if verdict.progressing else "nothing is being changed",
    )
    listed = [Condition(conditions.READY, verdict.ready, verdict.reason, verdict.message), progress]
    told = conditions.updated(before.conditions, listed, generation, time)
    if actual is None:
        return TopicStatus(observed_generation=generation, conditions=told, topic_name=name)
    count = len(actual.partitions)
    moving = sum(picture.moving(state) for state in actual.partitions)
    known = [sizes[p] for i in range(count) if (p := TopicPartition(name, i)) in sizes]
    # Empty is not told: a thousand new topics would all be told again once their directories were looked at.
    size = quantities.rounded(sum(known)) if any(known) else None
    return TopicStatus(
        observed_generation=generation,
        conditions=told,
        topic_name=name,
        topic_id=str(actual.id),
        partitions=count,
        replicas=min((len(picture.target(state)) for state in actual.partitions), default=0),
        in_sync=f"{sum(not state.out_of_sync for state in actual.partitions)}/{count}",
        reassignment=f"{moving} of {count}" if moving else None,
        size=size if known else before.size,
    )
