"""Makes the objects of a Cluster as they shall be, and takes away those it no longer has."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time

from headrace_operator.kube import Kube, KubeError, path
from headrace_operator.manifests import Cluster, own_components
from headrace_operator.manifests.naming import MANAGER
from headrace_operator.observed import Observed, Workload, claims, grown_claims, waiting_for_class, workload
from headrace_operator.schema import Json

log = logging.getLogger(__name__)

AGAIN_SECONDS = 60.0
"""An object that did not change is applied again after this: what others changed in it is put back."""
ORPHAN_SECONDS = 30.0
"""The garbage collector takes so long at most to let go of the pods of a StatefulSet that is made anew."""
_PRUNED = (("v1", "Service"), ("networking.k8s.io/v1", "NetworkPolicy"))


class Applier:
    """Applies manifests of one Cluster; remembers what it applied so that a quiet cluster costs next to nothing."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._applied: dict[tuple[str, str], tuple[str, float]] = {}

    async def observe(self, cluster: Cluster) -> Observed:
        """What there is."""
        namespace = cluster.namespace
        labels = {"app.kubernetes.io/instance": cluster.name, "app.kubernetes.io/managed-by": MANAGER}
        found = Observed()
        for component in own_components(cluster):
            kind = "Deployment" if component == "metadata" else "StatefulSet"
            body = await self._kube.get(path("apps/v1", kind, namespace, cluster.child(component)))
            if body is not None:
                found.workloads[component] = workload(body, component)
        for pod in await self._kube.list(path("v1", "Pod", namespace), labels):
            component = pod["metadata"]["labels"].get("app.kubernetes.io/component", "")
            found.pods.setdefault(component, []).append(pod)
        own = {"app.kubernetes.io/instance": cluster.name, "app.kubernetes.io/name": "headrace"}
        found.claims.extend(await self._kube.list(path("v1", "PersistentVolumeClaim", namespace), own))
        for name in set(waiting_for_class(found.claims).values()):
            if await self._kube.get(path("storage.k8s.io/v1", "StorageClass", None, name)) is None:
                found.missing_classes.add(name)
        return found

    async def apply(self, manifests: list[Json], observed: Observed) -> None:
        """Applies what changed, and everything now and then."""
        for manifest in manifests:
            key = (manifest["kind"], manifest["metadata"]["name"])
            digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
            before, at = self._applied.get(key, ("", 0.0))
            component = manifest["metadata"]["labels"]["app.kubernetes.io/component"]
            missing = manifest["kind"] in ("StatefulSet", "Deployment") and component not in observed.workloads
            if digest == before and not missing and time.monotonic() - at < AGAIN_SECONDS:
                continue
            if manifest["kind"] == "StatefulSet":
                await self._replace_if_claims_differ(manifest, observed.workloads.get(component))
            await self._kube.apply(manifest)
            self._applied[key] = (digest, time.monotonic())

    async def _replace_if_claims_differ(self, manifest: Json, current: Workload | None) -> None:
        """Claim templates cannot be changed: the StatefulSet is made anew around its pods, which stay."""
        if current is None or current.claims == claims(manifest):
            return
        about = manifest["metadata"]
        log.info("%s/%s has other volumes now: it is made anew, its pods stay", about["namespace"], about["name"])
        where = path("apps/v1", "StatefulSet", about["namespace"], about["name"])
        await self._kube.delete(where, propagationPolicy="Orphan")
        # Until the garbage collector has let go of its pods it is still there, and would refuse to be changed.
        deadline = time.monotonic() + ORPHAN_SECONDS
        while await self._kube.get(where) is not None:
            if time.monotonic() > deadline:
                raise KubeError(0, f"{about['name']} is still not gone after {ORPHAN_SECONDS:g} s")
            await asyncio.sleep(0.2)

    async def grow_volumes(self, cluster: Cluster, manifests: list[Json], observed: Observed) -> str | None:
        """Gives claims their larger sizes; what stands in the way, in a sentence."""
        for manifest in manifests:
            templates = manifest.get("spec", {}).get("volumeClaimTemplates")
            if not templates:
                continue
            component = manifest["metadata"]["labels"]["app.kubernetes.io/component"]
            for name, size in grown_claims(cluster, observed, component, templates).items():
                where = path("v1", "PersistentVolumeClaim", cluster.namespace, name)
                try:
                    await self._kube.merge(where, {"spec": {"resources": {"requests": {"storage": size}}}})
                except KubeError as error:
                    if error.status in (403, 422):
                        return f"the volume {name} cannot grow to {size}: {error}"
                    raise
        return None

    async def prune(self, cluster: Cluster, manifests: list[Json]) -> None:
        """Deletes Services and NetworkPolicies of this Cluster that its spec no longer asks for."""
        kept = {(m["kind"], m["metadata"]["name"]) for m in manifests}
        labels = {"app.kubernetes.io/instance": cluster.name, "app.kubernetes.io/managed-by": MANAGER}
        for api_version, kind in _PRUNED:
            for found in await self._kube.list(path(api_version, kind, cluster.namespace), labels):
                name = found["metadata"]["name"]
                owned = any(o["uid"] == cluster.uid for o in found["metadata"].get("ownerReferences", []))
                if owned and (kind, name) not in kept:
                    await self._kube.delete(path(api_version, kind, cluster.namespace, name))
                    self._applied.pop((kind, name), None)
