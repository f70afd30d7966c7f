"""Named clusters, so that --bootstrap need not be given: a small JSON file in the user's configuration folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def path() -> Path:
    """Where profiles are kept: HEADRACE_PROFILES, or headrace/profiles.json in the configuration folder."""
    given = os.environ.get("HEADRACE_PROFILES")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "headrace" / "profiles.json"


def load() -> dict[str, Any]:
    """The file's content: `current` (a name or empty) and `profiles` (bootstrap servers by name)."""
    try:
        found = json.loads(path().read_text())
        return {"current": str(found["current"]), "profiles": dict(found["profiles"])}
    except (FileNotFoundError, NotADirectoryError, KeyError, ValueError, TypeError):
        return {"current": "", "profiles": {}}


def save(content: dict[str, Any]) -> None:
    where = path()
    where.parent.mkdir(parents=True, exist_ok=True)
    part = where.with_suffix(".part")
    part.write_text(json.dumps(content, indent=2) + "\n")
    part.rename(where)


def current() -> str | None:
    """Bootstrap servers of the profile in use, if there is one."""
    content = load()
    found = content["profiles"].get(content["current"])
    return str(found) if found else None
