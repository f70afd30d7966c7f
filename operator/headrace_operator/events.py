"""Events: what a person who runs `kubectl describe` wants to know. The same news is told once, not at every look."""

from __future__ import annotations

import datetime
import logging
import uuid
from collections import OrderedDict

from headrace_operator.kube import FIELD_MANAGER, Kube, KubeError, path
from headrace_operator.resources import API_VERSION
from headrace_operator.schema import Json

log = logging.getLogger(__name__)

_REMEMBERED = 10_000


def now() -> str:
    """The time as Kubernetes writes it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Events:
    """Tells news about our resources."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._last: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def tell(self, body: Json, reason: str, message: str, *, warning: bool = False) -> None:
        """Writes an Event, unless the last one of this reason about this object said the same."""
        about = body["metadata"]
        key = (about["uid"], reason)
        if self._last.get(key) == message:
            return
        self._last[key] = message
        self._last.move_to_end(key)
        while len(self._last) > _REMEMBERED:
            self._last.popitem(last=False)
        time = now()
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
            "firstTimestamp": time,
            "lastTimestamp": time,
            "count": 1,
            "source": {"component": FIELD_MANAGER},
        }
        try:
            await self._kube.call("POST", path("v1", "Event", about["namespace"]), event)
        except KubeError as error:
            # News is not worth a failed reconciliation; in a namespace that goes away it is refused, too.
            log.info("the event %s about %s was not taken: %s", reason, about["name"], error)
