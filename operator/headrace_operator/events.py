"""Events: what a person who runs `kubectl describe` wants to know. The same news is not told at every look."""

from __future__ import annotations

import datetime
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable

from headrace_operator.kube import FIELD_MANAGER, Kube, KubeError, path
from headrace_operator.resources import API_VERSION
from headrace_operator.schema import Json

log = logging.getLogger(__name__)

_REMEMBERED = 10_000
AGAIN_SECONDS = 600.0
"""What is still so, or so again, is told again after this: Kubernetes forgets Events after an hour."""


def now() -> str:
    """The time as Kubernetes writes it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Events:
    """Tells news about our resources."""

    def __init__(self, kube: Kube, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._clock = clock
        self._last: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()

    async def tell(self, body: Json, reason: str, message: str, *, warning: bool = False) -> None:
        """Writes an Event, unless the last one of this reason about this object said the same not long ago."""
        about, at = body["metadata"], self._clock()
        key = (about["uid"], reason)
        before, told = self._last.get(key, ("", 0.0))
        if before == message and at - told < AGAIN_SECONDS:
            return
        self._last[key] = (message, at)
        self._last.move_to_end(key)
        while len(self._last) > _REMEMBERED:
            self._last.popitem(last=False)
        stamp = now()
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{about['name'][:200]}.{uuid.uuid4().hex[:16]}", "namespace": about["namespace"]},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": body["kind"],
                "name": about["name"],
                "namespace": about["namespace"],
                "uid": about["uid"],
            },
            "type": "Warning" if warning else "Normal",
            "reason": reason,
            "message": message[:1024],
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
            "source": {"component": FIELD_MANAGER},
        }
        try:
            await self._kube.call("POST", path("v1", "Event", about["namespace"]), event)
        except KubeError as error:
            # News is not worth a failed reconciliation; in a namespace that goes away it is refused, too.
            log.info("the event %s about %s was not taken: %s", reason, about["name"], error)
