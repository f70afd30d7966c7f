"""One look at all Topics of a Cluster: bulk calls for what differs, then the statuses that changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from headrace.client import TopicPartition
from headrace.cluster.image import Image
from headrace.errors import ErrorCode, KafkaError
from headrace_operator import picture, topics
from headrace_operator.admin import ClusterAdmin
from headrace_operator.context import Context
from headrace_operator.events import now
from headrace_operator.kube import API, KubeError, path
from headrace_operator.ledger import Ledger
from headrace_operator.picture import Disk
from headrace_operator.resources import TopicSpec, TopicStatus
from headrace_operator.schema import Json, parse, to_patch
from headrace_operator.store import Name
from headrace_operator.topic_status import status_of
from headrace_operator.topics import ANOTHERS, WRONG, Plan, TopicResource, Verdict

log = logging.getLogger(__name__)

TOLD_ONE_BY_ONE = 50
"""Topics made in one look that have an Event each; of more their status tells, as Events would take as long again."""
PATCHES = 8
"""Requests to the API server under way at a time: whoever makes a thousand Topics one by one waits behind them."""


class TopicReconciler:
    """Looks after the Topics of one Cluster."""

    def __init__(self, context: Context, admin: ClusterAdmin, name: Name) -> None:
        self._context = context
        self._admin = admin
        self._name = name
        self._ledger = Ledger(context.kube, name)
        self._patching = asyncio.Semaphore(PATCHES)

    async def look(self, disks: Mapping[int, Disk]) -> bool:
        """One round; True when nothing is left to do for now."""
        store = self._context.store
        cluster = store.clusters.get(self._name)
        bodies = {body["metadata"]["uid"]: body for body in store.topics.get(self._name, {}).values()}
        if cluster is None or "deletionTimestamp" in cluster["metadata"]:
            return await self._look_without(cluster, bodies)
        owned = await self._ledger.read(cluster)
        if not bodies and not owned:
            return True
        resources = [resource_of(body) for body in bodies.values()]
        image = await self._admin.image()
        if image is None:
            # Topics that were seen before keep what was said of them: that their cluster is away says the cluster.
            unseen = [r for r in resources if not bodies[r.uid].get("status")]
            plan = topics.waiting(unseen, "ClusterNotReady", "it waits until its Cluster answers")
        else:
            wanted = cluster["spec"].get("brokers", {}).get("replicas", len(image.brokers))
            plan = topics.plan(resources, image, [b for b in sorted(image.brokers) if b < wanted], owned)
            await self._ask_what_is_there(plan, resources, bodies)
            # Written down before anything is made: an operator that dies here leaves nothing that nobody deletes.
            await self._ledger.write(cluster, plan.keep, plan.forget)
            if plan.acts:
                await self._carry_out(plan, resources, bodies, cluster)
                image = await self._admin.image() or image
        await self._tell(plan, resources, bodies, image, _sizes(image, disks))
        return image is not None and not plan.acts

    async def _look_without(self, cluster: Json | None, bodies: dict[str, Json]) -> bool:
        """Topics of a Cluster that is not there yet, or no longer."""
        resources = [resource_of(body) for body in bodies.values()]
        if cluster is None:
            plan = topics.waiting(resources, "ClusterNotFound", f"it waits for the Cluster {self._name[1]}")
        else:
            plan = topics.waiting(resources, "ClusterDeleting", "its Cluster is being deleted")
        await self._tell(plan, resources, bodies, None, {})
        return True

    # --- the cluster

    async def _ask_what_is_there(self, plan: Plan, resources: list[TopicResource], bodies: dict[str, Json]) -> None:
        """The watch may be late. Before data is deleted the API server itself says that the Topic is gone; before a
        topic is made for one that had to wait, that it is still wanted: else it would belong to nobody."""
        waited = [r for r in resources if r.name in plan.creates and bodies[r.uid].get("status")]
        if not waited and not plan.deletes:
            return
        listed = await self._context.kube.list(path(API, "Topic", self._name[0]), metadata_only=True)
        there = {item["metadata"]["uid"]: "deletionTimestamp" in item["metadata"] for item in listed}
        for resource in waited:
            if there.get(resource.uid, True):
                plan.creates.pop(resource.name, None)
                plan.verdicts.pop(resource.uid, None)
                plan.keep.pop(resource.uid, None)
        for uid in plan.deletes.keys() & there.keys():
            del plan.deletes[uid]

    async def _carry_out(
        self, plan: Plan, resources: list[TopicResource], bodies: dict[str, Json], cluster: Json
    ) -> None:
        refused: dict[str, KafkaError] = {}
        try:
            refused |= await self._admin.create(plan.creates.values())
            plan.created = plan.creates.keys() - refused.keys()
            refused |= await self._admin.grow(plan.partitions)
            refused |= await self._admin.configure(plan.configs)
            refused |= await self._admin.move(plan.moves)
            await self._delete(plan, cluster)
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

    async def _delete(self, plan: Plan, cluster: Json) -> None:
        if not plan.deletes:
            return
        refused = await self._admin.delete(set(plan.deletes.values()))
        kept = {name for name, error in refused.items() if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        for name in kept:
            log.warning("%s/%s: %s is not deleted: %s", *self._name, name, refused[name].message)
        gone = {uid: name for uid, name in plan.deletes.items() if name not in kept}
        await self._ledger.write(cluster, {}, gone)
        if gone:
            said = f"{picture.some(sorted(gone.values()))} went with their Topics"
            await self._context.events.tell(cluster, "TopicsDeleted", said)

    # --- the API server

    async def _tell(
        self,
        plan: Plan,
        resources: list[TopicResource],
        bodies: dict[str, Json],
        image: Image | None,
        sizes: Mapping[TopicPartition, int],
    ) -> None:
        time, patches, news = now(), [], []
        for resource in resources:
            verdict = plan.verdicts.get(resource.uid)
            if verdict is None:
                continue
            body = bodies[resource.uid]
            before = parse(TopicStatus, body.get("status"))
            actual = image.topics.get(resource.name) if image is not None and verdict.reason not in ANOTHERS else None
            if actual is not None and verdict.reason == "Creating":
                # It was made in this very round.
                verdict = Verdict(True, "AsSpecified", "the topic is as it shall be")
            generation = body["metadata"].get("generation", 0)
            status = status_of(resource.name, verdict, actual, sizes, before, generation, time)
            if status != before:
                patches.append(self._patch(body, {"status": to_patch(status)}, "status"))
            if (
                len(plan.created) <= TOLD_ONE_BY_ONE
                and resource.name in plan.created
                and verdict.reason not in ANOTHERS
            ):
                news.append(self._say(body, "Created", f"the topic {resource.name} was created"))
            if verdict.reason in WRONG:
                news.append(self._say(body, verdict.reason, verdict.message, warning=True))
        await asyncio.gather(*patches)
        await asyncio.gather(*news)

    async def _say(self, body: Json, reason: str, message: str, *, warning: bool = False) -> None:
        async with self._patching:
            await self._context.events.tell(body, reason, message, warning=warning)

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
