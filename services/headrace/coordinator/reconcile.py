"""How a member of a consumer group gets from what it has to what it shall have, without two owning one partition.

    STABLE ──new target──▶ UNREVOKED_PARTITIONS ──member gave them up──▶ UNRELEASED_PARTITIONS ──all free──▶ STABLE

First the member gives up what is not its own any more, and stays at its epoch until it confirms. Then it moves to the
target's epoch and takes what is free; what others still hold follows when they have given it up.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.coordinator.calls import Partitions
from headrace.coordinator.values import NO_PARTITIONS, MemberAssignment, MemberState


def reconciled(current: MemberAssignment, target_epoch: int) -> bool:
    return current.state is MemberState.STABLE and current.epoch == target_epoch


def reconcile(
    current: MemberAssignment,
    target_epoch: int,
    target: Partitions,
    owned: Partitions | None,
    is_free: Callable[[tuple[object, int]], bool],
) -> MemberAssignment:
    """The member's next step. `owned` is what it says it has (None: it did not say); `is_free` whether no other
    member has a partition, or still has to give it up."""
    if reconciled(current, target_epoch):
        return current
    if current.state is MemberState.UNREVOKED_PARTITIONS:
        if _owns_any(owned, current.revoking):
            return current
        epoch = current.epoch + 1
    else:
        epoch = current.epoch
    kept = current.assigned & target
    revoking = current.assigned - target
    if revoking and _owns_any(owned, revoking):
        previous = _previous(current, epoch)
        return MemberAssignment(epoch, previous, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    wanted = target - kept
    taken = frozenset(partition for partition in wanted if is_free(partition))
    state = MemberState.STABLE if taken == wanted else MemberState.UNRELEASED_PARTITIONS
    return MemberAssignment(target_epoch, _previous(current, target_epoch), state, kept | taken, NO_PARTITIONS)


def _previous(current: MemberAssignment, epoch: int) -> int:
    return current.epoch if epoch != current.epoch else current.previous_epoch


def _owns_any(owned: Partitions | None, partitions: Partitions) -> bool:
    """A member that did not say what it owns may own all of it."""
    return bool(partitions) and (owned is None or not owned.isdisjoint(partitions))
