"""Whether a broker still holds every record it wrote: an id that stays the same for as long as that is sure.

A stop in order leaves everything synced and says so (the clean-shutdown marker). A process that was killed loses
nothing either, as long as its machine goes on running: what it wrote is in the page cache. Only when the machine
stopped may the last records be gone, and that shows in the kernel's boot id. Each log dir keeps the id beside the boot
it was written in; a start that cannot rule out a loss in every dir, or that had to cut a log, takes a new one. The
controller compares it, and does not let a broker lead for the sake of records that it may have lost.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from contextlib import suppress
from random import Random

from headrace.storage.checkpoint import replace_file
from headrace.storage.files import Files

FILE_NAME = "lineage.json"


def settle(files: Files, dirs: Sequence[tuple[str, bool]], random: Random) -> str:
    """The id from now on. `dirs` are the paths of all log dirs, each with whether its last stop was in order."""
    boot = files.boot_id()
    found = [_read(files, path) for path, _ in dirs]
    ids = {held[0] if held is not None else "" for held in found}
    whole = len(ids) == 1 and "" not in ids
    for (_, clean), held in zip(dirs, found, strict=True):
        whole = whole and (clean or (held is not None and boot != "" and held[1] == boot))
    lineage = ids.pop() if whole else uuid.UUID(int=random.getrandbits(128)).hex
    for (path, _), held in zip(dirs, found, strict=True):
        if held != (lineage, boot):
            content = json.dumps({"lineage": lineage, "boot": boot}, separators=(",", ":"))
            replace_file(files, os.path.join(path, FILE_NAME), content.encode())
    return lineage


def forget(files: Files, path: str) -> None:
    """A disk failed: the next start must not take what is left there for everything."""
    with suppress(OSError):
        files.remove(os.path.join(path, FILE_NAME))


def _read(files: Files, folder: str) -> tuple[str, str] | None:
    try:
        fields = json.loads(files.read(os.path.join(folder, FILE_NAME)))
        return str(fields["lineage"]), str(fields["boot"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
