"""Places in a log as people write them: `beginning`, `end`, an offset, `-N` (the last N), or a time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from headrace.config import InvalidConfig

_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"-(\d+)([smhd])")


@dataclass(frozen=True, slots=True)
class Place:
    """Exactly one of the fields is set; `time` is milliseconds since 1970, or -1 for the end and -2 for the start."""

    offset: int | None = None
    last: int | None = None
    time: int | None = None


def parse_place(text: str, now_ms: int) -> Place:
    """Reads a place.

    >>> parse_place("42", 0), parse_place("-10", 0)
    (Place(offset=42, last=None, time=None), Place(offset=None, last=10, time=None))
    >>> parse_place("@1700000000000", 0), parse_place("-5m", 1_000_000)
    (Place(offset=None, last=None, time=1700000000000), Place(offset=None, last=None, time=700000))
    """
    word = text.strip()
    if word in ("beginning", "start", "earliest"):
        return Place(time=-2)
    if word in ("end", "latest"):
        return Place(time=-1)
    if word.isdecimal():
        return Place(offset=int(word))
    if word.startswith("-") and word[1:].isdecimal():
        return Place(last=int(word[1:]))
    if word.startswith("@") and word[1:].isdecimal():
        return Place(time=int(word[1:]))
    ago = _AGO.fullmatch(word)
    if ago:
        return Place(time=now_ms - int(ago[1]) * _UNITS[ago[2]])
    try:
        # A time without a zone is local, as people mean it.
        return Place(time=int(datetime.fromisoformat(word).timestamp() * 1000))
    except ValueError:
        raise InvalidConfig(
            f"{text!r} is no place in a log: give beginning, end, an offset, -N for the last N, "
            "@MILLISECONDS, a time like 2026-01-31T12:00 or an age like -15m"
        ) from None
