"""Which topic names and partition counts are allowed, in Kafka's rules and with texts that say what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable

from headrace.errors import ErrorCode, KafkaError

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
"""Topics that belong to Headrace itself: clients see them marked, and may not create or delete them."""

MAX_NAME_LENGTH = 249
"""A partition's directory is the name, a dash and a number, and a file name holds 255 bytes."""

MAX_PARTITIONS_AT_ONCE = 10_000
"""Partitions that one request may create, as in Kafka: more of them would hold the controller up for everyone."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def is_internal(name: str) -> bool:
    return name in INTERNAL_TOPICS


def check_name(name: str) -> None:
    """Refuses a name that no topic can have."""
    if not name:
        raise _invalid("a topic name cannot be empty")
    if name in (".", ".."):
        raise _invalid(f"topic name {name!r} is not allowed: it means a directory")
    if len(name) > MAX_NAME_LENGTH:
        raise _invalid(f"topic name {name[:20]!r}... has {len(name)} characters, at most {MAX_NAME_LENGTH} are allowed")
    if not _LEGAL.fullmatch(name):
        raise _invalid(f"topic name {name!r} is not allowed: use only ASCII letters, digits, '.', '_' and '-'")


def check_new_name(name: str, existing: Iterable[str]) -> None:
    """Refuses a name that is illegal, or that metrics could not tell from an existing topic's ('.' becomes '_' there).

    That the very same name exists is not looked at here.
    """
    check_name(name)
    if "." not in name and "_" not in name:
        return
    folded = name.replace(".", "_")
    for other in existing:
        if len(other) == len(name) and other != name and other.replace(".", "_") == folded:
            raise _invalid(f"topic {name} collides with topic {other}: names that differ only in '.' and '_' are one")


def check_count(name: str, count: int) -> None:
    """Refuses a number of partitions that a new topic cannot have."""
    if count < 1:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"topic {name} needs at least 1 partition, not {count}")
    _check_at_once(name, count)


def check_growth(name: str, current: int, wanted: int) -> None:
    """Refuses a number of partitions that an existing topic cannot grow to: partitions never become fewer."""
    if wanted == current:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"topic {name} already has {current} partitions")
    if wanted < current:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {name} has {current} partitions and cannot have fewer, {wanted} were asked for",
        )
    _check_at_once(name, wanted - current)


def _check_at_once(name: str, count: int) -> None:
    if count > MAX_PARTITIONS_AT_ONCE:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {name}: {count} new partitions are too many at once, ask for at most {MAX_PARTITIONS_AT_ONCE}",
        )


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
