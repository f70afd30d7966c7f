"""One term of an active controller: from its election until it resigns or its lease is lost.

All changes go through one door, one after the other: read the picture, decide, write, take the result into the
picture, tell the brokers. The watch brings what others write (registrations of brokers); whatever it brings leads to
one reconciliation that looks at everything, so it does not matter how many events came together or before this term.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.cluster import codec
from headrace.cluster.image import Delta, Image, Node
from headrace.controller import leaders, producer_ids
from headrace.controller.peers import Peers
from headrace.controller.picture import Picture
from headrace.controller.plan import PartitionId, Plan, ReplicaId, Touched, View, touched_by
from headrace.controller.senders import SenderLimits, Senders, Term
from headrace.controller.stats import Stats
from headrace.controller.transactions import Steps, Transaction, orphan_writes, transactions, writes_of
from headrace.controller.turns import Turns
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Clock
from headrace.registry.api import Changes, LeaseLost, ModRevision, Put, Registry, RegistryUnavailable, Snapshot
from headrace.registry.election import Leadership
from headrace.registry.keys import Keys
from headrace.registry.ownership import first

log = logging.getLogger(__name__)

T = TypeVar("T")
S = TypeVar("S", Snapshot, Changes)
Decision = Callable[[View], tuple[Plan, T]]


@dataclass(frozen=True, slots=True)
class ReignLimits:
    """What a term may use."""

    max_waiting: int = 1_000
    """Changes that wait for their turn; more are refused."""
    max_in_flight: int = 16
    """Transactions of one step that run side by side."""
    max_attempts: int = 5
    """How often a change is decided anew because a write failed."""
    first_backoff: float = 0.05
    max_backoff: float = 1.0


@dataclass(frozen=True, slots=True)
class Policy:
    """What the settings say about leaders."""

    unclean_allowed: Callable[[Image, str], bool]
    """Asked anew for each decision, because it can change."""
    min_isr: Callable[[Image, str], int]
    """A topic's `min.insync.replicas`; the same holds for it."""
    rebalance_interval: float | None = None
    """Seconds between looks at how leaders are spread; None: nobody looks."""
    imbalance_percentage: int = 10


class Reign:
    """The active controller. `run` returns when the term is over; after that every call answers NOT_CONTROLLER."""

    def __init__(
        self,
        term: Term,
        registry: Registry,
        keys: Keys,
        leadership: Leadership,
        peers: Peers,
        clock: Clock,
        policy: Policy,
        limits: ReignLimits,
        sender_limits: SenderLimits,
        cluster_id: str,
        stats: Stats,
    ) -> None:
        self.term = term
        self._stats = stats
        self._registry = registry
        self._keys = keys
        self._leadership = leadership
        self._clock = clock
        self._policy = policy
        self._limits = limits
        self._picture = Picture(keys, cluster_id)
        self._stopping: dict[int, int] = {}
        self._failed: dict[int, tuple[int, set[PartitionId]]] = {}
        self._turns = Turns(limits.max_waiting)
        self._over = False
        self._loaded = asyncio.Event()
        self._taken_over = asyncio.Event()
        self._news = asyncio.Event()
        self._doubted = asyncio.Event()
        self._changes: dict[asyncio.Task[Any], None] = {}
        self._to_say: list[Touched] = []
        self.senders = Senders(
            term, self._everything, peers, clock, sender_limits, self._doubted.set, self._replicas_failed
        )

    def _everything(self) -> tuple[Image, bool]:
        return self._picture.image, not self._picture.damaged()

    @property
    def image(self) -> Image:
        return self._picture.image

    @property
    def waiting(self) -> int:
        """Changes that wait for their turn."""
        return self._turns.waiting

    @property
    def ready(self) -> bool:
        """Whether it has taken over: everything that happened before its term is dealt with."""
        return self._taken_over.is_set() and not self._over

    def view(self) -> View:
        image = self._picture.image
        stopping = {b for b, epoch in self._stopping.items() if b in image.brokers and image.brokers[b].epoch == epoch}
        failed = {
            broker: partitions
            for broker, (epoch, partitions) in self._failed.items()
            if broker in image.brokers and image.brokers[broker].epoch == epoch
        }
        min_isr = functools.cache(functools.partial(self._policy.min_isr, image))
        return View(image, self._picture.incarnations, frozenset(stopping), failed, min_isr)

    async def run(self) -> None:
        """Serves the term until it is lost."""
        try:
            await first(
                self._follow_registry(),
                self._follow_brokers(),
                self._rebalance(),
                self._check_doubts(),
                self._leadership.lost(),
            )
        finally:
            self._over = True
            self._taken_over.set()
            for task in list(self._changes):
                task.cancel()
            await asyncio.gather(*self._changes, return_exceptions=True)
            await self.senders.close()

    def check_active(self) -> None:
        """Refuses to act when the term is over, or may be."""
        if self._over or not self._leadership.valid:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "this controller's term is over: ask the new one")

    async def current(self) -> View:
        """The view to answer a question from, once everything before this term is dealt with."""
        await self._taken_over.wait()
        self.check_active()
        return self.view()

    def replicas_failed(self, broker: int, epoch: int, replicas: Iterable[ReplicaId]) -> None:
        """This registration of the broker cannot serve these replicas: they lead and are in sync no longer.

        It is not written down: a new controller sends everything to every broker and is told again.
        """
        known_epoch, known = self._failed.get(broker, (epoch, set()))
        if known_epoch != epoch:
            known = set()
        image = self._picture.image
        named = {(topic.name, index) for topic_id, index in replicas if (topic := image.topic_by_id(topic_id))}
        if not named <= known:
            self._failed[broker] = (epoch, known | named)
            self._news.set()

    def _replicas_failed(self, node: Node, replicas: Iterable[ReplicaId]) -> None:
        self.replicas_failed(node.id, node.epoch, replicas)

    def stop_broker(self, broker: int, epoch: int) -> None:
        """From now on this registration of the broker gets nothing new."""
        self._stopping[broker] = epoch

    async def change(self, decide: Decision[T], timeout: float = 0.0) -> T:
        """Carries out what `decide` plans and returns its answer.

        With a timeout (seconds) it waits that long for the brokers concerned to confirm; that they do not is no error.
        The caller may be cancelled at any time: what has begun is finished.
        """
        await self._taken_over.wait()
        answer, told = await self._in_turn(lambda: self._carry_out(decide))
        if timeout > 0:
            await self.senders.heard(told, timeout)
        return answer

    async def allocate_producer_ids(self) -> tuple[int, int]:
        """The first id of a new block, and how many there are."""
        await self._taken_over.wait()
        return await self._in_turn(self._allocate)

    async def _in_turn(self, work: Callable[[], Coroutine[Any, Any, T]], *, urgent: bool = False) -> T:
        self.check_active()

        async def turn() -> T:
            async with self._turns.turn(urgent=urgent):
                try:
                    return await work()
                finally:
                    self._say()

        task = asyncio.create_task(turn(), name="controller: change")
        self._changes[task] = None
        task.add_done_callback(self._changes.pop)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                self.check_active()
            raise

    def _say(self) -> None:
        """Notes for the brokers all that was changed in one turn, so that each is told once."""
        together: dict[int, set[ReplicaId]] = {}
        for touched in self._to_say:
            for broker, replicas in touched.items():
                together.setdefault(broker, set()).update(replicas)
        self._to_say.clear()
        self.senders.note(together)

    async def _carry_out(self, decide: Decision[T]) -> tuple[T, set[int]]:
        began = self._clock.monotonic()
        for attempt in range(self._limits.max_attempts):
            self.check_active()
            before, asked = self._picture.image, self._clock.monotonic()
            plan, answer = decide(self.view())
            self._stats.plans.observe(self._clock.monotonic() - asked)
            if not plan:
                return answer, set()
            touched = plan.touched(before)
            done = await self._write(writes_of(plan, before, self._keys))
            if not done:
                self._stats.retries.inc()
                await self._resync(attempt)
                done = plan.carried_out(self.view())
            # Also after a failure: some of it may have happened, and saying too much does no harm.
            self._to_say.append(touched)
            if plan.topic_configs or plan.broker_configs:
                self._news.set()
            if done:
                self._stats.carried_out(plan, before)
                self._stats.changes.observe(self._clock.monotonic() - began)
                return answer, set(touched)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the registry did not take the change: try again")

    async def _allocate(self) -> tuple[int, int]:
        key = self._keys.producer_ids
        for attempt in range(self._limits.max_attempts):
            self.check_active()
            block, counter = producer_ids.next_block(self._picture.next_producer_id)
            unchanged = ModRevision(key, self._picture.revisions.get(key, 0))
            put = Put(key, codec.encode_number(counter))
            if await self._commit(Transaction((self._leadership.guard, unchanged), (put,))):
                return block, counter - block
            # Should the block have been taken without our hearing of it, nobody uses it: there are enough.
            await self._resync(attempt)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the registry did not take the change: try again")

    async def _write(self, steps: Steps) -> bool:
        """Whether every transaction succeeded; after one that did not, later steps are not begun."""
        gate = asyncio.Semaphore(self._limits.max_in_flight)

        async def commit(transaction: Transaction) -> bool:
            async with gate:
                return await self._commit(transaction)

        guard, limit = self._leadership.guard, self._registry.max_txn_ops
        for step in transactions(steps, guard, self._picture.revisions, limit):
            if not all(await asyncio.gather(*map(commit, step))):
                return False
        return True

    async def _commit(self, transaction: Transaction) -> bool:
        if self._over or not self._leadership.valid:
            return False
        try:
            result = await self._registry.txn(transaction.conditions, transaction.changes)
        except (RegistryUnavailable, LeaseLost) as failed:
            log.warning("a change may or may not be in the registry: %s", failed)
            return False
        if result.succeeded:
            self._picture.made(transaction.changes, result.revision)
        return result.succeeded

    async def _resync(self, attempt: int) -> None:
        """Reads everything anew after a write that failed or whose answer was lost."""
        backoff = self._limits.first_backoff * (1 << attempt)
        while True:
            self.check_active()
            await self._clock.sleep(min(backoff, self._limits.max_backoff))
            try:
                snapshot = await self._registry.snapshot(self._keys.root)
            except RegistryUnavailable as failed:
                log.warning("the registry cannot be read: %s", failed)
                backoff *= 2
                continue
            if not self._elected_in(snapshot):
                self._over = True
                self._doubted.set()
            self.check_active()
            self._take(self._picture.load, snapshot)
            self._news.set()
            return

    def _elected_in(self, snapshot: Snapshot) -> bool:
        guard = self._leadership.guard
        return any(item.key == guard.key and item.create_revision == guard.revision for item in snapshot.items)

    async def _follow_registry(self) -> None:
        async with self._registry.watch(self._keys.root) as items:
            async for item in items:
                if isinstance(item, Changes):
                    self._take(self._picture.absorb, item)
                else:
                    self._take(self._picture.load, item)
                    self._loaded.set()

    def _take(self, into_picture: Callable[[S], Delta], item: S) -> None:
        before = self._picture.image
        delta = into_picture(item)
        # An own write is in the picture before it comes back here, unless the watch was faster than the answer, or
        # the answer did not come in time: then the brokers have not heard of it.
        self._to_say.append(touched_by(delta.changes, before))
        if not self._turns.taken:
            self._say()
        if self._picture.image.brokers != before.brokers:
            self._news.set()

    async def _follow_brokers(self) -> None:
        await self._loaded.wait()
        backoff = self._limits.first_backoff
        while True:
            self._news.clear()
            try:
                # A broker that is gone cannot be told, and one that restarted is told everything.
                await self.senders.leave(self._picture.image.brokers)
                await self._in_turn(lambda: self._carry_out(self._reconcile), urgent=True)
                await self._in_turn(self._remove_orphans, urgent=True)
            except KafkaError as refused:
                log.warning("not reconciled with the brokers that are there: %s", refused)
                await self._clock.sleep(backoff)
                backoff = min(backoff * 2, self._limits.max_backoff)
                continue
            backoff = self._limits.first_backoff
            await self.senders.follow(self._dealt_with())
            if not self._taken_over.is_set():
                log.info("controller %d is active with epoch %d", self.term.controller, self.term.epoch)
                self._taken_over.set()
            await self._news.wait()

    def _dealt_with(self) -> dict[int, Node]:
        """The registrations whose coming was decided on. One that came since may be of a broker that lost its records:
        told what it held before, it would lead without them."""
        known = self._picture.incarnations
        brokers = self._picture.image.brokers
        return {broker: node for broker, node in brokers.items() if known.get(broker) == leaders.incarnation_of(node)}

    def _reconcile(self, view: View) -> tuple[Plan, None]:
        allowed = functools.cache(functools.partial(self._policy.unclean_allowed, view.image))
        plan = leaders.reconcile(view, allowed)
        if plan.partitions:
            log.info("%d partitions change because of the brokers that came or went", len(plan.partitions))
        return plan, None

    async def _remove_orphans(self) -> None:
        damaged = self._picture.damaged()
        if damaged:
            log.error("nothing is deleted while these keys of the registry cannot be read: %s", ", ".join(damaged[:10]))
            return
        orphans = self._picture.orphans()
        if orphans and not await self._write(orphan_writes(orphans, self._picture.image, self._keys)):
            await self._resync(0)

    async def _rebalance(self) -> None:
        await self._taken_over.wait()
        if self._policy.rebalance_interval is None:
            await self._leadership.lost()
            return
        while True:
            await self._clock.sleep(self._policy.rebalance_interval)
            try:
                await self.change(lambda view: (leaders.rebalance(view, self._policy.imbalance_percentage), None))
            except KafkaError as refused:
                log.warning("leaders were not given back to the preferred replicas: %s", refused)

    async def _check_doubts(self) -> None:
        """Returns when a broker or the registry says that somebody else was elected, and that is true."""
        while not self._over:
            await self._doubted.wait()
            self._doubted.clear()
            try:
                held = await self._registry.get(self._leadership.key)
            except RegistryUnavailable:
                continue  # The lease decides, then.
            if held is None or held.create_revision != self._leadership.create_revision:
                return
