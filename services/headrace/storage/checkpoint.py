"""Checkpoint files of a log dir, and the way every small file is replaced.

Kafka's format: a line with the version (0), a line with the number of entries, then one line an entry. Per log dir:
`recovery-point-offset-checkpoint` (up to where each log is known to be on disk), `log-start-offset-checkpoint` and
`replication-offset-checkpoint` (high watermarks), each with entries `<topic> <partition> <offset>`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping

from headrace.storage.files import Files

RECOVERY_POINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET = "log-start-offset-checkpoint"
REPLICATION_OFFSET = "replication-offset-checkpoint"

TopicPartition = tuple[str, int]


class CheckpointCorrupt(ValueError):
    """A checkpoint file that does not follow its own format."""


def replace_file(files: Files, path: str, data: bytes) -> None:
    """Put `data` at `path` so that a crash leaves the old or the new content, never a mix."""
    temporary = f"{path}.tmp"
    files.write(temporary, data)
    files.rename(temporary, path)
    files.sync_dir(os.path.dirname(path))


class Newest:
    """Lets only newer states than the one on disk reach a file, whichever thread comes to write last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = 0
        self._written = 0

    def take(self) -> int:
        """The number of a state that is taken now."""
        self._taken += 1
        return self._taken

    def write(self, number: int, work: Callable[[], None]) -> None:
        with self._lock:
            if number > self._written:
                work()
                self._written = number


def render_lines(entries: Iterable[str]) -> bytes:
    lines = list(entries)
    return "".join(f"{line}\n" for line in ("0", str(len(lines)), *lines)).encode()


def parse_lines(path: str, data: bytes) -> list[list[str]]:
    """The entries of a checkpoint file, split at blanks."""
    lines = data.decode("utf-8", "replace").splitlines()
    if len(lines) < 2 or lines[0].strip() != "0" or not lines[1].strip().isdigit():
        raise CheckpointCorrupt(f"{path}: the first two lines are not a known version and a count")
    entries = [line.split() for line in lines[2:] if line.strip()]
    if len(entries) != int(lines[1]):
        raise CheckpointCorrupt(f"{path}: {len(entries)} entries where {lines[1].strip()} are announced")
    return entries


def write_offsets(files: Files, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace an offset checkpoint."""
    entries = (f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())
    replace_file(files, path, render_lines(entries))


def read_offsets(files: Files, path: str) -> dict[TopicPartition, int]:
    """The offsets of a checkpoint; none when the file is not there. A damaged file raises `CheckpointCorrupt`."""
    try:
        data = files.read(path)
    except FileNotFoundError:
        return {}
    try:
        return {(topic, int(partition)): int(offset) for topic, partition, offset in parse_lines(path, data)}
    except CheckpointCorrupt:
        raise
    except ValueError:
        raise CheckpointCorrupt(f"{path}: an entry is not '<topic> <partition> <offset>'") from None
