"""The machine the figures come from."""

from __future__ import annotations

import os
import platform
import subprocess
import sysconfig
from importlib.metadata import version
from pathlib import Path

from tests.integration.java import KAFKA_VERSION

from headrace.wire import connection

GIB = 1 << 30


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((text.split(":")[1].strip() for text in lines if "model name" in text), "?")
    java = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr.splitlines()
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_GiB": round(_memory("MemTotal") / GIB),
        "kernel": platform.release(),
        "load": round(os.getloadavg()[0], 1),
        "headrace": _headrace(),
        "python": f"{platform.python_version()} ({_build()})",
        "kafka": KAFKA_VERSION,
        "java": java[0] if java else "?",
        "librdkafka": version("confluent-kafka"),
    }


def _memory(name: str) -> int:
    """A line of /proc/meminfo, in bytes."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(text.split()[1]) * 1024 for text in lines if text.startswith(name + ":"))


def _headrace() -> str:
    """Which source, and whether the servers run it compiled, as images do: they are started with our own PYTHONPATH."""
    how = " compiled" if connection.__file__.endswith(".so") else " interpreted"
    return _git("rev-parse", "--short", "HEAD") + (" and changes" if _git("status", "--porcelain") else "") + how


def _build() -> str:
    """Distributions build Python with profiles; one that was merely compiled takes about a fifth more time."""
    asked = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    return "optimised" if asked or sysconfig.get_path("stdlib").startswith("/usr/lib") else "not optimised"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True).stdout.strip()
