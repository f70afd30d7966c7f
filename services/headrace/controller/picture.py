"""What the active controller knows: the cluster's picture, and beside it what only controllers need.

It hears of every change twice: when a transaction of its own succeeds (so that the next decision does not wait for
etcd's echo), and from the watch. Revisions decide which of the two is news, key by key.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from headrace.cluster import codec
from headrace.cluster.image import Delta, Image
from headrace.cluster.view import RegistryView
from headrace.controller.plan import Incarnation
from headrace.controller.transactions import decode_incarnation, incarnations_prefix
from headrace.registry.api import Change, Changes, Delete, Event, KeyValue, Snapshot
from headrace.registry.keys import Keys, TopicKey


class Picture:
    """The registry's content as far as this controller has heard of it."""

    def __init__(self, keys: Keys, cluster_id: str) -> None:
        self._keys = keys
        self._view = RegistryView(keys.root, cluster_id)
        self._incarnations_prefix = incarnations_prefix(keys)
        self.incarnations: dict[int, Incarnation] = {}
        self.next_producer_id = 0
        # What a snapshot showed already, the watch may still be about to tell.
        self._floor = 0
        # Keys that own transactions removed, until the watch has told of it: an older echo must not bring them back.
        self._removed: dict[str, int] = {}

    @property
    def image(self) -> Image:
        return self._view.image

    @property
    def revisions(self) -> dict[str, int]:
        """The mod revision of every key, for compare-and-swap."""
        return self._view.revisions

    def orphans(self) -> dict[uuid.UUID, tuple[int, ...]]:
        """Partition keys that belong to no topic."""
        return self._view.orphans()

    def damaged(self) -> list[str]:
        """Keys of topics and partitions whose values cannot be read: what they stand for must not be taken for gone."""
        image = self._view.image
        topics = [key for key in self.revisions if key.startswith(self._keys.topics)]
        found = [] if len(topics) == len(image.topics) else [k for k in topics if self._topic_of(k) not in image.topics]
        for topic in image.topics.values():
            found += (
                self._keys.partition(str(topic.id), index)
                for index, state in enumerate(topic.partitions)
                if not state.replicas
            )
        return found

    def _topic_of(self, key: str) -> str:
        parsed = self._keys.parse(key)
        return parsed.name if isinstance(parsed, TopicKey) else ""

    def load(self, snapshot: Snapshot) -> Delta:
        """Starts anew from everything there is; the delta leads there from what was known before."""
        self._floor = snapshot.revision
        self._removed.clear()
        self.incarnations.clear()
        self.next_producer_id = 0
        delta = self._view.load(snapshot)
        for item in snapshot.items:
            self._own_key(item)
        return delta

    def absorb(self, changes: Changes) -> Delta:
        """Takes from the watch what is news."""
        if changes.revision <= self._floor:
            return Delta(changes.revision, ())
        delta = self._take(changes.revision, changes.events)
        if self._removed:
            self._removed = {key: at for key, at in self._removed.items() if at > changes.revision}
        return delta

    def made(self, changes: Iterable[Change], revision: int) -> None:
        """Takes what an own transaction has just changed."""
        events: list[Event] = []
        for change in changes:
            if isinstance(change, Delete):
                for key in self._named(change):
                    events.append(Event(key, None, 0, revision))
                    self._removed[key] = revision
            else:
                known = change.key in self.revisions
                events.append(Event(change.key, change.value, 0 if known else revision, revision))
        self._take(revision, events)

    def _named(self, gone: Delete) -> list[str]:
        if not gone.prefix:
            return [gone.key] if gone.key in self.revisions else []
        return [key for key in self.revisions if key.startswith(gone.key)]

    def _take(self, revision: int, events: Iterable[Event]) -> Delta:
        news = tuple(
            event
            for event in events
            if event.mod_revision > self.revisions.get(event.key, 0)
            and (event.mod_revision > self._removed.get(event.key, 0) or event.value is None)
        )
        if not news:
            return Delta(revision, ())
        for event in news:
            self._own_key(event)
        return self._view.apply(Changes(revision, news))

    def _own_key(self, state: Event | KeyValue) -> None:
        if state.key.startswith(self._incarnations_prefix):
            broker = int(state.key.removeprefix(self._incarnations_prefix))
            if state.value is None:
                self.incarnations.pop(broker, None)
            else:
                self.incarnations[broker] = decode_incarnation(state.value)
        elif state.key == self._keys.producer_ids and state.value is not None:
            self.next_producer_id = codec.decode_number(state.value)
