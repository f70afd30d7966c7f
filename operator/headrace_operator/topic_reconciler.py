"""One look at all Topics of a Cluster: bulk calls for what differs, then the statuses that changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from headrace.client import TopicPartition
from headrace.cluster.image import Image
from headrace.errors import KafkaError
from headrace_operator import topics
from headrace_operator.admin import ClusterAdmin
from headrace_operator.context import Context
from headrace_operator.events import now
from headrace_operator.kube import API, KubeError, path
from headrace_operator.picture import Disk
from headrace_operator.resources import FINALIZER, TopicSpec, TopicStatus
from headrace_operator.schema import Json, parse, to_dict
from headrace_operator.store import Name
from headrace_operator.topic_status import status_of
from headrace_operator.topics import Plan, TopicResource, Verdict

log = logging.getLogger(__name__)

PATCHES = 16
"""Requests to the API server under way at a time."""
_CLEARED = dict.fromkeys(("topicId", "partitions", "replicas", "inSync", "reassignment", "size"))


class TopicReconciler:
    """Looks after the Topics of one Cluster."""

    def __init__(self, context: Context, admin: ClusterAdmin, name: Name) -> None:
        self._context = context
        self._admin = admin
        self._name = name
        self._patching = asyncio.Semaphore(PATCHES)

    async def look(self, disks: Mapping[int, Disk]) -> bool:
        """One round; True when nothing is left to do for now."""
        store = self._context.store
        bodies = {body["metadata"]["uid"]: body for body in store.topics.get(self._name, {}).values()}
        if not bodies:
            return True
        resources = [resource_of(body) for body in bodies.values()]
        cluster = store.clusters.get(self._name)
        image = None
        if cluster is None:
            plan = topics.waiting(resources, "ClusterNotFound", f"it waits for the Cluster {self._name[1]}", gone=True)
        elif "deletionTimestamp" in cluster["metadata"]:
            plan = topics.waiting(resources, "ClusterDeleting", "its Cluster is being deleted", gone=True)
        elif (image := await self._admin.image()) is None:
            # Topics that were seen before keep what was said of them: that their cluster is away says the cluster.
            unseen = [r for r in resources if not bodies[r.uid].get("status")]
            plan = topics.waiting(unseen, "ClusterNotReady", "it waits until its Cluster answers", gone=False)
        else:
            wanted = cluster["spec"].get("brokers", {}).get("replicas", len(image.brokers))
            plan = topics.plan(resources, image, [b for b in sorted(image.brokers) if b < wanted])
        await self._each(plan.hold, bodies, self._hold)
        if image is not None and plan.acts:
            await self._forget_gone(plan, resources, bodies)
            await self._carry_out(plan, resources, bodies)
            image = await self._admin.image() or image
        await self._tell(plan, resources, bodies, image, _sizes(image, disks))
        await self._each(plan.release, bodies, self._release)
        return image is not None and not plan.acts

    # --- the cluster

    async def _forget_gone(self, plan: Plan, resources: list[TopicResource], bodies: dict[str, Json]) -> None:
        """Asks whether Topics that had to wait are still wanted: the news that one is gone may be on its way, and
        what is created now would belong to nobody."""
        waited = [r for r in resources if r.name in plan.creates and bodies[r.uid].get("status")]
        paths = [path(API, "Topic", self._name[0], resource.resource) for resource in waited]
        for resource, found in zip(waited, await asyncio.gather(*map(self._context.kube.get, paths)), strict=True):
            if found is None or "deletionTimestamp" in found["metadata"] or found["metadata"]["uid"] != resource.uid:
                plan.creates.pop(resource.name, None)
                plan.verdicts.pop(resource.uid, None)

    async def _carry_out(self, plan: Plan, resources: list[TopicResource], bodies: dict[str, Json]) -> None:
        refused: dict[str, KafkaError] = {}
        try:
            refused |= await self._admin.create(plan.creates.values())
            refused |= await self._admin.grow(plan.partitions)
            refused |= await self._admin.configure(plan.configs)
            refused |= await self._admin.move(plan.moves)
            refused |= await self._admin.delete(plan.deletes)
        except KafkaError as failed:
            log.warning("%s/%s: topics are not changed yet: %s", *self._name, failed.message)
            return
        log.info(
            "%s/%s: created %d topics, grew %d, configured %d, moved %d partitions, deleted %d topics; %d refused",
            *self._name,
            *(len(part) for part in (plan.creates, plan.partitions, plan.configs, plan.moves, plan.deletes, refused)),
        )
        for resource in resources:
            error = refused.get(resource.name)
            if error is not None and resource.uid in plan.verdicts:
                plan.verdicts[resource.uid] = Verdict(False, _word(error), error.message)
                await self._context.events.tell(bodies[resource.uid], _word(error), error.message, warning=True)

    # --- the API server

    async def _tell(
        self,
        plan: Plan,
        resources: list[TopicResource],
        bodies: dict[str, Json],
        image: Image | None,
        sizes: Mapping[TopicPartition, int],
    ) -> None:
        time, patches = now(), []
        for resource in resources:
            verdict = plan.verdicts.get(resource.uid)
            if verdict is None:
                continue
            body = bodies[resource.uid]
            before = parse(TopicStatus, body.get("status"))
            actual = image.topics.get(resource.name) if image is not None and verdict.reason != "Conflict" else None
            if actual is not None and verdict.reason == "Creating":
                # It was made in this very round.
                verdict = Verdict(True, "AsSpecified", "the topic is as it shall be")
            generation = body["metadata"].get("generation", 0)
            status = status_of(resource.name, verdict, actual, sizes, before, generation, time)
            if status != before:
                patches.append(self._patch(body, {"status": {**_CLEARED, **to_dict(status)}}, "status"))
            if verdict.reason == "Conflict":
                await self._context.events.tell(body, verdict.reason, verdict.message, warning=True)
        await asyncio.gather(*patches)

    async def _each(self, uids: set[str], bodies: dict[str, Json], act: Callable[[Json], Awaitable[None]]) -> None:
        await asyncio.gather(*(act(bodies[uid]) for uid in uids))

    async def _hold(self, body: Json) -> None:
        await self._finalizers(body, [*body["metadata"].get("finalizers", []), FINALIZER])

    async def _release(self, body: Json) -> None:
        await self._finalizers(body, [f for f in body["metadata"].get("finalizers", []) if f != FINALIZER])

    async def _finalizers(self, body: Json, wanted: list[str]) -> None:
        about = body["metadata"]
        newest = self._context.store.topics.get(self._name, {}).get(about["name"], body)
        version = newest["metadata"]["resourceVersion"]
        await self._patch(body, {"metadata": {"finalizers": wanted, "resourceVersion": version}})

    async def _patch(self, body: Json, patch: Json, sub: str = "") -> None:
        about = body["metadata"]
        where = path(API, "Topic", about["namespace"], about["name"], sub)
        async with self._patching:
            try:
                answer = await self._context.kube.merge(where, patch)
            except KubeError as error:
                # Gone, or changed meanwhile: its watch tells, and the next look sees it.
                if error.status not in (404, 409):
                    raise
                return
        if "deletionTimestamp" not in answer["metadata"] or answer["metadata"].get("finalizers"):
            self._context.store.put(answer)


def resource_of(body: Json) -> TopicResource:
    """A Topic from its object."""
    about = body["metadata"]
    return TopicResource(
        resource=about["name"],
        uid=about["uid"],
        created=about["creationTimestamp"],
        spec=parse(TopicSpec, body["spec"]),
        deleting="deletionTimestamp" in about,
        finalizer=FINALIZER in about.get("finalizers", []),
    )


def _word(error: KafkaError) -> str:
    """An error's name as a condition's reason.

    >>> from headrace.errors import ErrorCode
    >>> _word(KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, ""))
    'InvalidReplicationFactor'
    """
    return "".join(word.capitalize() for word in error.code.name.split("_"))


def _sizes(image: Image | None, disks: Mapping[int, Disk]) -> dict[TopicPartition, int]:
    """The size of each partition where its leader keeps it."""
    found: dict[TopicPartition, int] = {}
    for broker, disk in disks.items():
        for partition, size in disk.sizes.items():
            state = image.partition(*partition) if image is not None else None
            if state is not None and state.leader == broker:
                found[partition] = size
    return found
