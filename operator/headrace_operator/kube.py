"""The API server, as the operator needs it: server-side apply under its own field manager, patches, lists, evictions.

Credentials are those kopf finds (a service account, else KUBECONFIG); a rotated token is read again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import aiohttp
import kopf

from headrace_operator.resources import GROUP, VERSION
from headrace_operator.schema import Json

FIELD_MANAGER = "headrace-operator"
_TOKEN_SECONDS = 30.0
_JSON = "application/json"
_METADATA_LIST = f"{_JSON};as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
_PLURALS = {
    "Cluster": "clusters",
    "ConfigMap": "configmaps",
    "CustomResourceDefinition": "customresourcedefinitions",
    "Deployment": "deployments",
    "Event": "events",
    "Lease": "leases",
    "Namespace": "namespaces",
    "NetworkPolicy": "networkpolicies",
    "Node": "nodes",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Pod": "pods",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
    "StatefulSet": "statefulsets",
    "StorageClass": "storageclasses",
    "Topic": "topics",
}
API = f"{GROUP}/{VERSION}"


class KubeError(Exception):
    """What the API server answered instead of doing it; `status` is the HTTP status, 0 when it could not be reached."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def path(api_version: str, kind: str, namespace: str | None = None, name: str | None = None, sub: str = "") -> str:
    """Where an object or a list of them is.

    >>> path("apps/v1", "StatefulSet", "ns", "a-broker")
    '/apis/apps/v1/namespaces/ns/statefulsets/a-broker'
    """
    root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{within}/{_PLURALS[kind]}" + (f"/{name}" if name else "") + (f"/{sub}" if sub else "")


def credentials() -> kopf.ConnectionInfo:
    """Where the API server is and who we are."""
    settings = kopf.OperatorSettings()
    found = kopf.login_with_service_account(settings=settings) or kopf.login_with_kubeconfig(settings=settings)
    if found is None:
        raise KubeError(0, "there is no service account and no kubeconfig: run in a pod, or set KUBECONFIG")
    return found


class Kube:
    """A session with the API server. Use it as `async with`."""

    def __init__(self, timeout: float = 30.0) -> None:
        self._timeout = timeout
        self._info = credentials()
        self._read_at = time.monotonic()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Kube:
        context = await asyncio.to_thread(self._info.as_ssl_context)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=32),
            timeout=aiohttp.ClientTimeout(total=self._timeout),
        )
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def namespace(self) -> str:
        """The namespace the operator itself runs in."""
        return self._info.default_namespace or "default"

    async def call(
        self,
        method: str,
        where: str,
        body: Json | None = None,
        *,
        kind: str = _JSON,
        accept: str = _JSON,
        query: Mapping[str, str] | None = None,
    ) -> Json:
        """One request; `KubeError` for every answer that is not a success."""
        assert self._session is not None
        if time.monotonic() - self._read_at > _TOKEN_SECONDS:
            self._info, self._read_at = await asyncio.to_thread(credentials), time.monotonic()
        headers = {**self._info.as_http_headers(), "Content-Type": kind, "Accept": accept}
        url = self._info.server.rstrip("/") + where
        if query:
            url += "?" + "&".join(f"{name}={quote(value)}" for name, value in query.items())
        try:
            data = None if body is None else json.dumps(body)
            async with self._session.request(method, url, data=data, headers=headers) as answer:
                text = await answer.text()
                if answer.status >= 400:
                    raise KubeError(answer.status, _message(text))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KubeError(0, f"the API server does not answer: {error or type(error).__name__}") from error
        found: Json = json.loads(text) if text else {}
        return found

    async def get(self, where: str) -> Json | None:
        """The object; None when there is none."""
        try:
            return await self.call("GET", where)
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    async def list(
        self, where: str, labels: dict[str, str] | None = None, *, metadata_only: bool = False, cached: bool = False
    ) -> list[Json]:
        """Objects with these labels; `cached`: as the API server remembers them, which costs it a tenth."""
        query = {"labelSelector": ",".join(f"{k}={v}" for k, v in labels.items())} if labels else {}
        if cached:
            query["resourceVersion"] = "0"
        accept = _METADATA_LIST if metadata_only else _JSON
        answer = await self.call("GET", where, accept=accept, query=query)
        # An empty list of bare metadata is null.
        found: list[Json] = answer["items"] or []
        return found

    async def apply(self, manifest: Json, *, dry_run: bool = False) -> Json:
        """Makes an object as it shall be; fields that others own and we do not name stay as they are."""
        about = manifest["metadata"]
        where = path(manifest["apiVersion"], manifest["kind"], about.get("namespace"), about["name"])
        query = {"fieldManager": FIELD_MANAGER, "force": "true"} | ({"dryRun": "All"} if dry_run else {})
        return await self.call("PATCH", where, manifest, kind="application/apply-patch+yaml", query=query)

    async def merge(self, where: str, patch: Json) -> Json:
        """Changes some fields of an object."""
        query = {"fieldManager": FIELD_MANAGER}
        return await self.call("PATCH", where, patch, kind="application/merge-patch+json", query=query)

    async def delete(self, where: str, **options: Any) -> None:
        """Deletes an object; one that is gone already is fine."""
        try:
            await self.call("DELETE", where, {"apiVersion": "v1", "kind": "DeleteOptions", **options})
        except KubeError as error:
            if error.status != 404:
                raise

    async def evict(self, namespace: str, pod: str, uid: str) -> bool:
        """Asks a pod to go, as a drained node does; False when its disruption budget says not now."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        try:
            await self.call("POST", path("v1", "Pod", namespace, pod, "eviction"), body)
        except KubeError as error:
            if error.status not in (404, 409, 429):
                raise
            return error.status == 404
        return True


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:500]
