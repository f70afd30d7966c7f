"""Which broker may restart next: one at a time, and only when nothing would fall under min.insync.replicas.

The decision is made anew each time from what is there, so an operator that was killed half-way goes on where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.cluster.image import Image
from headrace_operator import picture


@dataclass(frozen=True, slots=True)
class Pod:
    """A broker's pod as the roll needs it."""

    name: str
    ordinal: int
    ready: bool
    current: bool
    """Whether it runs the newest template, and tells the address that it has."""
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class Restart:
    """This pod may go now."""

    pod: Pod
    left: int
    """How many are outdated, this one included."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A roll is under way and something has to happen first."""

    message: str


@dataclass(frozen=True, slots=True)
class ElectPreferred:
    """Every broker is new: give leaderships back to those they were meant for."""


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing to do."""


Step = Restart | Wait | ElectPreferred | Done


def next_step(pods: Sequence[Pod], image: Image | None, rolling: bool, others: Sequence[str] = ()) -> Step:
    """What to do now. `image` is None while the cluster does not answer; `rolling`: a roll is known to be under way.

    `others` are components that are changing themselves: a broker hands its leaderships to a controller that is there.
    """
    outdated = [pod for pod in pods if not pod.current and not pod.deleting]
    if not outdated:
        return _finish(pods, image) if rolling else Done()
    # A broker that does not run is not missed by anyone: a template that cannot start is replaced at once.
    for pod in outdated:
        if not pod.ready and (image is None or pod.ordinal not in image.brokers):
            return Restart(pod, len(outdated))
    if image is None:
        return Wait("the cluster does not answer, so it is not known which broker can be spared")
    if others:
        return Wait(f"brokers restart once {', '.join(others)} are ready")
    if busy := _not_back(pods, image):
        return Wait(busy)
    refusals = []
    for pod in sorted(outdated, key=lambda pod: -pod.ordinal):
        refusal = unsafe(image, pod.ordinal)
        if refusal is None:
            return Restart(pod, len(outdated))
        refusals.append(refusal)
    return Wait(refusals[0])


def unsafe(image: Image, broker: int) -> str | None:
    """Why a broker cannot be spared now; None when it can.

    A partition whose replicas are too few to ever spare one (a single copy, or min.insync.replicas of all) does not
    stand in the way: waiting would not help it.
    """
    lagging = picture.under_replicated(image)
    if lagging:
        return f"{len(lagging)} partitions are not in sync yet ({picture.some(lagging)})"
    falls = [
        name
        for name, state in picture.partitions(image)
        if broker in state.isr
        and len(state.isr) - 1 < picture.min_isr(image, name.topic) <= len(picture.target(state)) - 1
    ]
    if falls:
        return f"without broker {broker} {len(falls)} partitions fall under min.insync.replicas ({picture.some(falls)})"
    return None


def _not_back(pods: Sequence[Pod], image: Image) -> str | None:
    for pod in pods:
        if pod.deleting:
            return f"{pod.name} is stopping"
        if not pod.ready or pod.ordinal not in image.brokers:
            return f"{pod.name} is starting"
    return None


def _finish(pods: Sequence[Pod], image: Image | None) -> Step:
    if image is None:
        return Wait("the cluster does not answer")
    if busy := _not_back(pods, image):
        return Wait(busy)
    if lagging := picture.under_replicated(image):
        return Wait(f"{len(lagging)} partitions are not in sync yet ({picture.some(lagging)})")
    misplaced = any(
        state.leader != state.preferred_leader and state.preferred_leader in state.isr
        for _, state in picture.partitions(image)
    )
    return ElectPreferred() if misplaced else Done()
