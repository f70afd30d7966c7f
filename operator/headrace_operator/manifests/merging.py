"""How a user's pod template is laid over ours: objects key by key, lists of named things by name."""

from __future__ import annotations

from typing import Any

_KEYS = ("name", "mountPath", "key", "topologyKey")


def merged(ours: Any, theirs: Any) -> Any:
    """`theirs` over `ours`.

    >>> merged({"containers": [{"name": "broker", "image": "a"}]}, {"containers": [{"name": "broker", "tty": True}]})
    {'containers': [{'name': 'broker', 'image': 'a', 'tty': True}]}
    """
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return {**ours, **{key: merged(ours[key], value) if key in ours else value for key, value in theirs.items()}}
    if isinstance(ours, list) and isinstance(theirs, list):
        for key in _KEYS:
            if all(isinstance(each, dict) and key in each for each in (*ours, *theirs)):
                return _by_key(ours, theirs, key)
    return theirs


def _by_key(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    found = {each[key]: each for each in ours}
    for each in theirs:
        found[each[key]] = merged(found[each[key]], each) if each[key] in found else each
    return list(found.values())
