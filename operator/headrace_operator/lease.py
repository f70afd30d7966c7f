"""One of several operators works: the one that holds a Lease. The others wait for it to end."""

from __future__ import annotations

import asyncio
import datetime
import logging

from headrace_operator.kube import Kube, KubeError, path
from headrace_operator.schema import Json

log = logging.getLogger(__name__)


class LeaseLost(Exception):
    """Another operator works now, or the API server could not be reached in time: this one must stop at once."""


class Lease:
    """The Lease `name` in the operator's own namespace. `acquire`, then `keep`, then `release`."""

    def __init__(self, kube: Kube, name: str, identity: str, seconds: int = 15) -> None:
        self._kube = kube
        self._name = name
        self._identity = identity
        self._seconds = seconds
        self._where = path("coordination.k8s.io/v1", "Lease", kube.namespace, name)
        self._seen: tuple[str, float] = ("", 0.0)
        """The holder's last renewal, and when we saw it first by our own clock: clocks of others are not trusted."""
        self._until = 0.0
        """When this operator has to stop unless it renews: well before others, who count from later on, take over."""

    async def acquire(self) -> None:
        """Returns once this operator is the one."""
        while True:
            try:
                if await self._try(self._seconds / 3):
                    log.info("%s works now", self._identity)
                    return
            except (KubeError, TimeoutError) as error:
                log.info("the Lease cannot be had yet: %s", error or "no answer")
            await asyncio.sleep(self._seconds / 5)

    async def keep(self) -> None:
        """Renews the Lease for ever; raises `LeaseLost`, also while the API server leaves a request without answer."""
        pause = self._seconds / 3
        while True:
            await asyncio.sleep(pause)
            try:
                if not await self._try(min(self._seconds / 5, self._until - _now())):
                    raise LeaseLost(f"another operator took the Lease {self._name}")
                pause = self._seconds / 3
            except (KubeError, TimeoutError) as error:
                if _now() >= self._until:
                    raise LeaseLost(f"the Lease {self._name} could not be renewed: {error or 'no answer'}") from error
                pause = min(self._seconds / 15, self._until - _now())

    async def release(self) -> None:
        """Lets the next one work without waiting."""
        held = await self._kube.get(self._where)
        if held is not None and held["spec"].get("holderIdentity") == self._identity:
            held["spec"]["holderIdentity"] = ""
            await self._kube.call("PUT", self._where, held)

    async def _try(self, seconds: float) -> bool:
        """Takes or renews the Lease within `seconds`; False: somebody else has it."""
        began = _now()
        async with asyncio.timeout(seconds):
            taken = await self._take()
        if taken:
            self._until = began + self._seconds * 2 / 3
        return taken

    async def _take(self) -> bool:
        held = await self._kube.get(self._where)
        if held is None:
            where = path("coordination.k8s.io/v1", "Lease", self._kube.namespace)
            return await self._write("POST", where, {"metadata": {"name": self._name}, "spec": {}})
        spec = held.get("spec", {})
        holder = spec.get("holderIdentity") or ""
        if holder not in ("", self._identity):
            mark = f"{holder} {spec.get('renewTime')}"
            if self._seen[0] != mark:
                self._seen = (mark, _now())
            if _now() - self._seen[1] < spec.get("leaseDurationSeconds", self._seconds):
                return False
        return await self._write("PUT", self._where, held)

    async def _write(self, method: str, where: str, body: Json) -> bool:
        """Compare-and-swap: the resource version in `body` must still be the newest."""
        body |= {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        body["spec"] |= {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._seconds,
            "renewTime": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        try:
            await self._kube.call(method, where, body)
        except KubeError as error:
            if error.status == 409:
                return False
            raise
        return True


def _now() -> float:
    return asyncio.get_running_loop().time()
