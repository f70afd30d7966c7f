"""The Clusters and Topics there are, as the watches tell."""

from __future__ import annotations

from collections import OrderedDict

from headrace_operator.schema import Json

_REMEMBERED = 10_000
Name = tuple[str, str]
"""Namespace and name."""


class Store:
    """The newest of each resource. A Topic is found by the Cluster it names, whether that is there or not."""

    def __init__(self) -> None:
        self.clusters: dict[Name, Json] = {}
        self.topics: dict[Name, dict[str, Json]] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        """Uids of what went last: an answer to a patch may come after the news that its object is gone."""

    def put(self, body: Json) -> Name | None:
        """Takes a resource in; the answer is the Cluster that it concerns, None when newer is known."""
        about = body["metadata"]
        name = (about["namespace"], about["name"])
        if about["uid"] in self._gone:
            return None
        if body["kind"] == "Cluster":
            if _older(body, self.clusters.get(name)):
                return None
            self.clusters[name] = body
            return name
        cluster = (about["namespace"], body["spec"]["cluster"])
        held = self.topics.setdefault(cluster, {})
        if _older(body, held.get(about["name"])):
            return None
        held[about["name"]] = body
        return cluster

    def drop(self, body: Json) -> Name:
        """A resource is gone; the answer is the Cluster that it concerned."""
        about = body["metadata"]
        self._gone[about["uid"]] = None
        while len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)
        if body["kind"] == "Cluster":
            name = (about["namespace"], about["name"])
            self.clusters.pop(name, None)
            return name
        cluster = (about["namespace"], body["spec"]["cluster"])
        held = self.topics.get(cluster, {})
        held.pop(about["name"], None)
        if not held:
            self.topics.pop(cluster, None)
        return cluster

    def known(self, name: Name) -> bool:
        """Whether anything here concerns this Cluster."""
        return name in self.clusters or name in self.topics

    def version(self, kind: str, name: Name) -> int | None:
        """The resource version of a resource that is here."""
        if kind == "Cluster":
            body = self.clusters.get(name)
        else:
            found = (held[name[1]] for (ns, _), held in self.topics.items() if ns == name[0] and name[1] in held)
            body = next(found, None)
        return None if body is None else int(body["metadata"]["resourceVersion"])


def _older(body: Json, held: Json | None) -> bool:
    """Our own patches come back by two ways: by their answer and by the watch, which may be later."""
    if held is None or held["metadata"]["uid"] != body["metadata"]["uid"]:
        return False
    return int(body["metadata"]["resourceVersion"]) < int(held["metadata"]["resourceVersion"])
