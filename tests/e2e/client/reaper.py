"""Kills the first process of a container with SIGKILL, from a pod that shares the node's process ids.

From inside a container its first process cannot be killed that way; from the node it can: `reaper.py CONTAINER_ID`.
"""

import os
import signal
import sys
from pathlib import Path


def processes(container: str) -> list[int]:
    """Processes of a container, the oldest first."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if container in (entry / "cgroup").read_text():
                    started = int((entry / "stat").read_text().rpartition(")")[2].split()[19])
                    found.append((started, int(entry.name)))
            except OSError:
                continue
    return [pid for _, pid in sorted(found)]


if __name__ == "__main__":
    victims = processes(sys.argv[1])
    if not victims:
        sys.exit(f"no process belongs to container {sys.argv[1]}")
    os.kill(victims[0], signal.SIGKILL)
