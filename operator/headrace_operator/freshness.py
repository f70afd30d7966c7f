"""Whether the watches are alive: what a plain list shows must come by the watch, too, within a grace.

A watch that ended without a word looks like a quiet cluster. Comparing it with lists tells the two apart.
"""

from __future__ import annotations

from collections.abc import Mapping

Key = tuple[str, str, str]
"""Kind, namespace and name."""


class Freshness:
    """Compares what was listed with what the watches told. Times are given by the caller."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._told: dict[Key, int] = {}
        self._awaited: dict[Key, tuple[int | None, float]] = {}

    def told(self, key: Key, version: int | None) -> None:
        """The watch told of a version of a resource; None: it is gone."""
        if version is None:
            self._told.pop(key, None)
        else:
            self._told[key] = version

    def listed(self, versions: Mapping[Key, int], now: float) -> None:
        """A list showed these. What the watches did not tell yet is awaited from the first list that showed it."""
        behind: dict[Key, int | None] = {k: v for k, v in versions.items() if self._told.get(k, -1) < v}
        behind |= {key: None for key in self._told if key not in versions}
        before, self._awaited = self._awaited, {}
        for key, version in behind.items():
            old = before.get(key)
            self._awaited[key] = old if old is not None and not self._arrived(key, old[0]) else (version, now)

    def _arrived(self, key: Key, version: int | None) -> bool:
        if version is None:
            return key not in self._told
        return self._told.get(key, -1) >= version

    def stale(self, now: float) -> Key | None:
        """A resource whose news is overdue; None when all is well."""
        for key, (version, since) in self._awaited.items():
            if now - since > self._grace and not self._arrived(key, version):
                return key
        return None
