"""Conditions: which there are, what they mean, and how a list of them is brought up to date."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

READY = "Ready"
"""Clients are served as the spec says. A broker that is down does not take it away; Degraded tells of that."""
PROGRESSING = "Progressing"
"""The operator is changing something; its reason says what, or why it cannot."""
DEGRADED = "Degraded"
"""Something that shall run does not, or a partition has fewer copies than it shall have."""
ROLLOUT_SAFE = "RolloutSafe"
"""Any one broker could be restarted now without a partition refusing writes."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition; True, False, or None for unknown."""

    type: str
    status: bool | None
    reason: str
    message: str


def updated(
    before: Iterable[Mapping[str, Any]], now: Iterable[Condition], generation: int, time: str
) -> tuple[dict[str, Any], ...]:
    """The list for a status: the time of a condition changes only when its status does."""
    known = {each["type"]: each for each in before}
    found = []
    for condition in now:
        status = {True: "True", False: "False", None: "Unknown"}[condition.status]
        old = known.get(condition.type)
        same = old is not None and old["status"] == status
        found.append(
            {
                "type": condition.type,
                "status": status,
                "observedGeneration": generation,
                "lastTransitionTime": old["lastTransitionTime"] if same and old is not None else time,
                "reason": condition.reason,
                "message": condition.message[:1024],
            }
        )
    return tuple(found)


def is_true(conditions: Iterable[Mapping[str, Any]], name: str) -> bool:
    """Whether a condition of a status is True."""
    return any(each.get("type") == name and each.get("status") == "True" for each in conditions)
