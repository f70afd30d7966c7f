"""Kubernetes' quantities: read to compare them, written rounded for people."""

from __future__ import annotations

import re

_UNITS = {"": 1, "k": 10**3, "m": 0.001}
_UNITS |= {unit: 1000 ** (power + 2) for power, unit in enumerate("MGTPE")}
_UNITS |= {f"{unit}i": 1024 ** (power + 1) for power, unit in enumerate("KMGTPE")}
_QUANTITY = re.compile(r"([0-9.]+)([A-Za-z]*)")


def parse(text: str) -> float:
    """
    >>> parse("1.5Gi")
    1610612736.0
    """
    match = _QUANTITY.fullmatch(text.strip())
    if not match or match[2] not in _UNITS:
        raise ValueError(f"{text!r} is not a quantity: give a number with a unit, as in 10Gi")
    return float(match[1]) * _UNITS[match[2]]


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
