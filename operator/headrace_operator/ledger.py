"""Which topics go when their Topic does: written down before they are made, so that no finalizer has to hold a Topic.

A finalizer is taken off by a living operator only; without one it would keep a namespace from ever going away. The
ledger is a ConfigMap instead (more than one for very many topics), owned by the Cluster: it goes with the Cluster, and
a Cluster that was made again, from a backup or around kept volumes, deletes nothing because of what was before it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from headrace_operator.kube import Kube, path
from headrace_operator.manifests import Cluster
from headrace_operator.resources import ClusterSpec
from headrace_operator.schema import Json
from headrace_operator.store import Name

COMPONENT = "owned-topics"
PAGE_BYTES = 512 * 1024
"""Of names in one ConfigMap; the API server takes a mebibyte."""


@dataclass(frozen=True, slots=True)
class Owned:
    """A topic that is deleted with its Topic."""

    resource: str
    """The Topic's own name, for people who read the ledger."""
    topic: str

    def text(self) -> str:
        return f"{self.resource} {self.topic}"


Pages = dict[str, dict[str, str]]
"""By ConfigMap: texts by the uid of the Topic."""


def changes(pages: Pages, first: str, add: Mapping[str, Owned], remove: Collection[str]) -> dict[str, Json]:
    """What to merge into the data of which ConfigMap; one that is not in `pages` has to be made."""
    found: dict[str, Json] = {}
    for name, page in pages.items():
        if gone := [uid for uid in page if uid in remove]:
            found[name] = dict.fromkeys(gone)
    sizes = {name: sum(len(uid) + len(text) for uid, text in page.items()) for name, page in pages.items()}
    for uid, owned in add.items():
        size = len(uid) + len(owned.text())
        names = (f"{first}-{number}" if number else first for number in range(len(sizes) + 1))
        name = next(n for n in names if sizes.get(n, 0) + size <= PAGE_BYTES)
        sizes[name] = sizes.get(name, 0) + size
        found.setdefault(name, {})[uid] = owned.text()
    return found


class Ledger:
    """The ledger of one Cluster. Only the operator that holds the Lease writes it, so it is read once."""

    def __init__(self, kube: Kube, name: Name) -> None:
        self._kube = kube
        self._namespace, self._cluster = name
        self._pages: Pages | None = None
        self._uid = ""
        """Of the Cluster whose pages those are."""

    async def read(self, cluster: Json) -> dict[str, Owned]:
        """What is written down for this very Cluster, by the uid of the Topic."""
        uid = cluster["metadata"]["uid"]
        if self._pages is None or self._uid != uid:
            self._pages, self._uid = await self._load(uid), uid
        entries = {uid: text.split(" ") for page in self._pages.values() for uid, text in page.items()}
        return {uid: Owned(resource, topic) for uid, (resource, topic) in entries.items()}

    async def write(self, cluster: Json, add: Mapping[str, Owned], remove: Collection[str] = ()) -> None:
        """Returns once it is written down."""
        if not add and not remove:
            return
        await self.read(cluster)
        pages, self._pages = self._pages or {}, None
        for name, data in changes(pages, f"{self._cluster}-{COMPONENT}", add, remove).items():
            if name in pages:
                await self._kube.merge(path("v1", "ConfigMap", self._namespace, name), {"data": data})
            else:
                owner = Cluster(self._cluster, self._namespace, self._uid, ClusterSpec(), image="")
                body = owner.object("v1", "ConfigMap", name, COMPONENT, data=data)
                await self._kube.call("POST", path("v1", "ConfigMap", self._namespace), body)
            page = pages.setdefault(name, {})
            page |= data
            pages[name] = {uid: text for uid, text in page.items() if text is not None}
        self._pages = pages

    async def _load(self, uid: str) -> Pages:
        labels = {"app.kubernetes.io/instance": self._cluster, "app.kubernetes.io/component": COMPONENT}
        pages: Pages = {}
        for found in await self._kube.list(path("v1", "ConfigMap", self._namespace), labels):
            about = found["metadata"]
            if any(owner["uid"] == uid for owner in about.get("ownerReferences", [])):
                pages[about["name"]] = dict(found.get("data") or {})
            else:
                # Of a Cluster of the same name that is gone; the garbage collector is only slower.
                await self._kube.delete(path("v1", "ConfigMap", self._namespace, about["name"]))
        return pages
