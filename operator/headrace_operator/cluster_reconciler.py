"""One look at a Cluster: apply what it is made of, take the next safe step, say how it is.

Every look starts from what is there. Nothing is remembered between two of them but what the status says, so an
operator that was killed anywhere goes on from the same place.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time

from headrace.cluster.image import Image
from headrace.errors import KafkaError
from headrace_operator import conditions, observed, rollout, scaling
from headrace_operator.admin import ClusterAdmin
from headrace_operator.applying import Applier
from headrace_operator.cluster_status import Doing, Facts, Memory, status_of
from headrace_operator.context import Context
from headrace_operator.events import now
from headrace_operator.kube import API, KubeError, path
from headrace_operator.manifests import Cluster, manifests, own_components
from headrace_operator.manifests.settings import live_config, wrong_config
from headrace_operator.picture import Disk, held, some
from headrace_operator.places import external_addresses, tell_pods
from headrace_operator.resources import RESTART_ANNOTATION, ClusterSpec, ClusterStatus
from headrace_operator.schema import Json, parse, to_patch

log = logging.getLogger(__name__)

DISK_SECONDS, DISK_CALL_SECONDS = 30.0, 3.0


class ClusterReconciler:
    """Looks after one Cluster."""

    def __init__(self, context: Context, admin: ClusterAdmin) -> None:
        self._context = context
        self._admin = admin
        self._applier = Applier(context.kube)
        self._disks: dict[int, Disk] = {}
        self._disks_at = -DISK_SECONDS

    @property
    def disks(self) -> dict[int, Disk]:
        """Space and sizes as of the last look."""
        return self._disks

    async def look(self, body: Json) -> bool:
        """One round; True when nothing is left to do for now."""
        about = body["metadata"]
        spec = parse(ClusterSpec, body["spec"])
        before = parse(ClusterStatus, body.get("status"))
        options = self._context.options
        cluster = Cluster(
            name=about["name"],
            namespace=about["namespace"],
            uid=about["uid"],
            spec=spec,
            image=spec.image or options.image,
            pull_secrets=options.pull_secrets,
            restart=about.get("annotations", {}).get(RESTART_ANNOTATION),
        )
        doing = Doing()
        seen = await self._applier.observe(cluster)
        image = await self._admin.image() if "metadata" in seen.workloads else None
        memory = Memory(before.live_config, before.spreading, before.rolling)
        if wrong := wrong_config(spec.config):
            doing.say("InvalidConfig", wrong, blocked=True)
            await self._context.events.tell(body, "InvalidConfig", wrong, warning=True)
        else:
            cluster, memory.spreading = await self._scale(body, cluster, seen, before, doing)
            await self._apply(body, cluster, seen, doing)
            if image is not None:
                memory.live_config = await self._configure(body, cluster, image, before, doing)
                memory.spreading = await self._spread(body, image, memory.spreading, doing)
            # Partitions that moved to new brokers brought their leaders nowhere yet: that ends as a roll ends.
            spread = bool(before.spreading) and not memory.spreading
            memory.rolling = await self._roll(body, cluster, seen, image, before.rolling or spread, doing)
        self._say_starting(cluster, seen, image, doing)
        await self._look_at_disks(image)
        facts = Facts(cluster, seen, image, doing, memory, self._disks, await self._external(cluster))
        status = status_of(facts, before, about.get("generation", 0), now())
        await self._tell(body, before, status)
        return not memory.rolling and (not doing.reason or doing.blocked)

    # --- objects

    async def _apply(self, body: Json, cluster: Cluster, seen: observed.Observed, doing: Doing) -> None:
        staged = dataclasses.replace(cluster, images=observed.images(cluster, seen))
        if any(image != cluster.image for image in staged.images.values()):
            late = [c for c, image in staged.images.items() if image != cluster.image]
            doing.say("Upgrading", f"{cluster.image} goes to {', '.join(late)} once those before are ready")
        wanted = manifests(staged)
        try:
            if why := await self._applier.grow_volumes(cluster, wanted, seen):
                doing.say("VolumeCannotGrow", why, blocked=True)
                await self._context.events.tell(body, "VolumeCannotGrow", why, warning=True)
            await self._applier.apply(wanted, seen)
            await self._applier.prune(cluster, wanted)
        except KubeError as error:
            if error.status not in (400, 403, 422):
                raise
            doing.say("Refused", f"Kubernetes refuses what the spec leads to: {error}", blocked=True)
            await self._context.events.tell(body, "Refused", str(error), warning=True)
        if missing := await tell_pods(self._context.kube, cluster, seen):
            doing.say("WaitingForAddress", missing)

    def _say_starting(self, cluster: Cluster, seen: observed.Observed, image: Image | None, doing: Doing) -> None:
        unsettled = [
            component
            for component in own_components(cluster)
            if component not in seen.workloads or not seen.workloads[component].settled
        ]
        if unsettled:
            doing.say("Starting", f"{', '.join(unsettled)} are not ready yet")
        elif image is None:
            doing.say("Starting", "the cluster does not answer yet")

    # --- brokers that come and go

    async def _scale(
        self, body: Json, cluster: Cluster, seen: observed.Observed, before: ClusterStatus, doing: Doing
    ) -> tuple[Cluster, tuple[int, ...]]:
        """The cluster with the number of brokers that may run now, and the new ones that are to be filled."""
        wanted, spreading = cluster.spec.brokers.replicas, tuple(before.spreading)
        current = observed.brokers_there(seen, before.brokers)
        if not current:
            return cluster, spreading
        if current == wanted:
            # A topic that was created in the moment a broker left may have been placed on it.
            image = await self._admin.image() if "metadata" in seen.workloads else None
            if image is not None and (gone := {b for b in held(image) if b >= wanted and b not in image.brokers}):
                await self._drained(body, gone, doing)
            return cluster, spreading
        if wanted > current:
            spreading = tuple(sorted({*spreading, *range(current, wanted)}))
            # Known before it happens: whoever takes over after a crash fills them.
            await self._patch_status(body, {"spreading": list(spreading)})
            await self._context.events.tell(body, "ScalingUp", f"from {current} to {wanted} brokers")
            return cluster, spreading
        spreading = tuple(b for b in spreading if b < wanted)
        if await self._drained(body, set(range(wanted, current)), doing):
            await self._context.events.tell(body, "ScalingDown", f"from {current} to {wanted} brokers")
            return cluster, spreading
        return dataclasses.replace(cluster, broker_replicas=current), spreading

    async def _drained(self, body: Json, leaving: set[int], doing: Doing) -> bool:
        image = await self._admin.confirmed()
        names = ", ".join(map(str, sorted(leaving)))
        if image is None:
            doing.say("Draining", f"brokers {names} shall leave; the cluster does not answer")
            return False
        if away := [b for b in range(min(leaving)) if b not in image.brokers]:
            doing.say("Draining", f"brokers {names} shall leave once {some(away)} are back")
            return False
        plan = scaling.drain(image, leaving)
        if not plan.left:
            return True
        refused = await self._admin.move(plan.moves)
        if plan.stuck:
            why = f"brokers {names} cannot leave: {next(iter(plan.stuck.values()))}"
            doing.say("ScaleDownBlocked", why, blocked=not plan.moves)
            await self._context.events.tell(body, "ScaleDownBlocked", why, warning=True)
        elif refused:
            topic, error = next(iter(refused.items()))
            doing.say("Draining", f"brokers {names} shall leave; {topic} does not move: {error.message}")
        else:
            doing.say("Draining", f"{plan.left} partitions have to leave brokers {names}")
            await self._context.events.tell(body, "Draining", f"brokers {names} are drained before they leave")
        return False

    async def _spread(self, body: Json, image: Image, fresh: tuple[int, ...], doing: Doing) -> tuple[int, ...]:
        """Fills new brokers; the answer is which of them are not full yet."""
        if not fresh or doing.reason == "Draining":
            return fresh
        plan = scaling.spread(image, fresh)
        if plan.moves:
            await self._admin.move(plan.moves)
            await self._context.events.tell(body, "Spreading", f"brokers {some(fresh, 10)} get their share")
        if plan.left:
            doing.say("Spreading", f"brokers {some(fresh, 10)} get their share: {plan.left} partitions move")
        return fresh if plan.left else ()

    # --- settings and restarts

    async def _configure(
        self, body: Json, cluster: Cluster, image: Image, before: ClusterStatus, doing: Doing
    ) -> tuple[str, ...]:
        """Gives running brokers the settings they can take; the answer is which ones they have from us."""
        wanted, actual = live_config(cluster.spec.config), image.broker_configs.get("", {})
        changes: dict[str, str | None] = {n: text for n, text in wanted.items() if actual.get(n) != text}
        changes |= {n: None for n in before.live_config if n not in wanted and n in actual}
        names = tuple(sorted(wanted))
        if not changes:
            return names
        if set(names) - set(before.live_config):
            await self._patch_status(body, {"liveConfig": sorted({*names, *before.live_config})})
        try:
            await self._admin.configure_brokers(changes)
        except KafkaError as error:
            doing.say("Configuring", f"{', '.join(changes)} cannot be set yet: {error.message}")
            return before.live_config
        await self._context.events.tell(body, "Configured", f"running brokers took {', '.join(sorted(changes))}")
        return names

    async def _roll(
        self,
        body: Json,
        cluster: Cluster,
        seen: observed.Observed,
        image: Image | None,
        rolling: bool,
        doing: Doing,
    ) -> bool:
        """Takes the next step of a roll; the answer is whether one is under way."""
        pods = observed.broker_pods(seen)
        others = [c for c in own_components(cluster)[:-1] if c not in seen.workloads or not seen.workloads[c].settled]
        step = rollout.next_step(pods, image, rolling, others)
        if isinstance(step, rollout.Restart) and image is not None:
            # What the metadata stream says may be a moment old; the controller is asked before a broker goes.
            step = rollout.next_step(pods, await self._admin.confirmed(), rolling, others)
        match step:
            case rollout.Restart(pod, left):
                uid = next(p["metadata"]["uid"] for p in seen.pods["broker"] if p["metadata"]["name"] == pod.name)
                gone = await self._context.kube.evict(cluster.namespace, pod.name, uid)
                late = "" if gone else "; its disruption budget says not now"
                doing.say("Rolling", f"{pod.name} restarts, {left} to go{late}")
                await self._context.events.tell(body, "Restarting", f"{pod.name} restarts with the new template")
            case rollout.Wait(message):
                doing.say("Rolling", message)
            case rollout.ElectPreferred():
                try:
                    await self._admin.elect_preferred()
                except KafkaError as error:
                    log.info("%s: leaders are not given back yet: %s", cluster.name, error.message)
                doing.say("GivingLeadersBack", "every broker is new; leaders go back to their preferred brokers")
            case rollout.Done():
                if rolling:
                    await self._context.events.tell(body, "Rolled", "every broker runs the newest template")
        return not isinstance(step, rollout.Done)

    # --- status

    async def _look_at_disks(self, image: Image | None) -> None:
        if image is None or time.monotonic() - self._disks_at < DISK_SECONDS:
            return
        self._disks_at = time.monotonic()
        found = await asyncio.gather(*(self._disk(broker) for broker in image.brokers))
        self._disks = {broker: disk for broker, disk in zip(image.brokers, found, strict=True) if disk is not None}

    async def _disk(self, broker: int) -> Disk | None:
        try:
            async with asyncio.timeout(DISK_CALL_SECONDS):
                return await self._admin.disk(broker)
        except (KafkaError, TimeoutError) as error:
            # One that is just restarting; it is asked again.
            log.debug("broker %d does not say how full it is: %s", broker, error)
            return self._disks.get(broker)

    async def _external(self, cluster: Cluster) -> str | None:
        listener = cluster.spec.listeners.external
        if listener is None:
            return None
        where = path("v1", "Service", cluster.namespace, cluster.child("external-bootstrap"))
        return next(iter(external_addresses(await self._context.kube.get(where), listener)), None)

    async def _tell(self, body: Json, before: ClusterStatus, status: ClusterStatus) -> None:
        if status != before:
            await self._patch_status(body, to_patch(status))
        was, is_now = (conditions.is_true(s.conditions, conditions.READY) for s in (before, status))
        if was != is_now:
            ready = next(c for c in status.conditions if c["type"] == conditions.READY)
            reason = "Ready" if is_now else "NotReady"
            await self._context.events.tell(body, reason, ready["message"], warning=not is_now)

    async def _patch_status(self, body: Json, status: Json) -> None:
        about = body["metadata"]
        where = path(API, "Cluster", about["namespace"], about["name"], "status")
        self._context.store.put(await self._context.kube.merge(where, {"status": status}))
