"""Stand-ins for what the operator talks to: an API server that only remembers, and a cluster that is a picture."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from headrace.client import NewTopic, TopicPartition
from headrace.cluster.image import Image
from headrace.errors import KafkaError
from headrace_operator.admin import ClusterAdmin
from headrace_operator.kube import Kube, KubeError
from headrace_operator.picture import Disk
from headrace_operator.schema import Json


class FakeKube(Kube):
    """Keeps objects by path and writes down every change that was asked for."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.changes: list[tuple[str, str, Json]] = []

    @property
    def namespace(self) -> str:
        return "system"

    async def call(
        self,
        method: str,
        where: str,
        body: Json | None = None,
        *,
        kind: str = "",
        accept: str = "",
        query: Mapping[str, str] | None = None,
    ) -> Json:
        if method == "GET":
            return self._got(where, query or {})
        self.changes.append((method, where, copy.deepcopy(body or {})))
        if method == "DELETE":
            if self.objects.pop(where, None) is None:
                raise KubeError(404, f"there is no {where}")
            return {}
        new = copy.deepcopy(body or {})
        if method == "POST":
            where = f"{where}/{new['metadata']['name']}"
        elif method == "PATCH":
            where = where.removesuffix("/status")
            new = _merged(self.objects.get(where, {}), new)
        if new.get("spec", {}).get("type") == "NodePort":
            new["spec"]["ports"][0]["nodePort"] = 30000
        about = new["metadata"] = dict(new["metadata"])
        about["resourceVersion"] = str(len(self.changes))
        self.objects[where] = new
        return copy.deepcopy(new)

    def _got(self, where: str, query: Mapping[str, str]) -> Json:
        if where in self.objects:
            return copy.deepcopy(self.objects[where])
        if where.rpartition("/")[2] not in _LISTS:
            raise KubeError(404, f"there is no {where}")
        wanted = dict(each.split("=") for each in query.get("labelSelector", "").split(",") if each)
        items = [
            body
            for at, body in self.objects.items()
            if at.rpartition("/")[0] == where and wanted.items() <= body["metadata"].get("labels", {}).items()
        ]
        return {"items": copy.deepcopy(items)}

    def changed(self, method: str, ending: str = "") -> list[Json]:
        """Bodies of the changes asked for by this method, of paths that end so."""
        return [body for asked, where, body in self.changes if asked == method and where.endswith(ending)]

    @property
    def events(self) -> list[tuple[str, str, str]]:
        """Type, reason and message of each Event that was written."""
        return [(body["type"], body["reason"], body["message"]) for body in self.changed("POST", "/events")]


_LISTS = {"pods", "services", "networkpolicies", "persistentvolumeclaims", "configmaps", "topics", "clusters"}


def _merged(old: Any, patch: Any) -> Any:
    """What a patch makes of an object."""
    if not isinstance(patch, dict):
        return patch
    found = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = _merged(found.get(name), value)
    return found


class FakeAdmin(ClusterAdmin):
    """Shows one picture and writes down what is asked of the cluster."""

    def __init__(self, image: Image | None) -> None:
        super().__init__("nowhere:1", lambda: None)
        self.shown = image
        self.moved: dict[TopicPartition, tuple[int, ...]] = {}
        self.created: list[NewTopic] = []
        self.deleted: set[str] = set()
        self.refused: dict[str, KafkaError] = {}
        """What is said to whoever wants to create a topic."""

    async def image(self) -> Image | None:
        return self.shown

    async def confirmed(self) -> Image | None:
        return self.shown

    async def create(self, topics: Any) -> dict[str, KafkaError]:
        self.created.extend(topics)
        return self.refused

    async def delete(self, names: Any) -> dict[str, KafkaError]:
        self.deleted |= set(names)
        return {}

    async def move(self, moves: Mapping[TopicPartition, tuple[int, ...]]) -> dict[str, KafkaError]:
        self.moved |= moves
        return {}

    async def disk(self, broker: int) -> Disk:
        return Disk(0, 0, {})
