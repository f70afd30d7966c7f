"""Kubernetes' quantities: read to compare them, written rounded for people."""

from __future__ import annotations

import math
import re
from fractions import Fraction

_UNITS = {"": Fraction(1), "k": Fraction(10**3), "m": Fraction(1, 1000)}
_UNITS |= {unit: Fraction(1000 ** (power + 2)) for power, unit in enumerate("MGTPE")}
_UNITS |= {f"{unit}i": Fraction(1024 ** (power + 1)) for power, unit in enumerate("KMGTPE")}
_QUANTITY = re.compile(r"([0-9.]+)([A-Za-z]*)")


def parse(text: str) -> int:
    """In whole units, rounded up: the same for every spelling that the API server may give to a quantity.

    >>> parse("1.5Gi"), parse("1536Mi"), parse("0.1Gi"), parse("107374182400m")
    (1610612736, 1610612736, 107374183, 107374183)
    """
    match = _QUANTITY.fullmatch(text.strip())
    if not match or match[2] not in _UNITS:
        raise ValueError(f"{text!r} is not a quantity: give a number with a unit, as in 10Gi")
    return math.ceil(Fraction(match[1]) * _UNITS[match[2]])


def rounded(size: float) -> str:
    """Two digits are enough to see how large something is, and do not change with every record.

    >>> rounded(1_234_567_890), rounded(512), rounded(0)
    ('1.1Gi', '512', '0')
    """
    for power, unit in reversed(list(enumerate(("", "Ki", "Mi", "Gi", "Ti", "Pi")))):
        scaled = size / 1024**power
        if scaled >= 1 or not power:
            return f"{scaled:.1f}{unit}" if scaled < 10 and power else f"{scaled:.0f}{unit}"
    return "0"
