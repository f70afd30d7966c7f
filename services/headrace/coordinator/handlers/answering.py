"""How a handler passes a request to the group logic, and answers when the logic does."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import groupby
from typing import Any

from headrace.coordinator.calls import Partitions
from headrace.coordinator.effects import Token
from headrace.wire.api import Context

_MILLISECOND = timedelta(milliseconds=1)


def answer_with(context: Context, write: Callable[[Any], dict[str, Any]]) -> Token:
    """The token of a call: completes the request with what `write` makes of the logic's response."""
    return lambda response: context.complete(write(response))


def milliseconds(time: timedelta) -> int:
    """A time field, which kio reads as a timedelta."""
    return time // _MILLISECOND


def host_of(context: Context) -> str:
    """Where a member connects from, as Kafka writes it."""
    return f"/{context.connection.peer[0]}"


def by_topic(partitions: Partitions) -> Iterable[tuple[uuid.UUID, list[int]]]:
    """Partitions grouped by topic id, in order."""
    for topic_id, found in groupby(sorted(partitions), key=lambda each: each[0]):
        yield topic_id, [index for _, index in found]
