"""kubectl, for tests: objects as dictionaries, waits with deadlines that say what they waited for."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import yaml

Object = dict[str, Any]
T = TypeVar("T")

CACHE_BIN = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "headrace-kube" / "bin"


class KubectlError(Exception):
    """A command that ended with an error; the text is what it said."""


def program(name: str) -> str:
    """kubectl or helm: the one in the cache of tests/e2e/kube, else the one on PATH."""
    cached = CACHE_BIN / name
    return str(cached) if os.access(cached, os.X_OK) else shutil.which(name) or name


def run(*words: str, text: str | None = None, seconds: float = 120.0) -> str:
    """Runs a command and returns what it printed; KubectlError with its complaint when it fails."""
    done = subprocess.run([program(words[0]), *words[1:]], input=text, capture_output=True, text=True, timeout=seconds)
    if done.returncode:
        raise KubectlError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


# Where the API server keeps what tests look at again and again.
_HEADRACE = "apis/headrace.dev/v1alpha1"
PLACES = {
    "cluster.headrace.dev": (_HEADRACE, "clusters"),
    "hrc": (_HEADRACE, "clusters"),
    "hrt": (_HEADRACE, "topics"),
    "job": ("apis/batch/v1", "jobs"),
    "lease": ("apis/coordination.k8s.io/v1", "leases"),
    "pod": ("api/v1", "pods"),
    "pvc": ("api/v1", "persistentvolumeclaims"),
    "statefulset": ("apis/apps/v1", "statefulsets"),
}


@cache
def api() -> str:
    """Where `kubectl proxy` serves the API. Waiting is asking time and again, and a kubectl for each question would be
    most of what a small machine does."""
    process = subprocess.Popen([program("kubectl"), "proxy", "--port=0"], stdout=subprocess.PIPE, text=True)
    atexit.register(process.kill)
    assert process.stdout is not None
    return "http://" + process.stdout.readline().split()[-1]


def ask(path: str) -> Object:
    """An object or a list of them; KubectlError with what the API server said instead."""
    try:
        with urllib.request.urlopen(f"{api()}/{path}", timeout=60) as answer:
            found: Object = json.load(answer)
    except urllib.error.HTTPError as error:
        raise KubectlError(f"{path}: {error.code} {error.read().decode(errors='replace')}") from None
    except OSError as error:
        raise KubectlError(f"{path}: {error}") from None
    return found


def wait_for(what: str, found: Callable[[], T | None], seconds: float, pause: float = 0.5) -> T:
    """Calls `found` until it returns something true; after `seconds` fails with `what` and the last complaint."""
    deadline = time.monotonic() + seconds
    last = ""
    while True:
        try:
            if result := found():
                return result
        except (KubectlError, KeyError, IndexError, subprocess.TimeoutExpired) as error:
            last = f"; last: {error}"
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what}{last}")
        time.sleep(pause)


class Namespace:
    """One namespace of the cluster."""

    def __init__(self, name: str) -> None:
        self.name = name

    def kubectl(self, *words: str, text: str | None = None, seconds: float = 120.0) -> str:
        return run("kubectl", "-n", self.name, *words, text=text, seconds=seconds)

    def apply(self, *objects: Object) -> None:
        self.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(objects))

    def get(self, kind: str, name: str) -> Object:
        group, plural = PLACES[kind]
        return ask(f"{group}/namespaces/{self.name}/{plural}/{name}")

    def list(self, kind: str, selector: str = "") -> list[Object]:
        words = ("-l", selector) if selector else ()
        found: list[Object] = json.loads(self.kubectl("get", kind, *words, "-o", "json"))["items"]
        return found

    def pods(self, selector: str) -> list[Object]:
        found: list[Object] = ask(f"api/v1/namespaces/{self.name}/pods?labelSelector={quote(selector)}")["items"]
        return found

    def exists(self, kind: str, name: str) -> bool:
        return bool(self.kubectl("get", kind, name, "--ignore-not-found", "-o", "name"))

    def patch(self, kind: str, name: str, change: Mapping[str, Any]) -> None:
        self.kubectl("patch", kind, name, "--type=merge", "-p", json.dumps(change))

    def delete(self, kind: str, name: str, *words: str, seconds: float = 120.0) -> None:
        self.kubectl("delete", kind, name, "--ignore-not-found", *words, seconds=seconds)

    def exec(self, pod: str, *words: str, seconds: float = 120.0) -> str:
        return self.kubectl("exec", pod, "--", *words, seconds=seconds)

    @contextmanager
    def exec_until_closed(self, pod: str, *words: str) -> Iterator[subprocess.Popen[str]]:
        """A command in a pod that runs until its standard input is closed."""
        command = [program("kubectl"), "-n", self.name, "exec", "-i", pod, "--", *words]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

    @contextmanager
    def watched(self, kind: str, selector: str, column: str) -> Iterator[dict[str, str]]:
        """What a column of each object is right now, by name, for as long as the block lasts.

        It is told by a watch: asking for a thousand objects again and again would be most of what is measured.
        """
        columns = f"custom-columns=NAME:.metadata.name,COLUMN:{column}"
        words = ("get", kind, "-l", selector, "--watch", "--request-timeout=60s", "--no-headers", "-o", columns)
        watch = [program("kubectl"), "-n", self.name, *words]
        found: dict[str, str] = {}
        watches: list[subprocess.Popen[str]] = []
        over = threading.Event()

        def read() -> None:
            # A watch ends: after its time, or when the API server ends that of a slow reader. The next one begins with
            # all there is.
            while not over.is_set():
                watches.append(subprocess.Popen(watch, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
                for line in watches[-1].stdout or ():
                    name, text = line.split(maxsplit=1)
                    found[name] = text.strip()
                watches[-1].wait()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield found
        finally:
            over.set()
            while reader.is_alive():
                for each in watches:
                    each.kill()
                reader.join(0.1)

    def wait_condition(
        self, kind: str, name: str, condition: str, status: str = "True", seconds: float = 180.0
    ) -> Object:
        """Waits until a condition of the object's present generation has this status; returns the condition."""

        def met() -> Object | None:
            found = self.get(kind, name)
            entry = condition_of(found, condition)
            if entry is None or entry["status"] != status:
                raise KubectlError(str(entry or f"no condition {condition} in {found.get('status')}"))
            if entry.get("observedGeneration", found["metadata"]["generation"]) < found["metadata"]["generation"]:
                raise KubectlError(f"{entry} is of an older generation than {found['metadata']['generation']}")
            return entry

        return wait_for(f"{kind} {name} {condition}={status}", met, seconds)

    def wait_gone(self, kind: str, name: str, seconds: float = 120.0) -> None:
        wait_for(f"{kind} {name} gone", lambda: not self.exists(kind, name), seconds)

    def proxied(self, pod: str, port: int, path: str) -> str:
        """What a pod answers over HTTP, through the API server."""
        return run("kubectl", "get", "--raw", f"/api/v1/namespaces/{self.name}/pods/{pod}:{port}/proxy{path}")


def condition_of(found: Object, name: str) -> Object | None:
    """The condition of this name in an object's status."""
    for each in found.get("status", {}).get("conditions", []):
        if each["type"] == name:
            entry: Object = each
            return entry
    return None


def diagnostics(namespaces: Iterable[str], out: Path) -> None:
    """Everything a person would ask for after a failure, into files under `out`."""
    out.mkdir(parents=True, exist_ok=True)

    def keep(file: str, *words: str) -> None:
        try:
            text = run(*words, seconds=30)
        except (KubectlError, subprocess.TimeoutExpired) as error:
            text = str(error)
        (out / file).write_text(text)

    for name in namespaces:
        keep(f"{name}-get.txt", "kubectl", "-n", name, "get", "all,pvc,pdb,cm,hrc,hrt", "-o", "wide")
        keep(f"{name}-resources.yaml", "kubectl", "-n", name, "get", "hrc,hrt", "-o", "yaml")
        keep(f"{name}-describe.txt", "kubectl", "-n", name, "describe", "pods,statefulsets,hrc")
        keep(f"{name}-events.txt", "kubectl", "-n", name, "get", "events", "--sort-by=.lastTimestamp")
        try:
            pods = run("kubectl", "-n", name, "get", "pods", "-o", "name", seconds=30).split()
        except (KubectlError, subprocess.TimeoutExpired):
            continue
        for pod in pods:
            short = pod.removeprefix("pod/")
            keep(f"{name}-{short}.log", "kubectl", "-n", name, "logs", "--all-containers", "--tail=2000", pod)
            keep(f"{name}-{short}.previous.log", "kubectl", "-n", name, "logs", "--previous", "--tail=500", pod)
