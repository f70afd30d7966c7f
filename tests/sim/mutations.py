"""Deliberate bugs, each switched on alone: a simulation that does not find them would find nothing.

Each is a context manager that puts the wrong code in place of the right one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tests.sim.world import LOG_DIR

from headrace.broker.control import ReplicaControl, Word
from headrace.broker.isr import Progress
from headrace.broker.isr_keeper import IsrKeeper
from headrace.broker.partition import Partition
from headrace.controller import leaders
from headrace.controller.reign import Reign
from headrace.coordinator.classic import ClassicGroup
from headrace.registry.api import CreateRevision
from headrace.registry.election import Leadership
from headrace.registry.ownership import Ownership
from headrace.storage import lineage
from headrace.storage.log_dirs import CLEAN_SHUTDOWN
from headrace.storage.memory_files import MemoryFiles
from headrace.storage.producer_state import ProducerState


@contextmanager
def _instead(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    original = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, original)


def high_watermark_too_early() -> AbstractContextManager[None]:
    """Readers see one record more than the in-sync replicas hold."""
    right = Progress.high_watermark

    def wrong(self: Progress, current: int, leader_end: int, min_isr: int) -> int:
        return min(right(self, current, leader_end, min_isr) + 1, leader_end)

    return _instead(Progress, "high_watermark", wrong)


def truncate_to_high_watermark() -> AbstractContextManager[None]:
    """A follower of a new leader cuts its log at its own high watermark, as Kafka did before KIP-101."""
    right = Partition.follow

    def wrong(self: Partition, state: Any) -> bool:
        moved = right(self, state)
        if moved and self.high_watermark < self.log.log_end_offset:
            self.log.truncate_to(max(self.high_watermark, self.log.log_start_offset))
        return moved

    def agrees(self: Partition, last_fetched_epoch: int, offset: int) -> None:
        return None

    @contextmanager
    def both() -> Iterator[None]:
        with _instead(Partition, "follow", wrong), _instead(Partition, "diverging", agrees):
            yield

    return both()


def shrink_without_consent() -> AbstractContextManager[None]:
    """A leader leaves a slow follower out before the controller has agreed."""
    right = IsrKeeper._wish

    def wrong(self: IsrKeeper, partition: Partition, progress: Progress, isr: tuple[int, ...]) -> None:
        right(self, partition, progress, isr)
        if len(isr) < len(progress.isr):
            progress.isr = isr
            partition.advance()

    return _instead(IsrKeeper, "_wish", wrong)


def lease_loss_ignored() -> AbstractContextManager[None]:
    """A controller goes on after its lease is gone, and writes without its guard."""
    always = property(lambda self: True)
    anything = property(lambda self: CreateRevision(self.key + "/nobody", 0))

    async def never(self: Ownership) -> None:
        await asyncio.Event().wait()

    @contextmanager
    def all_of_it() -> Iterator[None]:
        Leadership.valid = always  # type: ignore[method-assign,misc,assignment]
        Leadership.guard = anything  # type: ignore[method-assign,misc,assignment]
        Leadership.lost = never  # type: ignore[method-assign]
        with _instead(Reign, "_elected_in", lambda self, snapshot: True):
            try:
                yield
            finally:
                del Leadership.valid, Leadership.guard, Leadership.lost

    return all_of_it()


def checkpoint_not_synced() -> AbstractContextManager[None]:
    """Neither a checkpoint's rename nor the end of the clean-stop marker is made durable."""
    right = MemoryFiles.sync_dir

    def wrong(self: MemoryFiles, path: str) -> None:
        changes = self._name_changes if path == LOG_DIR else []
        missed = [change for change in changes if any(name in change[0][1] for name in ("-checkpoint", CLEAN_SHUTDOWN))]
        self._name_changes = [change for change in self._name_changes if change not in missed]
        right(self, path)
        self._name_changes = missed + self._name_changes

    return _instead(MemoryFiles, "sync_dir", wrong)


def duplicates_accepted() -> AbstractContextManager[None]:
    """Sequence numbers are not looked at."""
    return _instead(ProducerState, "check_all", lambda self, found: None)


def election_outside_isr() -> AbstractContextManager[None]:
    """The first live replica leads, in sync or not."""
    right = leaders.settle

    def wrong(state: Any, usable: Callable[[int], bool], **given: Any) -> Any:
        live = [r for r in state.replicas if usable(r)]
        if live and state.leader not in live:
            return leaders.moved(state, live[0], (live[0],), min_isr=1, new_term=live[0] == state.leader)
        return right(state, usable, **given)

    return _instead(leaders, "settle", wrong)


def restarted_broker_stays_in_sync() -> AbstractContextManager[None]:
    """A broker that was away counts as in sync, although its unsynced records may be gone."""
    right = leaders.settle

    def wrong(state: Any, usable: Callable[[int], bool], **given: Any) -> Any:
        given.pop("restarted", None)
        given.pop("lost", None)
        given.pop("emptied", None)
        return right(state, usable, **given)

    return _instead(leaders, "settle", wrong)


def lost_records_unnoticed() -> AbstractContextManager[None]:
    """A broker says that it lost nothing, whatever became of its disk."""
    return _instead(lineage, "settle", lambda files, dirs, random: "always the same")


def divergence_unchecked() -> AbstractContextManager[None]:
    """A follower appends where its log ends, whatever stands before that."""

    def wrong(self: Partition, last_fetched_epoch: int, offset: int) -> None:
        return None

    return _instead(Partition, "diverging", wrong)


def stale_generation_accepted() -> AbstractContextManager[None]:
    """A coordinator takes commits of members that the group has gone on without."""
    return _instead(ClassicGroup, "check_commit", lambda self, call: None)


def stale_controller_obeyed() -> AbstractContextManager[None]:
    """A broker takes the word of any controller, however old."""

    def wrong(self: Any, word: Word) -> None:
        self._controller_epoch = word.controller_epoch

    return _instead(ReplicaControl, "_check", wrong)


MUTATIONS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    each.__name__: each
    for each in (
        high_watermark_too_early,
        truncate_to_high_watermark,
        shrink_without_consent,
        lease_loss_ignored,
        checkpoint_not_synced,
        duplicates_accepted,
        election_outside_isr,
        restarted_broker_stays_in_sync,
        lost_records_unnoticed,
        divergence_unchecked,
        stale_generation_accepted,
        stale_controller_obeyed,
    )
}
"""By name."""

OF_GROUPS = frozenset({"stale_generation_accepted"})
"""Those that only a seed with a group can show."""
