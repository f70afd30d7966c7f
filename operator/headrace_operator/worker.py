"""Looks after one Cluster and its Topics: two loops, so that a roll that waits does not hold up Topics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from headrace.errors import KafkaError
from headrace_operator import metrics
from headrace_operator.admin import ClusterAdmin
from headrace_operator.cluster_reconciler import ClusterReconciler
from headrace_operator.context import Context
from headrace_operator.kube import KubeError
from headrace_operator.store import Name
from headrace_operator.topic_reconciler import TopicReconciler

log = logging.getLogger(__name__)

BUSY_SECONDS, QUIET_SECONDS = 2.0, 15.0
GATHER_SECONDS, MAX_GATHER_SECONDS = 0.25, 2.0
"""News is collected for so long before a look: a thousand Topics come as one."""
MAX_BACKOFF = 30.0


def gather_seconds(took: float) -> float:
    """How long to collect news after a look that took so long: while much happens, looks take a quarter of the time,
    and the API server has the rest for whoever makes it happen.

    >>> [gather_seconds(took) for took in (0.01, 0.5, 60.0)]
    [0.25, 1.5, 2.0]
    """
    return min(max(GATHER_SECONDS, 3 * took), MAX_GATHER_SECONDS)


class Worker:
    """Runs until `stop`."""

    def __init__(self, context: Context, name: Name) -> None:
        self._context = context
        self._name = name
        self._news = {"Cluster": asyncio.Event(), "Topic": asyncio.Event()}
        namespace, cluster = name
        address = context.options.metadata_address.format(name=cluster, namespace=namespace)
        self._admin = ClusterAdmin(address, self.wake_all)
        self._clusters = ClusterReconciler(context, self._admin)
        self._topics = TopicReconciler(context, self._admin, name)
        self._tasks = [
            asyncio.create_task(self._loop("Cluster", self._look_at_cluster), name=f"cluster {name}"),
            asyncio.create_task(self._loop("Topic", self._look_at_topics), name=f"topics {name}"),
        ]

    def wake(self, kind: str) -> None:
        self._news[kind].set()

    def wake_all(self) -> None:
        for event in self._news.values():
            event.set()

    @property
    def failure(self) -> BaseException | None:
        """Why a loop ended, which none ever should."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                return task.exception()
        return None

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._admin.close()

    async def _look_at_cluster(self) -> bool:
        body = self._context.store.clusters.get(self._name)
        if body is None or "deletionTimestamp" in body["metadata"]:
            # What is left is the garbage collector's.
            await self._admin.close()
            return True
        return await self._clusters.look(body)

    async def _look_at_topics(self) -> bool:
        return await self._topics.look(self._clusters.disks)

    async def _loop(self, kind: str, look: Callable[[], Awaitable[bool]]) -> None:
        failures = 0
        while True:
            self._news[kind].clear()
            began = time.monotonic()
            settled = await self._timed(kind, look)
            took = time.monotonic() - began
            failures = 0 if settled is not None else failures + 1
            pause = QUIET_SECONDS if settled else BUSY_SECONDS
            if failures:
                pause = min(2.0**failures, MAX_BACKOFF)
            try:
                async with asyncio.timeout(pause):
                    await self._news[kind].wait()
                await asyncio.sleep(gather_seconds(took) if not failures else min(pause, MAX_GATHER_SECONDS))
            except TimeoutError:
                continue

    async def _timed(self, kind: str, look: Callable[[], Awaitable[bool]]) -> bool | None:
        """Whether all is done; None when the look failed."""
        began = time.monotonic()
        try:
            settled = await look()
        except (KubeError, KafkaError) as error:
            log.warning("%s/%s: %s, trying again", *self._name, error)
            metrics.LOOKS.labels(kind, "failed").inc()
            return None
        except Exception:
            # A mistake of ours in one Cluster must not stop the others; it is counted, and an alert tells of it.
            log.exception("%s/%s: a look failed", *self._name)
            metrics.LOOKS.labels(kind, "failed").inc()
            return None
        metrics.LOOKS.labels(kind, "settled" if settled else "busy").inc()
        metrics.SECONDS.labels(kind).observe(time.monotonic() - began)
        return settled
